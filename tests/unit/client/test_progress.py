"""WIRE section 1: "the client sends `notifications/progress` at least every 10 s"."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.harness import Agent, DaemonEnd, ready_client


async def _progress(agent: Agent) -> dict[str, Any]:
    message = await agent.receive()
    assert message["method"] == "notifications/progress"
    params: dict[str, Any] = message["params"]
    return params


async def _called(agent: Agent, link: DaemonEnd, token: Any = "t") -> dict[str, Any]:
    await agent.call(1, "ant_send", token=token)
    request: dict[str, Any] = await link.receive()
    return request


@pytest.mark.parametrize("token", ["t", 7, "ü"])
async def test_a_call_that_waits_is_heard_of_at_least_every_10_s(autojump_clock: MockClock, token: Any) -> None:
    async with ready_client("send") as (agent, link, _):
        request = await _called(agent, link, token)
        heard = [trio.current_time()]
        values = [0.0]
        while trio.current_time() < 60:
            params = await _progress(agent)
            assert params["progressToken"] == token
            assert "waiting" in params["message"]
            heard.append(trio.current_time())
            values.append(params["progress"])
        assert max(after - before for before, after in itertools.pairwise(heard)) < 10
        assert values == sorted(set(values))
        await link.answer(request, "done")
        assert (await agent.receive())["id"] == 1
        assert await agent.is_silent(60)


async def test_without_a_token_nothing_is_sent(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        await link.report(await _called(agent, link, token=None), progress=1)
        assert await agent.is_silent(100)


@pytest.mark.parametrize("token", [None, True, [1], {"a": 1}])
async def test_a_token_of_another_type_is_none(autojump_clock: MockClock, token: Any) -> None:
    async with ready_client("send") as (agent, _, _):
        params = {"name": "ant_send", "_meta": {"progressToken": token}}
        await agent.ask(1, "tools/call", params)
        assert await agent.is_silent(100)


async def test_every_report_of_the_caller_is_passed_on_before_the_answer() -> None:
    async with ready_client("send") as (agent, link, _):
        request = await _called(agent, link)
        for step in (1, 2, 3):
            await link.report(request, progress=step, total=3, message=f"step {step}")
        await link.answer(request, "done")
        assert [await _progress(agent) for _ in range(3)] == [
            {"progressToken": "t", "progress": step, "total": 3, "message": f"step {step}"} for step in (1, 2, 3)
        ]
        assert (await agent.receive())["id"] == 1


async def test_values_that_do_not_increase_are_made_to(autojump_clock: MockClock) -> None:
    """MCP: "The progress value MUST increase with each notification"."""
    async with ready_client("send") as (agent, link, _):
        request = await _called(agent, link)
        for value in (0, -5, 3, 3, 1, 1e308, 1.7976931348623157e308, 1.7976931348623157e308):
            await link.report(request, progress=value)
        await link.answer(request, "done")
        values = []
        while "method" in (message := await agent.receive()):
            values.append(message["params"]["progress"])
        assert len(values) == 7
        assert all(before < after for before, after in itertools.pairwise([0, *values]))
        assert values[2] == 3


async def test_a_caller_that_reports_after_the_first_heartbeat_counts_from_there(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        request = await _called(agent, link)
        assert (await _progress(agent))["progress"] == 5
        await link.report(request, progress=1, total=4)
        params = await _progress(agent)
        assert (params["progress"], params["total"]) == (6, 9)


async def test_a_silent_caller_is_bridged_without_inventing_progress(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        request = await _called(agent, link)
        await link.report(request, progress=0.5, total=1)
        assert (await _progress(agent))["progress"] == 0.5
        reported = trio.current_time()
        params = await _progress(agent)
        assert trio.current_time() - reported == 5
        assert params["progress"] == pytest.approx(0.5)
        assert params["progress"] > 0.5


@pytest.mark.parametrize("progress", [b"null", b'"x"', b"1e999", b"[]", b"true"])
async def test_a_report_without_a_number_is_ignored(progress: bytes) -> None:
    async with ready_client("send") as (agent, link, _):
        request = await _called(agent, link)
        await link.send(b'{"method":"notifications/progress","params":{"request":1,"progress":%b}}' % progress)
        await link.answer(request, "done")
        assert (await agent.receive())["id"] == 1


async def test_what_is_no_number_or_text_beside_the_progress_is_left_out() -> None:
    async with ready_client("send") as (agent, link, _):
        request = await _called(agent, link)
        await link.report(request, progress=1, total=None, message=["x"])
        assert await _progress(agent) == {"progressToken": "t", "progress": 1}


async def test_a_cancelled_call_is_silent(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        request = await _called(agent, link)
        await agent.cancel(1)
        await link.receive()
        await link.report(request, progress=1)
        assert await agent.is_silent(60)


async def test_a_lost_link_ends_a_call_with_a_token_too(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        await _called(agent, link)
        await link.stream.aclose()
        assert (await agent.receive())["result"]["isError"] is True
        assert await agent.is_silent(60)
