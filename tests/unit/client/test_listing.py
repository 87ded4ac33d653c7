"""WIRE section 1: "Its first `tools/list` waits …; `tools/list_changed` follows whenever the set changes"."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.harness import beside_own, client, ready_client

CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {}}


async def test_the_first_list_waits_until_both_configs_are_in(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon), trio.open_nursery() as nursery:
        link = await daemon.accept()
        began = trio.current_time()
        nursery.start_soon(agent.ask, 1, "tools/list")
        await trio.sleep(0.5)
        await link.declare({"name": "send"})
        await trio.sleep(0.7)
        await link.offer({"pack": "ot", "name": "tools"})
        tools = (await agent.receive())["result"]["tools"]
        assert list(beside_own(tools)) == ["ant_send", "ot_tools"]
        assert trio.current_time() - began == pytest.approx(1.2)


async def test_the_first_list_waits_2_s_at_most_and_the_next_one_not_at_all(autojump_clock: MockClock) -> None:
    async with client() as (agent, _):
        began = trio.current_time()
        assert await agent.tools() == {}
        assert trio.current_time() - began == 2
        assert await agent.tools() == {}
        assert trio.current_time() - began == 2


async def test_without_tools_the_list_comes_at_once(autojump_clock: MockClock) -> None:
    """FIELD section 2, defect 10: the wait ran in full whenever there were no caller tools."""
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.declare(caller_id=None)
        await link.offer()
        assert await agent.tools() == {}
        assert trio.current_time() == 0


async def test_configs_that_come_after_the_first_list_are_announced(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon):
        await agent.initialize()
        assert await agent.tools() == {}
        await (await daemon.accept()).configure("send")
        assert await agent.receive() == CHANGED
        assert list(await agent.tools()) == ["ant_send"]


async def test_a_new_declaration_is_announced_once(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        await link.declare({"name": "send"}, {"name": "get"})
        assert await agent.receive() == CHANGED
        assert list(await agent.tools()) == ["ant_send", "ant_get"]
        assert await agent.is_silent(30)


async def test_a_changed_schema_is_announced(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        await link.declare({"name": "send", "inputSchema": {"type": "object", "required": ["to"]}})
        assert await agent.receive() == CHANGED


async def test_the_same_declaration_again_is_not_announced(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        await link.configure("send")
        assert await agent.is_silent(30)


async def test_a_hundred_updates_a_second_are_coalesced(autojump_clock: MockClock) -> None:
    """HAZARDS F31."""
    async with ready_client("send") as (agent, link, _):
        for number in range(100):
            await link.declare({"name": f"tool{number}"})
            await trio.sleep(0.01)
        heard = 0
        while not await agent.is_silent(1):
            heard += 1
        assert 1 <= heard <= 11
        assert list(await agent.tools()) == ["ant_tool99"]


async def test_nothing_is_announced_before_the_agent_is_initialized(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.configure("send")
        assert list(await agent.tools()) == ["ant_send"]
        await link.configure("get")
        assert await agent.is_silent(30)
        await agent.send({"method": "notifications/initialized"})
        assert await agent.receive() == CHANGED


async def test_an_agent_that_says_twice_that_it_is_initialized_is_told_once(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.send({"method": "notifications/initialized"})
        await link.configure("get")
        assert await agent.receive() == CHANGED
        assert await agent.is_silent(30)


async def test_the_first_configs_are_no_change(autojump_clock: MockClock) -> None:
    async with client() as (agent, daemon):
        await agent.initialize()
        await (await daemon.accept()).configure("send")
        assert await agent.is_silent(30)


async def test_a_change_after_the_first_configs_is_announced_to_an_agent_that_never_listed(
    autojump_clock: MockClock,
) -> None:
    async with client() as (agent, daemon):
        await agent.initialize()
        link = await daemon.accept()
        await link.configure("send")
        await link.configure("send", "get")
        assert await agent.receive() == CHANGED


async def test_a_tool_that_goes_away_finishes_what_it_has_begun(autojump_clock: MockClock) -> None:
    """HAZARDS F31: "in-flight finishes; new call `unknown_tool`"."""
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send")
        request = await link.receive()
        await link.declare()
        assert await agent.receive() == CHANGED
        await agent.call(2, "ant_send")
        assert (await agent.receive())["error"]["code"] == -32602
        await link.answer(request, "done")
        assert (await agent.receive())["id"] == 1


async def test_the_list_stays_while_the_link_is_down_and_a_different_one_after_it_is_announced(
    autojump_clock: MockClock,
) -> None:
    async with ready_client("send") as (agent, link, daemon):
        await link.stream.aclose()
        assert list(await agent.tools()) == ["ant_send"]
        await (await daemon.accept()).configure("get")
        assert await agent.receive() == CHANGED


async def test_the_same_list_after_a_reconnect_is_not_announced(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, daemon):
        await link.stream.aclose()
        await (await daemon.accept()).configure("send")
        assert await agent.is_silent(30)
