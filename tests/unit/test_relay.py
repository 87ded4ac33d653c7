"""A caller-tool request's life (WIRE section 3; HAZARDS F4-F11, F24). Times are virtual and exact."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.errors import (
    CallerDisconnected,
    CallerTimeout,
    CallerToolError,
    Conflict,
    InvalidParams,
    LimitExceeded,
    NotFound,
    OublietteError,
    RequestCancelled,
)
from oubliette.relay import REMEMBERED, Progress
from tests.helpers.relay import Asked, RelayBench

MAY_HAVE_RUN = "the tool may already have run"
SAFE = "the caller never got the request, it is safe to retry"


@asynccontextmanager
async def open_bench(*tools: Any, **limits: Any) -> AsyncIterator[RelayBench]:
    """Opens a bench; whatever is still pending at the end is ended as `agent_gone`."""
    async with trio.open_nursery() as tasks:
        yield RelayBench(tasks, *tools, **limits)
        tasks.cancel_scope.cancel()


async def until(moment: float) -> None:
    """Sleeps until `moment`, and until what happens then has happened."""
    await trio.sleep_until(moment)
    await wait_all_tasks_blocked()


# The table of section 3


@pytest.mark.parametrize("text", [b"null", b'{"n":1.10,"b":[1e400]}', b'"x"', b"0", b'{"error":"no error at all"}'])
async def test_a_response_with_a_result_reaches_the_agent_unchanged(autojump_clock: MockClock, text: bytes) -> None:
    """Also FIELD section 2, defect 11: a result with a key `error` is a result."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        await trio.sleep(1.5)
        bench.relay.resolve(asked.id, text)
        await wait_all_tasks_blocked()
        assert (asked.outcome, asked.ended_at) == (text, 1.5)
        (closing,) = bench.closings(asked)
        assert (closing["type"], closing["is_error"]) == ("caller_tool_resolved", False)
        assert closing["duration_ms"] == 1500


async def test_a_result_of_many_lines_becomes_one(autojump_clock: MockClock) -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send", b'{\n "a" : 1.10}')
        bench.relay.resolve(asked.id, b'{\r\n "b" :\n 2.50}')
        await wait_all_tasks_blocked()
        assert asked.outcome == b'{"b":2.50}'
        assert b'"arguments":{"a":1.10}' in bench.records.stored[0].data


@pytest.mark.parametrize("text", ["recipient not found", ""])
async def test_a_response_with_an_error_is_the_callers_own_text(autojump_clock: MockClock, text: str) -> None:
    """FIELD section 2, defect 11: an error is never told as a success."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        bench.relay.resolve(asked.id, CallerToolError(text))
        await wait_all_tasks_blocked()
        assert (asked.error.code, asked.error.message, asked.error.retry_safe) == (-32000, text, False)
        (closing,) = bench.closings(asked)
        assert (closing["type"], closing["is_error"]) == ("caller_tool_resolved", True)


def lose_caller(bench: RelayBench, asked: Asked) -> None:
    bench.relay.detach()


def cancel(bench: RelayBench, asked: Asked) -> None:
    bench.relay.cancel(asked.pending)


def end_session(bench: RelayBench, asked: Asked) -> None:
    bench.relay.close()


ENDINGS: list[Any] = [
    pytest.param(lose_caller, CallerDisconnected, -32003, "caller disconnected", "disconnected", id="caller"),
    pytest.param(
        cancel, RequestCancelled, -32800, "the agent cancelled the request", "agent_cancelled", id="cancelled"
    ),
    pytest.param(end_session, RequestCancelled, -32800, "the session has ended", "session_ended", id="session"),
]


@pytest.mark.parametrize(("end", "error", "code", "words", "reason"), ENDINGS)
@pytest.mark.parametrize("given", [False, True])
async def test_an_ending_says_why_and_whether_the_tool_may_have_run(
    autojump_clock: MockClock,
    end: Callable[[RelayBench, Asked], None],
    error: type[OublietteError],
    code: int,
    words: str,
    reason: str,
    given: bool,
) -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        await trio.sleep(2)
        if given:
            bench.relay.give(asked.index)
        end(bench, asked)
        await wait_all_tasks_blocked()
        assert type(asked.error) is error
        assert (asked.error.code, asked.error.retry_safe) == (code, not given)
        assert asked.error.message == f"{words}; {MAY_HAVE_RUN if given else SAFE}"
        assert asked.ended_at == 2.0
        (closing,) = bench.closings(asked)
        assert (closing["reason"], closing["duration_ms"]) == (reason, 2000)
        assert bench.relay.pending_entries() == []


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("tool", "seconds"), [("slow", 60), ("quick", 0.1), ("long", 3600)])
async def test_the_deadline_is_the_tools_own(autojump_clock: MockClock, tool: str, seconds: float, given: bool) -> None:
    """FIELD section 2, defect 1: the deadline of 60 s is reached, and is the only one."""
    quick, long = {"name": "quick", "timeout_seconds": 0.1}, {"name": "long", "timeout_seconds": 3600}
    async with open_bench("slow", quick, long) as bench:
        bench.relay.attach()
        asked = bench.ask(tool)
        if given:
            bench.relay.give(asked.index)
        await until(seconds - 0.001)
        assert not asked.has_ended
        await until(seconds)
        assert isinstance(asked.error, CallerTimeout)
        assert asked.ended_at == seconds
        words = MAY_HAVE_RUN if given else SAFE
        assert asked.error.message == f"caller tool {tool!r} timed out after {seconds:g} s; {words}"
        assert (asked.error.code, asked.error.retry_safe) == (-32004, not given)
        assert bench.events[0]["timeout_seconds"] == seconds
        (closing,) = bench.closings(asked)
        assert (closing["reason"], closing["duration_ms"]) == ("timeout", seconds * 1000)


async def test_an_agent_that_goes_ends_its_requests_alone(autojump_clock: MockClock) -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        gone, stays = bench.ask("send"), bench.ask("send")
        await trio.sleep(1)
        gone.scope.cancel()
        await wait_all_tasks_blocked()
        assert (gone.scope.cancelled_caught, gone.outcome) == (True, None)
        (closing,) = bench.closings(gone)
        assert (closing["type"], closing["reason"]) == ("caller_tool_cancelled", "agent_gone")
        assert bench.closings(stays) == []
        with pytest.raises(Conflict):
            bench.relay.resolve(gone.id, b"1")
        bench.relay.resolve(stays.id, b"2")


# Who is connected


async def test_without_a_stream_a_call_fails_at_once(autojump_clock: MockClock) -> None:
    """FIELD section 2, defect 7: the agent never waits for a caller that hears nothing."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        bench.relay.detach()
        with pytest.raises(CallerDisconnected) as refused:
            bench.relay.begin("send", b"{}")
        assert (refused.value.retry_safe, refused.value.message) == (True, f"caller disconnected; {SAFE}")
        assert trio.current_time() == 0.0
        assert bench.events == []


async def test_before_the_first_stream_a_call_waits_ten_seconds(autojump_clock: MockClock) -> None:
    async with open_bench("send") as bench:
        first = bench.ask("send")
        await trio.sleep(4)
        second = bench.ask("send")
        await until(9.999)
        assert not first.has_ended
        await until(10)
        assert (first.error.kind, first.error.retry_safe, first.ended_at) == ("caller_disconnected", True, 10.0)
        assert not second.has_ended
        await until(14)
        assert (second.error.kind, second.ended_at) == ("caller_disconnected", 14.0)


async def test_a_first_stream_in_time_keeps_what_waits(autojump_clock: MockClock) -> None:
    async with open_bench("send") as bench:
        asked = bench.ask("send")
        await trio.sleep(9.9)
        bench.relay.attach()
        await until(59)
        assert not asked.has_ended
        await until(60)
        assert (asked.error.kind, asked.ended_at) == ("caller_timeout", 60.0)


async def test_a_tools_own_deadline_may_come_before_the_attach_grace(autojump_clock: MockClock) -> None:
    async with open_bench({"name": "quick", "timeout_seconds": 5}) as bench:
        asked = bench.ask("quick")
        await until(5)
        assert (asked.error.kind, asked.error.retry_safe, asked.ended_at) == ("caller_timeout", True, 5.0)


async def test_without_a_grace_the_last_streams_loss_ends_what_is_pending_at_once(autojump_clock: MockClock) -> None:
    """FIELD section 2, defect 8: the caller is watched while a call is pending."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        bench.relay.attach()
        asked = bench.ask("send")
        bench.relay.detach()
        await until(5)
        assert not asked.has_ended
        bench.relay.detach()
        await wait_all_tasks_blocked()
        assert (asked.error.kind, asked.ended_at) == ("caller_disconnected", 5.0)


async def test_within_the_disconnect_grace_a_caller_may_come_back(autojump_clock: MockClock) -> None:
    async with open_bench("send", disconnect_grace=3) as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        bench.relay.detach()
        await until(2.999)
        bench.relay.attach()
        await until(20)
        assert not asked.has_ended
        bench.relay.detach()
        await until(22.999)
        assert not asked.has_ended
        await until(23)
        assert (asked.error.kind, asked.ended_at) == ("caller_disconnected", 23.0)


async def test_within_the_disconnect_grace_new_calls_fail_at_once(autojump_clock: MockClock) -> None:
    async with open_bench("send", disconnect_grace=3) as bench:
        bench.relay.attach()
        bench.relay.detach()
        await trio.sleep(1)
        with pytest.raises(CallerDisconnected):
            bench.relay.begin("send", b"{}")


async def test_the_deadline_may_come_within_the_disconnect_grace(autojump_clock: MockClock) -> None:
    async with open_bench({"name": "quick", "timeout_seconds": 5}, disconnect_grace=100) as bench:
        bench.relay.attach()
        asked = bench.ask("quick")
        await trio.sleep(1)
        bench.relay.detach()
        await until(5)
        assert (asked.error.kind, asked.ended_at) == ("caller_timeout", 5.0)


@pytest.mark.parametrize("grace", [0, 3])
async def test_a_poll_counts_for_a_while_after_it_returned(autojump_clock: MockClock, grace: float) -> None:
    async with open_bench("send", disconnect_grace=grace) as bench:
        bench.relay.attach()
        before = bench.ask("send")
        bench.relay.detach(linger=15)
        await until(10)
        after = bench.ask("send")
        await until(15 + grace - 0.001)
        assert (before.has_ended, after.has_ended) == (False, False)
        await until(15 + grace)
        assert not bench.relay.is_attached
        assert (before.error.kind, before.ended_at) == ("caller_disconnected", 15.0 + grace)
        assert (after.error.kind, after.ended_at) == ("caller_disconnected", 15.0 + grace)


async def test_polls_that_follow_each_other_keep_a_call_waiting(autojump_clock: MockClock) -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        for _ in range(5):
            bench.relay.detach(linger=15)
            await trio.sleep(10)
            bench.relay.attach()
        await until(59.9)
        assert not asked.has_ended


async def test_a_stream_that_comes_after_the_polls_grace_is_too_late(autojump_clock: MockClock) -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        bench.relay.detach(linger=1)
        await until(1)
        bench.relay.attach()
        await wait_all_tasks_blocked()
        assert (asked.error.kind, asked.ended_at) == ("caller_disconnected", 1.0)


@pytest.mark.parametrize("streams", [0, 2])
async def test_an_owner_whose_token_is_worthless_is_not_waited_for(autojump_clock: MockClock, streams: int) -> None:
    """HAZARDS G12, F33: no grace counts, neither that of a first stream nor that of a poll or of a lost one."""
    async with open_bench("send", attach_grace=10, disconnect_grace=100) as bench:
        for _ in range(streams):
            bench.relay.attach()
        asked = bench.ask("send")
        await until(1)
        bench.relay.lose_owner()
        await wait_all_tasks_blocked()
        assert (asked.error.kind, asked.error.retry_safe, asked.ended_at) == ("caller_disconnected", True, 1.0)
        assert [event["reason"] for event in bench.closings(asked)] == ["disconnected"]
        with pytest.raises(CallerDisconnected):
            bench.relay.begin("send", b"{}")
        for _ in range(streams):
            bench.relay.detach(linger=15)
        with pytest.raises(CallerDisconnected):
            bench.relay.begin("send", b"{}")


# What is refused at once


@pytest.mark.parametrize("tool", ["nope", "myapp_send", "", "SEND"])
async def test_an_unknown_tool_is_refused_with_the_declared_names(tool: str) -> None:
    async with open_bench("send", "get") as bench:
        bench.relay.attach()
        with pytest.raises(InvalidParams) as refused:
            bench.relay.begin(tool, b"{}")
        assert refused.value.message == f"unknown caller tool {tool!r}; declared: send, get"
        assert (refused.value.field, refused.value.retry_safe) == ("tool", True)


async def test_without_a_declaration_no_tool_is_known() -> None:
    async with open_bench() as bench:
        bench.relay.declaration = None
        with pytest.raises(InvalidParams, match="declared: none"):
            bench.relay.begin("send", b"{}")


async def test_the_caller_never_hears_of_arguments_against_the_schema() -> None:
    schema = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
    async with open_bench({"name": "send", "inputSchema": schema}) as bench:
        bench.relay.attach()
        for arguments in (b'{"message":5}', b"{}", b"[]"):
            with pytest.raises(InvalidParams) as refused:
                bench.relay.begin("send", arguments)
            assert (refused.value.field, refused.value.retry_safe) == ("arguments", True)
            assert refused.value.message.endswith("the tool was not called")
        assert bench.events == []


@pytest.mark.parametrize("most", [1, 3])
async def test_pending_requests_are_bounded(most: int) -> None:
    """HAZARDS F24, G9: N-1, N, N+1."""
    async with open_bench("send", max_pending=most) as bench:
        bench.relay.attach()
        asked = [bench.ask("send") for _ in range(most)]
        with pytest.raises(LimitExceeded) as refused:
            bench.relay.begin("send", b"{}")
        assert (refused.value.code, refused.value.retry_safe) == (-32006, True)
        bench.relay.resolve(asked[0].id, b"1")
        bench.ask("send")
        with pytest.raises(LimitExceeded):
            bench.relay.begin("send", b"{}")


async def test_records_that_cannot_keep_up_refuse_new_requests_and_take_their_ends() -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        bench.records.has_room = False
        with pytest.raises(LimitExceeded) as refused:
            bench.relay.begin("send", b"{}")
        assert refused.value.retry_safe is True
        bench.relay.resolve(asked.id, b"1")
        assert len(bench.closings(asked)) == 1


# Answers


async def test_the_first_answer_wins_and_the_second_is_told() -> None:
    """HAZARDS F5."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        bench.relay.resolve(asked.id, b"1")
        for second in (b"1", b"2", CallerToolError("no")):
            with pytest.raises(Conflict) as refused:
                bench.relay.resolve(asked.id, second)
            assert refused.value.field == "request_id"
        await wait_all_tasks_blocked()
        assert asked.outcome == b"1"
        assert len(bench.closings(asked)) == 1


async def test_an_answer_after_the_deadline_changes_nothing(autojump_clock: MockClock) -> None:
    """HAZARDS F4: at T + 1 ms and at T + 1 h."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        for moment in (60.001, 3660.0):
            await until(moment)
            with pytest.raises(Conflict):
                bench.relay.resolve(asked.id, b"1")
        assert asked.error.kind == "caller_timeout"
        assert len(bench.closings(asked)) == 1


async def test_an_answer_for_an_unknown_request_is_not_found() -> None:
    async with open_bench("send") as bench:
        with pytest.raises(NotFound) as refused:
            bench.relay.resolve("0b9f1c3e-0000-4000-8000-000000000000", b"1")
        assert (refused.value.code, refused.value.field) == (-32005, "request_id")


async def test_the_last_thousand_ended_requests_are_remembered() -> None:
    """WIRE section 3, "Answers": the 1,000th last is `conflict`, the 1,001st is `not_found`."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        ids = []
        for _ in range(REMEMBERED + 1):
            ids.append(bench.relay.begin("send", b"{}").request_id)
            bench.relay.resolve(ids[-1], b"1")
        with pytest.raises(NotFound):
            bench.relay.resolve(ids[0], b"1")
        with pytest.raises(Conflict):
            bench.relay.resolve(ids[1], b"1")


async def test_an_answer_in_the_tick_of_the_deadline_that_comes_first_wins(mock_clock: MockClock) -> None:
    """HAZARDS F6, the one order: the time is over, and nobody has noticed."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        await wait_all_tasks_blocked()
        mock_clock.jump(60)
        bench.relay.resolve(asked.id, b"1")
        await wait_all_tasks_blocked()
        assert asked.outcome == b"1"
        assert [closing["type"] for closing in bench.closings(asked)] == ["caller_tool_resolved"]


async def test_an_answer_in_the_tick_of_the_deadline_that_comes_second_is_told_so(mock_clock: MockClock) -> None:
    """HAZARDS F6, the other order."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        await wait_all_tasks_blocked()
        mock_clock.jump(60)
        await wait_all_tasks_blocked()
        with pytest.raises(Conflict):
            bench.relay.resolve(asked.id, b"1")
        assert asked.error.kind == "caller_timeout"
        assert [closing["reason"] for closing in bench.closings(asked)] == ["timeout"]


async def test_answers_and_deadlines_at_the_same_moment_tell_both_sides_the_same_story(
    autojump_clock: MockClock,
) -> None:
    """HAZARDS F6: trio wakes the two in random order."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        accepted: dict[str, bool] = {}

        async def answer(asked: Asked) -> None:
            await trio.sleep_until(60)
            try:
                bench.relay.resolve(asked.id, b"1")
                accepted[asked.id] = True
            except Conflict:
                accepted[asked.id] = False

        everyone = [bench.ask("send") for _ in range(200)]
        for asked in everyone:
            bench.tasks.start_soon(answer, asked)
        await until(60)
        for asked in everyone:
            (closing,) = bench.closings(asked)
            assert (asked.outcome == b"1") is accepted[asked.id] is (closing["type"] == "caller_tool_resolved")
            assert accepted[asked.id] or asked.error.kind == "caller_timeout"
        assert set(accepted.values()) == {True, False}, "both orders happened"


async def test_an_answer_and_a_link_that_closes_at_the_same_moment(autojump_clock: MockClock) -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        await wait_all_tasks_blocked()
        bench.relay.resolve(asked.id, b"1")
        asked.scope.cancel()
        await wait_all_tasks_blocked()
        assert [closing["type"] for closing in bench.closings(asked)] == ["caller_tool_resolved"]


async def test_a_cancellation_after_the_end_changes_nothing() -> None:
    """HAZARDS F10: the race is tolerated."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        bench.relay.resolve(asked.id, b"1")
        bench.relay.cancel(asked.pending)
        await wait_all_tasks_blocked()
        assert asked.outcome == b"1"
        assert len(bench.closings(asked)) == 1


async def test_many_calls_are_answered_each_with_its_own_result() -> None:
    """FIELD section 2, defect 3: pairs by request_id, never by order."""
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = [bench.ask("send", b'{"n":%d}' % number) for number in range(100)]
        for number, one in reversed(list(enumerate(asked))):
            bench.relay.resolve(one.id, b"%d" % number)
        await wait_all_tasks_blocked()
        assert [one.outcome for one in asked] == [b"%d" % number for number in range(100)]
        assert len({one.id for one in asked}) == 100


# Progress, declarations, the end


async def test_progress_goes_to_the_link_and_does_not_extend_the_deadline(autojump_clock: MockClock) -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = bench.ask("send")
        for seconds in range(50):
            bench.relay.progress(asked.id, Progress(progress=float(seconds), total=100.0, message="working"))
            await trio.sleep(1)
        assert [report.progress for report in asked.reports] == [float(seconds) for seconds in range(50)]
        assert (asked.reports[0].total, asked.reports[0].message) == (100.0, "working")
        await until(60)
        assert asked.ended_at == 60.0
        with pytest.raises(Conflict):
            bench.relay.progress(asked.id, Progress(progress=1))
        with pytest.raises(NotFound):
            bench.relay.progress("unknown", Progress(progress=1))


async def test_a_request_goes_on_under_the_declaration_that_it_was_made_under(autojump_clock: MockClock) -> None:
    async with open_bench({"name": "send", "timeout_seconds": 5}) as bench:
        bench.relay.attach()
        before = bench.ask("send")
        bench.declare({"name": "send", "timeout_seconds": 50}, "get")
        after = bench.ask("send")
        bench.declare("get")
        with pytest.raises(InvalidParams, match="declared: get"):
            bench.relay.begin("send", b"{}")
        await until(5)
        assert (before.error.kind, after.has_ended) == ("caller_timeout", False)
        bench.relay.resolve(after.id, b"1")


async def test_the_end_of_the_session_ends_every_request_and_refuses_new_ones() -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked = [bench.ask("send") for _ in range(3)]
        bench.relay.close()
        await wait_all_tasks_blocked()
        assert [one.error.code for one in asked] == [-32800] * 3
        assert [event["request_id"] for event in bench.events[3:]] == [one.id for one in asked]
        assert {event["reason"] for event in bench.events[3:]} == {"session_ended"}
        with pytest.raises(Conflict) as refused:
            bench.relay.begin("send", b"{}")
        assert refused.value.retry_safe is True


async def test_the_pending_ones_are_told_in_index_order() -> None:
    async with open_bench("send") as bench:
        asked = [bench.ask("send") for _ in range(4)]
        bench.relay.resolve(asked[1].id, b"1")
        assert [entry.index for entry in bench.relay.pending_entries()] == [asked[n].index for n in (0, 2, 3)]


async def test_what_was_given_is_asked_by_index_and_forgotten_with_the_request() -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        asked, other = bench.ask("send"), bench.ask("send")
        bench.relay.give(asked.index)
        bench.relay.give(10**9)
        assert (asked.pending.given, other.pending.given) == (True, False)
        bench.relay.resolve(asked.id, b"1")
        bench.relay.give(asked.index)
        bench.relay.detach()
        await wait_all_tasks_blocked()
        assert other.error.retry_safe is True


async def test_call_is_begin_and_outcome() -> None:
    async with open_bench("send") as bench:
        bench.relay.attach()
        results: list[bytes] = []

        async def agent() -> None:
            results.append(await bench.relay.outcome(bench.relay.begin("send", b"{}")))

        bench.tasks.start_soon(agent)
        await wait_all_tasks_blocked()
        bench.relay.resolve(bench.events[0]["request_id"], b"[]")
        await wait_all_tasks_blocked()
        assert results == [b"[]"]
