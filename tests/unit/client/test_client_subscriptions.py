"""`subscriptions/listen` of MCP 2026-07-28: how an agent that never initialized hears of changed tools."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from mcp_types.methods import parse_server_notification, validate_server_result
from oubliette_client.catalog import Catalog
from oubliette_client.run import serve
from oubliette_client.streams import Outbox
from oubliette_client.subscriptions import MAX_SUBSCRIPTIONS
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

import oubliette
from tests.unit.client.harness import STATELESS, SUBSCRIPTION_ID, Agent, Daemon, client, ready_client

CHANGED_FOR_ALL = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {}}
TOOLS = {"toolsListChanged": True}


async def _listen(agent: Agent, id: Any, **notifications: Any) -> None:
    await agent.ask_stateless(id, "subscriptions/listen", {"notifications": notifications})


async def _subscribe(agent: Agent, id: Any) -> None:
    await _listen(agent, id, **TOOLS)
    assert await agent.receive() == _acknowledged(id, TOOLS)


def _acknowledged(id: Any, granted: dict[str, Any]) -> dict[str, Any]:
    params = {"_meta": {SUBSCRIPTION_ID: id}, "notifications": granted}
    return {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}


def _changed(id: Any) -> dict[str, Any]:
    return {**CHANGED_FOR_ALL, "params": {"_meta": {SUBSCRIPTION_ID: id}}}


@pytest.mark.parametrize("id", [1, "a", "ü\n"])
async def test_a_subscription_is_acknowledged_and_then_hears_of_every_change(
    autojump_clock: MockClock, id: Any
) -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.configure("send")
        await _subscribe(agent, id)
        for names in (["send", "get"], ["get"]):
            await link.configure(*names)
            message = await agent.receive()
            assert message == _changed(id)
            parse_server_notification(message["method"], STATELESS, message["params"])
        await link.configure("get")
        assert await agent.is_silent(30)


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        (TOOLS, TOOLS),
        ({**TOOLS, "promptsListChanged": True, "resourceSubscriptions": ["x:/"], "later": 1}, TOOLS),
        ({"toolsListChanged": False}, {}),
        ({"toolsListChanged": None, "resourcesListChanged": True}, {}),
        ({}, {}),
    ],
)
async def test_only_what_was_asked_for_and_exists_is_granted(
    autojump_clock: MockClock, asked: dict[str, Any], granted: dict[str, Any]
) -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.configure("send")
        await _listen(agent, 1, **asked)
        acknowledgement = await agent.receive()
        assert acknowledgement == _acknowledged(1, granted)
        parse_server_notification(acknowledgement["method"], STATELESS, acknowledgement["params"])
        await link.configure("get")
        assert [await agent.receive() for _ in granted] == [_changed(1) for _ in granted]
        assert await agent.is_silent(30)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": "toolsListChanged"},
        {"notifications": {"toolsListChanged": "yes"}},
        {"notifications": {"toolsListChanged": 1}},
    ],
)
async def test_a_filter_of_another_shape_is_refused(params: dict[str, Any]) -> None:
    async with ready_client("send") as (agent, _, _):
        await agent.ask_stateless(1, "subscriptions/listen", params)
        answer = await agent.receive()
        assert (answer["id"], answer["error"]["code"]) == (1, -32602)


async def test_a_filter_with_a_key_twice_is_refused() -> None:
    notifications = b'{"toolsListChanged":true,"toolsListChanged":false}'
    meta = b'{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}'
    async with ready_client("send") as (agent, _, _):
        params = b'{"notifications":%b,"_meta":%b}' % (notifications, meta)
        await agent.send(b'{"id":1,"method":"subscriptions/listen","params":%b}' % params)
        assert (await agent.receive())["error"]["code"] == -32602


async def test_a_cancelled_subscription_hears_nothing_more_and_is_not_answered(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.configure("send")
        await _subscribe(agent, 1)
        await _subscribe(agent, "1")
        await agent.cancel(1)
        await wait_all_tasks_blocked()
        await link.configure("get")
        assert await agent.receive() == _changed("1")
        assert await agent.is_silent(30)
        await _subscribe(agent, 1)


async def test_there_are_so_many_subscriptions_at_once_and_no_more() -> None:
    async with ready_client("send") as (agent, _, _):
        for id in range(MAX_SUBSCRIPTIONS):
            await _subscribe(agent, id)
        await _listen(agent, "more")
        answer = await agent.receive()
        assert (answer["id"], answer["error"]["code"]) == ("more", -32006)
        await agent.cancel(0)
        await wait_all_tasks_blocked()
        await _subscribe(agent, "more")


async def test_an_agent_that_initialized_hears_of_changes_as_before(autojump_clock: MockClock) -> None:
    """What one era is told changes nothing for the other."""
    async with ready_client("send") as (agent, link, _):
        await _subscribe(agent, 1)
        await link.configure("get")
        assert await agent.receive() == CHANGED_FOR_ALL
        assert await agent.receive() == _changed(1)
        await link.configure("send")
        await wait_all_tasks_blocked()
        assert list(await agent.tools()) == ["ant_send"]
        assert await agent.receive() == _changed(1)
        assert await agent.is_silent(30)


async def test_a_list_of_the_stateless_era_tells_an_agent_that_initialized_nothing(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        await link.configure("get")
        await wait_all_tasks_blocked()
        await agent.ask_stateless(1, "tools/list")
        assert (await agent.receive())["id"] == 1
        assert await agent.receive() == CHANGED_FOR_ALL


async def test_a_hundred_updates_a_second_are_coalesced(autojump_clock: MockClock) -> None:
    """HAZARDS F31."""
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.configure("send")
        await _subscribe(agent, 1)
        for number in range(100):
            await link.declare({"name": f"tool{number}"})
            await trio.sleep(0.01)
        heard = 0
        while not await agent.is_silent(1):
            heard += 1
        assert 1 <= heard <= 11


async def test_the_first_configs_are_no_change(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon):
        await _listen(agent, 1, **TOOLS)
        await (await daemon.accept()).configure("send")
        assert await agent.receive() == _acknowledged(1, TOOLS)
        assert await agent.is_silent(30)


async def test_configs_that_are_late_are_a_change(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon):
        await _subscribe(agent, 1)
        assert trio.current_time() == 2
        await (await daemon.accept()).configure("send")
        assert await agent.receive() == _changed(1)


async def test_the_end_of_stdin_ends_subscriptions_with_their_result_at_once(autojump_clock: MockClock) -> None:
    """MCP, "Graceful Closure": the answer to `subscriptions/listen` says that the server has ended it."""
    agent_end, client_end = memory_stream_pair()
    daemon, agent = Daemon(), Agent(agent_end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, "/the/socket", client_end, client_end, daemon.connect)
        await (await daemon.accept()).configure("send")
        for id in (1, "b"):
            await _subscribe(agent, id)
        await agent_end.send_stream.aclose()
    assert trio.current_time() == 0
    answers = {answer["id"]: answer["result"] for answer in [await agent.receive() for _ in range(2)]}
    server_info = {"name": "oubliette-client", "version": oubliette.__version__}
    for id, result in answers.items():
        meta = {SUBSCRIPTION_ID: id, "io.modelcontextprotocol/serverInfo": server_info}
        assert result == {"resultType": "complete", "_meta": meta}
        validate_server_result("subscriptions/listen", STATELESS, result)
    assert set(answers) == {1, "b"}


class _Recording(Outbox):
    """An outbox that remembers what was put into it."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.lines: list[bytes] = []

    def put(self, line: bytes) -> None:
        self.lines.append(line)
        super().put(line)


async def test_an_agent_that_does_not_read_is_told_one_thing_at_a_time(autojump_clock: MockClock) -> None:
    """A line repeats the id of its subscription, which may have megabytes: together they have no bound."""
    outbox, stdout = _Recording(1), memory_stream_pair()[0]
    catalog = Catalog(outbox)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(catalog.announce)
        with catalog.listening(b"first"), catalog.listening(b"second"), catalog.listening(b"third"):
            catalog.configure("pack_tools_config", '{"tools":[{"pack":"ot","name":"tools"}]}')
            await trio.sleep(60)
            assert outbox.lines == [b"first"]
            nursery.start_soon(outbox.run, stdout)
            await trio.sleep(60)
        assert outbox.lines == [b"first", b"second", b"third"]
        nursery.cancel_scope.cancel()


async def test_who_leaves_while_there_is_no_room_is_told_nothing(autojump_clock: MockClock) -> None:
    outbox, stdout = _Recording(1), memory_stream_pair()[0]
    catalog = Catalog(outbox)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(catalog.announce)
        with catalog.listening(b"first"):
            with catalog.listening(b"second"):
                catalog.configure("pack_tools_config", '{"tools":[{"pack":"ot","name":"tools"}]}')
                await trio.sleep(60)
            nursery.start_soon(outbox.run, stdout)
            await trio.sleep(60)
        assert outbox.lines == [b"first"]
        nursery.cancel_scope.cancel()
