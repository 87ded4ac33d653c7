"""Answers that are long in coming: what the peer is sent meanwhile, and when (WIRE sections 3, 4.1 and 4.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.agents.base import Turn, TurnResult
from oubliette.errors import CallerDisconnected
from oubliette.events import RingLimits
from oubliette.toolbox import box
from tests.helpers.agents import FakeAgent, work_for_a_second
from tests.helpers.domain import OTHER
from tests.unit.mcp.harness import (
    Asker,
    child_of,
    is_attached,
    open_asker,
    open_legacy_asker,
)

FOLLOWING = {"level": "info"}


async def think(turn: Turn) -> TurnResult:
    await trio.sleep(25)
    return TurnResult(text="done")


@asynccontextmanager
async def asking(asker: Asker, tool: str, options: dict[str, Any], **arguments: Any) -> AsyncIterator[list[Any]]:
    """Calls a tool in the background; yields where its result will be. Leaving cancels it, as a peer that leaves."""
    results: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def call() -> None:
            results.append(await asker.call(tool, options, **arguments))

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        yield results
        nursery.cancel_scope.cancel()


def kinds(asker: Asker) -> list[str]:
    return [event["type"] for event in asker.sent.events]


# Progress


async def test_progress_comes_every_10_seconds_to_who_asked_for_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_asker(tmp_path, agents={"thinker": FakeAgent(think)}) as asker:
        for token in ("t", 0, 1.5):
            asker.sent.messages.clear()
            asker.sent.times.clear()
            begun = trio.current_time()
            await asker.call("session_message", {"token": token}, message="x", agent="thinker", wait=True)
            assert [at - begun for at in asker.sent.times] == [10, 20]
            assert asker.sent.params("notifications/progress") == [
                {"progressToken": token, "progress": 10, "message": "waiting"},
                {"progressToken": token, "progress": 20, "message": "waiting"},
            ]


async def test_without_a_token_there_is_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_asker(tmp_path, agents={"thinker": FakeAgent(think)}) as asker:
        await asker.call("session_message", message="x", agent="thinker", wait=True)
        assert asker.sent.messages == []


async def test_the_earlier_revisions_have_progress_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_legacy_asker(tmp_path, agents={"thinker": FakeAgent(think)}) as asker:
        await asker.call("session_message", {"token": 7}, message="x", agent="thinker", wait=True)
        assert [message["method"] for message in asker.sent.messages] == ["notifications/progress"] * 2


@pytest.mark.parametrize(("seconds", "times"), [(5, [5, 5]), (15, [10, 15, 15])])
async def test_what_a_tool_reports_takes_the_place_of_the_waiting(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seconds: int, times: list[int]
) -> None:
    async def report(call: Any, arguments: Any) -> Any:
        await trio.sleep(seconds)
        await call.reports.progress(100, 300, "the first hundred")
        await call.reports.progress(200, 300, None)
        await trio.sleep(30)
        raise CallerDisconnected("gone")

    monkeypatch.setattr(box.TOOLS["session_events"], "run", report)
    async with open_asker(tmp_path) as asker:
        await asker.call("session_events", {"token": "t"}, follow=True)
        assert asker.sent.times == times
        assert asker.sent.params("notifications/progress")[-2:] == [
            {"progressToken": "t", "progress": 100, "total": 300, "message": "the first hundred"},
            {"progressToken": "t", "progress": 200, "total": 300},
        ]


async def test_a_report_that_is_being_written_is_not_cut_off_by_the_answer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A write that is cancelled closes the connection (`Outbox`), and the answer would be lost with it."""
    async with open_asker(tmp_path, agents={"thinker": FakeAgent(think)}) as asker:
        asker.sent.reads = trio.Event()
        written: list[str] = []

        async def send(*messages: bytes) -> None:
            await asker.sent.reads.wait()
            written.extend(message.decode() for message in messages)

        asker.sent.send = send  # type: ignore[method-assign]  # a channel that is slow before it has written
        async with asking(asker, "session_message", {"token": 1}, message="x", agent="thinker", wait=True) as results:
            await trio.sleep(30)
            assert (written, results) == ([], [])
            asker.sent.reads.set()
            await wait_all_tasks_blocked()
            assert len(written) == len(results) == 1


@pytest.mark.parametrize(("level", "heard"), [(None, []), ("info", ["warning"]), ("error", []), ("debug", ["warning"])])
async def test_a_tool_may_log_to_who_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Any, heard: list[str]
) -> None:
    async def complain(call: Any, arguments: Any) -> Any:
        await call.reports.log("warning", {"odd": True})
        raise CallerDisconnected("gone")

    monkeypatch.setattr(box.TOOLS["session_events"], "run", complain)
    async with open_asker(tmp_path) as asker:
        await asker.call("session_events", {"level": level})
        logged = asker.sent.params("notifications/message")
        assert [params["level"] for params in logged] == heard
        assert all(params == {"level": "warning", "logger": "oubliette", "data": {"odd": True}} for params in logged)


# Events


async def test_the_events_of_the_turn_come_before_the_answer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_asker(tmp_path, agents={"worker": FakeAgent(work_for_a_second)}) as asker:
        result = await asker.call("session_message", FOLLOWING, message="go", agent="worker", wait=True)
        assert kinds(asker) == ["session_started", "message", "message", "turn_completed"]
        assert [event["index"] for event in asker.sent.events] == [1, 2, 3, 4]
        assert result["structuredContent"]["text"] == "go"
        assert {params["logger"] for params in asker.sent.params("notifications/message")} == {"oubliette.session"}


@pytest.mark.parametrize("level", [None, "notice", "emergency"])
async def test_without_a_level_that_lets_them_through_there_are_none(
    tmp_path: Path, autojump_clock: MockClock, level: Any
) -> None:
    async with open_asker(tmp_path, agents={"worker": FakeAgent(work_for_a_second)}) as asker:
        await asker.call("session_message", {"level": level}, message="go", agent="worker", wait=True)
        assert asker.sent.messages == []


async def test_without_a_turn_to_wait_for_there_are_none(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        await asker.call("session_message", FOLLOWING, message="go", agent="external")
        assert asker.sent.messages == []


async def test_the_earlier_revisions_have_them_on_the_get_stream_alone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_legacy_asker(tmp_path, agents={"worker": FakeAgent(work_for_a_second)}) as asker:
        await asker.call("session_message", FOLLOWING, message="go", agent="worker", wait=True)
        assert asker.sent.messages == []


async def test_a_later_turn_begins_with_the_requests_under_way(tmp_path: Path, autojump_clock: MockClock) -> None:
    """WIRE section 4.3: a stream "starts with the requests that are pending"."""
    async with open_asker(tmp_path, agents={"worker": FakeAgent(work_for_a_second)}) as asker:
        started = await asker.call("session_message", message="one", agent="worker", wait=True)
        session = await asker.domain.sessions.find(started["structuredContent"]["session_id"])
        with asker.domain.stream(session):
            context = {"caller_id": "myapp", "caller_tools": [{"name": "send"}]}
            await asker.call("session_message", message="two", session_id=session.id, context=context)
            pending = session.relay.begin("send", b"{}")
            await asker.call("session_message", FOLLOWING, message="three", session_id=session.id, wait=True)
        assert kinds(asker)[:2] == ["caller_tool_request", "message"]
        assert asker.sent.events[0]["request_id"] == pending.request_id
        assert [event["text"] for event in asker.sent.events if event["type"] == "turn_completed"] == ["two", "three"]


async def test_following_a_session_brings_what_comes_after_an_index_until_its_end(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start("send")
        session.message("a")
        async with asking(asker, "session_events", FOLLOWING, session_id=session.id, follow=True, since_index=2) as end:
            assert is_attached(session)
            pending = session.relay.begin("send", b"{}")
            session.end("ended")
            await session.over.wait()
            await wait_all_tasks_blocked()
            assert [event["index"] for event in asker.sent.events] == [3, 4, 5, 6]
            assert kinds(asker)[1:] == ["caller_tool_request", "caller_tool_cancelled", "session_ended"]
            assert asker.sent.events[1]["request_id"] == pending.request_id
            assert end[0]["structuredContent"]["status"] == "ended"
        assert asker.domain.services.standing == set()


async def test_an_ended_session_is_told_at_once(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        await asker.domain.sessions.end(session)
        await asker.call("session_events", FOLLOWING, session_id=session.id, follow=True)
        assert kinds(asker) == ["session_started", "message", "session_ended"]


async def test_a_peer_that_leaves_ends_the_following_alone(tmp_path: Path) -> None:
    """WIRE section 4.1: "Closing such a stream ends the following, never the session"; section 3 for what pends."""
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start("send")
        async with asking(asker, "session_events", FOLLOWING, session_id=session.id, follow=True):
            pending = session.relay.begin("send", b"{}")
            await wait_all_tasks_blocked()
        with pytest.raises(CallerDisconnected) as caught:
            await session.relay.outcome(pending)
        assert caught.value.retry_safe is False, "it was given to the stream"
        assert session.status == "running"
        assert not is_attached(session)
        assert asker.domain.sessions.watchers == set()


async def test_events_of_descendants_come_too(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        other = await asker.domain.start()
        async with asking(asker, "session_events", FOLLOWING, session_id=session.id, follow=True, since_index=2):
            child = child_of(asker.domain, session, "ses_child")
            grandchild = child_of(asker.domain, child, "ses_grandchild")
            child_of(asker.domain, other, "ses_others_child").message("unheard")
            for each in (child, grandchild):
                each.message(f"from {each.id}")
            await wait_all_tasks_blocked()
            assert [event["text"] for event in asker.sent.events] == ["from ses_child", "from ses_grandchild"]
            assert is_attached(child)


async def test_following_without_a_session_brings_every_session_of_the_principal(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        before = await asker.domain.start("send")
        pending = before.relay.begin("send", b"{}")
        others = await asker.domain.run(OTHER, "session_message", message="not yours")
        async with asking(asker, "session_events", FOLLOWING, follow=True) as end:
            later = await asker.domain.start()
            (await asker.domain.sessions.find(others["session_id"])).message("not yours either")
            before.message("mine")
            await wait_all_tasks_blocked()
            told = [(event["session_id"], event["type"]) for event in asker.sent.events]
            assert sorted(told) == sorted(
                [
                    (before.id, "caller_tool_request"),
                    (later.id, "session_started"),
                    (later.id, "message"),
                    (before.id, "message"),
                ]
            )
            assert asker.sent.events[0]["request_id"] == pending.request_id
            await asker.domain.sessions.end_all("shutdown")
            for standing in list(asker.domain.services.standing):
                standing.finish()
            await wait_all_tasks_blocked()
            assert [event["reason"] for event in asker.sent.events if event["type"] == "session_ended"] == [
                "shutdown",
                "shutdown",
            ]
            assert end[0]["isError"] is True
            assert end[0]["_meta"]["oubliette/error"]["kind"] == "shutting_down"


@pytest.mark.parametrize("options", [{}, {"level": "error"}])
async def test_following_everything_needs_a_stream_of_its_own(tmp_path: Path, options: dict[str, Any]) -> None:
    async with open_asker(tmp_path) as asker, open_legacy_asker(tmp_path) as legacy:
        for result in (
            await asker.call("session_events", options, follow=True),
            await asker.call("session_events", FOLLOWING),
            await legacy.call("session_events", FOLLOWING, follow=True),
        ):
            assert result["_meta"]["oubliette/error"]["field"] == "session_id"


async def test_a_peer_that_falls_behind_is_told_and_can_go_on(tmp_path: Path) -> None:
    async with open_asker(tmp_path, ring=RingLimits(events=3)) as asker:
        session = await asker.domain.start()
        asker.sent.reads = trio.Event()
        answers: list[Any] = []

        async def follow() -> None:
            arguments = {"session_id": session.id, "follow": True}
            answers.append(await asker.ask("tools/call", options=FOLLOWING, name="session_events", arguments=arguments))

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                await wait_all_tasks_blocked()
                for number in range(5):
                    session.message(str(number))
                asker.sent.reads.set()
        assert answers[0]["error"]["data"] == {"kind": "limit_exceeded"}
        assert "since_index" in answers[0]["error"]["message"]
        assert [event["index"] for event in asker.sent.events] == [1, 2]
        page = await asker.call("session_events", session_id=session.id, since_index=2)
        assert len(page["structuredContent"]["events"]) == 5
