"""An agent with `OUBLIETTE_API_KEY`: what its client asks for, shows, sends and never says (WIRE section 1).

HAZARDS G17, T18, T19; ../shared/spec/expose-oubliette-tools-proposal.md.
"""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest
import trio
from oubliette_client import key as keys
from oubliette_client.key import ApiKey, from_environment
from oubliette_client.link import LOST, NOT_CONNECTED
from trio.testing import MockClock

from oubliette.protocol.revisions import BY_NAME
from tests.unit.client.harness import DaemonEnd, Message, beside_own, client, text_of

KEY = f"oub_canary_{'c' * 64}"
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {}}
CREATE: Message = {
    "name": "project_create",
    "description": "Creates a project.",
    "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    "outputSchema": {"type": "object", "properties": {"project_id": {"type": "string"}}},
    "annotations": {"readOnlyHint": False},
}


async def asked(link: DaemonEnd) -> Message:
    """Returns the request for the list, which is the first thing that a client with a key sends."""
    request: Message = await link.receive()
    assert (request["method"], request["params"]) == ("oubliette_tools", {"api_key": KEY})
    return request


async def answered(link: DaemonEnd, *tools: Message) -> None:
    """Answers the request for the list, after both configs."""
    await link.configure("send")
    await link.answer(await asked(link), {"tools": list(tools)})


# Discovery


async def test_without_a_key_nothing_is_asked(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.configure("send")
        assert list(await agent.tools()) == ["ant_send"]
        assert await link.is_silent(60)


async def test_the_tools_of_a_key_are_shown_with_their_prefix(autojump_clock: MockClock) -> None:
    async with client(key=KEY) as (agent, daemon):
        await answered(await daemon.accept(), CREATE, {"name": "token_list", "inputSchema": {"type": "object"}})
        tools = await agent.tools()
        assert list(tools) == ["ant_send", "oubliette_project_create", "oubliette_token_list"]
        assert tools["oubliette_project_create"] == {**CREATE, "name": "oubliette_project_create"}
        assert trio.current_time() == 0


@pytest.mark.parametrize("revision", BY_NAME.values(), ids=BY_NAME)
async def test_a_list_shows_what_the_agents_revision_knows(revision: Any) -> None:
    async with client(key=KEY) as (agent, daemon):
        await answered(await daemon.accept(), CREATE)
        if revision.stateless:
            await agent.ask_stateless(1, "tools/list")
        else:
            await agent.initialize(revision.name)
            await agent.ask(1, "tools/list")
        shown = beside_own((await agent.receive())["result"]["tools"])["oubliette_project_create"]
        assert ("outputSchema" in shown) == revision.structured_content
        assert ("annotations" in shown) == revision.annotations


async def test_the_first_list_waits_for_the_answer(autojump_clock: MockClock) -> None:
    async with client(key=KEY) as (agent, daemon), trio.open_nursery() as nursery:
        link = await daemon.accept()
        await link.configure("send")
        request = await asked(link)
        nursery.start_soon(agent.ask, 1, "tools/list")
        await trio.sleep(1.5)
        await link.answer(request, {"tools": [CREATE]})
        assert "oubliette_project_create" in beside_own((await agent.receive())["result"]["tools"])
        assert trio.current_time() == 1.5


async def test_the_first_list_waits_2_s_in_all_and_what_comes_later_is_announced(autojump_clock: MockClock) -> None:
    async with client(key=KEY) as (agent, daemon):
        await agent.initialize()
        link = await daemon.accept()
        await link.configure("send")
        assert list(await agent.tools()) == ["ant_send"]
        assert trio.current_time() == 2
        await link.answer(await asked(link), {"tools": [CREATE]})
        assert await agent.receive() == CHANGED
        assert "oubliette_project_create" in await agent.tools()


@pytest.mark.parametrize("code", [-32001, -32601, -32006, -32800])
async def test_a_refusal_is_a_warning_and_everything_else_goes_on(
    autojump_clock: MockClock, capfd: pytest.CaptureFixture[str], code: int
) -> None:
    async with client(key=KEY) as (agent, daemon):
        link = await daemon.accept()
        await link.configure("send")
        await link.fail((await asked(link))["id"], code, "the key is not what it was")
        assert list(await agent.tools()) == ["ant_send"]
        assert trio.current_time() == 0
        assert await link.is_silent(60)
    captured = capfd.readouterr()
    assert captured.err == "oubliette-client: Oubliette's own tools are left out: the key is not what it was\n"
    assert captured.out == ""


@pytest.mark.parametrize("result", [None, 5, [], {}, {"tools": None}, {"tools": 5}, {"tools": [5, {"name": "a b"}]}])
async def test_an_answer_of_another_shape_offers_nothing(autojump_clock: MockClock, result: Any) -> None:
    async with client(key=KEY) as (agent, daemon):
        link = await daemon.accept()
        await link.configure("send")
        await link.answer(await asked(link), result)
        assert list(await agent.tools()) == ["ant_send"]
        assert trio.current_time() == 0


async def test_a_lost_answer_is_asked_for_again_and_a_given_one_is_not(autojump_clock: MockClock) -> None:
    async with client(key=KEY) as (agent, daemon):
        link = await daemon.accept()
        await asked(link)
        await link.stream.aclose()
        link = await daemon.accept()
        await answered(link, CREATE)
        assert list(await agent.tools()) == ["ant_send", "oubliette_project_create"]
        await link.stream.aclose()
        link = await daemon.accept()
        await link.configure("send")
        assert await link.is_silent(60)
        assert list(await agent.tools()) == ["ant_send", "oubliette_project_create"]


async def test_a_daemon_that_closes_every_connection_is_not_asked_in_a_loop(autojump_clock: MockClock) -> None:
    async with client(key=KEY) as (_, daemon):
        for _ in range(10):
            await (await daemon.accept()).stream.aclose()
        assert trio.current_time() > 5


async def test_a_pushed_list_is_nothing_without_a_key(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.send({"jsonrpc": "2.0", "type": "oubliette_tools", "params": {"tools": [CREATE]}})
        await link.configure("send")
        assert list(await agent.tools()) == ["ant_send"]


async def test_a_pack_of_that_name_hides_no_tool_of_the_key(autojump_clock: MockClock) -> None:
    """HAZARDS T27: of tools that share a name none is shown."""
    async with client(key=KEY) as (agent, daemon):
        link = await daemon.accept()
        await link.declare({"name": "send"})
        await link.offer({"pack": "oubliette", "name": "project_create"})
        await link.answer(await asked(link), {"tools": [CREATE]})
        assert list(await agent.tools()) == ["ant_send"]


# Calls


@pytest.mark.parametrize("stateless", [False, True])
async def test_a_call_carries_the_key_and_its_result_passes_as_it_is(stateless: bool) -> None:
    result = {"content": [{"type": "text", "text": "{}"}], "structuredContent": {"n": 1.10}, "_meta": {"a": 1}}
    async with client(key=KEY) as (agent, daemon):
        link = await daemon.accept()
        await answered(link, CREATE)
        await (agent.call_stateless if stateless else agent.call)(1, "oubliette_project_create", {"name": "x"})
        request = await link.receive()
        assert request["method"] == "oubliette_call_tool"
        assert request["params"] == {"api_key": KEY, "tool": "project_create", "arguments": {"name": "x"}}
        await link.answer(request, result)
        got = (await agent.receive())["result"]
        assert {key: got[key] for key in ("content", "structuredContent")} == {
            key: result[key] for key in ("content", "structuredContent")
        }
        assert got["_meta"]["a"] == 1


async def test_other_requests_carry_no_key(autojump_clock: MockClock) -> None:
    """HAZARDS T19."""
    async with client(key=KEY) as (agent, daemon):
        link = await daemon.accept()
        await link.declare({"name": "send"})
        await link.offer({"pack": "ot", "name": "tools"})
        await link.answer(await asked(link), {"tools": [CREATE]})
        for id, name in enumerate(("ant_send", "ot_tools", "project_list")):
            await agent.call(id, name)
            line = await link.receive_line()
            assert b"api_key" not in line
            assert b"canary" not in line


async def test_a_call_that_the_key_no_longer_opens_is_a_failed_tool(autojump_clock: MockClock) -> None:
    async with client(key=KEY) as (agent, daemon):
        link = await daemon.accept()
        await answered(link, CREATE)
        await agent.call(1, "oubliette_project_create")
        await link.fail((await link.receive())["id"], -32001, "the key was revoked")
        answer = await agent.receive()
        assert (answer["result"]["isError"], text_of(answer)) == (True, "the key was revoked")
        assert "oubliette_project_create" in await agent.tools()


async def test_a_call_that_waits_is_told_of_and_can_be_cancelled(autojump_clock: MockClock) -> None:
    async with client(key=KEY) as (agent, daemon):
        link = await daemon.accept()
        await answered(link, CREATE)
        await agent.call(1, "oubliette_project_create", token="t")
        request = await link.receive()
        assert (await agent.receive())["params"]["progressToken"] == "t"
        assert trio.current_time() <= 10
        await agent.cancel(1)
        cancelled = await link.receive()
        assert (cancelled["method"], cancelled["params"]) == ("notifications/cancelled", {"requestId": request["id"]})
        await link.fail(request["id"], -32800, "cancelled")
        assert await agent.is_silent(60)


async def test_a_lost_link_ends_a_call_in_words(autojump_clock: MockClock) -> None:
    async with client(key=KEY) as (agent, daemon):
        link = await daemon.accept()
        await answered(link, CREATE)
        await agent.call(1, "oubliette_project_create")
        await link.receive()
        daemon.refusal = ConnectionRefusedError()
        await link.stream.aclose()
        assert text_of(await agent.receive()) == LOST
        await agent.call(2, "oubliette_project_create")
        assert text_of(await agent.receive()) == NOT_CONNECTED


# The client's own tools


async def test_the_clients_own_tools_are_there_before_the_daemon(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon):
        await agent.ask(1, "tools/list")
        tools = (await agent.receive())["result"]["tools"]
        assert [(tool["name"], tool["annotations"]["readOnlyHint"]) for tool in tools] == [
            ("session_message", False),
            ("project_list", True),
        ]
        link = await daemon.accept()
        projects = {"projects": [{"project_id": "default"}]}
        for id, arguments in enumerate(({}, None, {"x": 1})):
            await agent.ask(id, "tools/call", {"name": "project_list", "arguments": arguments})
            request = await link.receive()
            assert (request["method"], request["params"]) == ("project_list", arguments or {})
            await link.answer(request, projects)
            assert (await agent.receive())["result"]["structuredContent"] == projects


async def test_a_callers_tool_cannot_take_the_place_of_an_own_one(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.declare({"name": "list"}, {"name": "send"}, caller_id="project")
        await link.offer()
        await agent.ask(1, "tools/list")
        assert "project_list" not in {tool["name"] for tool in (await agent.receive())["result"]["tools"]}


# The key itself


@pytest.mark.parametrize("value", ["", " ", "\n", None])
def test_no_key_is_no_key(value: str | None, capfd: pytest.CaptureFixture[str]) -> None:
    assert from_environment({} if value is None else {keys.VARIABLE: value}) is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("value", ["oub_ü", "oub_\udcff", "oub_a\nb", "oub_\x00"])
def test_what_cannot_be_a_key_is_a_warning_that_does_not_repeat_it(
    value: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert from_environment({keys.VARIABLE: value}) is None
    said = capfd.readouterr().err
    assert said == "oubliette-client: OUBLIETTE_API_KEY is not a key: Oubliette's own tools are left out\n"


@pytest.mark.parametrize("params", ["{}", '{"tool":"a","arguments":{}}'])
def test_a_key_is_given_away_by_signing_alone(params: str) -> None:
    found = from_environment({keys.VARIABLE: f" {KEY}\n"})
    assert found is not None
    assert json.loads(found.sign(params)) == {"api_key": KEY, **json.loads(params)}
    assert "canary" not in f"{found} {found!r} {[found]}"
    assert not hasattr(found, "__dict__")


def test_a_traceback_shows_no_key() -> None:
    with pytest.raises(TypeError) as raised:
        ApiKey(KEY).sign(5)  # type: ignore[arg-type]  # a mistake of ours
    assert "canary" not in "".join(traceback.format_exception(raised.value))


async def test_a_mistake_of_ours_in_a_call_shows_no_key(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def crash(key: ApiKey, params: str) -> str:
        raise RuntimeError(key, params, KEY)

    async with client(key=KEY) as (agent, daemon):
        await answered(await daemon.accept(), CREATE)
        await agent.tools()
        monkeypatch.setattr(ApiKey, "sign", crash)
        await agent.call(1, "oubliette_project_create")
        answer = await agent.receive()
        assert answer["error"]["code"] == -32603
        assert "canary" not in json.dumps(answer) + capfd.readouterr().err
