"""Calls of proxied tools, over servers that are fake (issue 5, item 6; HAZARDS F31)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from oubliette.errors import (
    InvalidParams,
    LimitExceeded,
    NotFound,
    OublietteError,
    ServerDisconnected,
    ServerError,
    ServerTimeout,
)
from oubliette.upstreams.calls import MAX_RESULT_BYTES
from oubliette.upstreams.connection import MAX_IN_FLIGHT, ProgressListener, RemoteError
from tests.unit.upstreams.fake import FakeServer, Watched, running, tool


def answering(answer: bytes) -> FakeServer:
    async def call(tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
        await trio.lowlevel.checkpoint()
        return answer

    return FakeServer(answer=call)


async def never(tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
    await trio.sleep_forever()
    raise AssertionError


async def refusal(upstreams: Watched, *call: Any) -> OublietteError:
    with pytest.raises(OublietteError) as caught:
        await upstreams.call(*call)
    return caught.value


async def test_the_result_is_the_server_s_text(autojump_clock: MockClock) -> None:
    text = b'{ "content": [], "structuredContent": {"a": 1.10, "b": 1e400}, "_meta": {"x": null} }'
    upstreams = Watched(one=answering(text))
    async with running(upstreams):
        assert await upstreams.call("one", "echo", b"{}") == text


async def test_the_arguments_are_on_one_line_and_otherwise_as_they_came(autojump_clock: MockClock) -> None:
    got: list[bytes] = []

    async def note(tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
        await trio.lowlevel.checkpoint()
        got.append(arguments)
        return b"{}"

    upstreams = Watched(one=FakeServer(answer=note))
    async with running(upstreams):
        await upstreams.call("one", "echo", b'{"a":\n 1.10, "b": 1e400,\r\n"c": "\\u00e9\xc3\xa9"}')
    assert got == [b'{"a":1.10,"b":1e400,"c":"\\u00e9\xc3\xa9"}']


@pytest.mark.parametrize(
    "arguments",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"a":NaN}',
        b'{"a":1,"a":2}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":%b}' % (b"[" * 200 + b"]" * 200),
    ],
)
async def test_arguments_that_are_no_json_object_never_reach_the_server(
    autojump_clock: MockClock, arguments: bytes
) -> None:
    upstreams = Watched(one=FakeServer(answer=never))
    async with running(upstreams):
        error = await refusal(upstreams, "one", "echo", arguments)
    assert isinstance(error, InvalidParams)
    assert (error.field, error.retry_safe) == ("arguments", True)


async def test_what_there_is_not_is_not_found(autojump_clock: MockClock) -> None:
    upstreams = Watched(one=FakeServer(), two=FakeServer())
    async with running(upstreams):
        error = await refusal(upstreams, "three", "echo", b"{}")
        assert isinstance(error, NotFound)
        assert error.message.startswith("unknown server 'three'; configured: one, two;")
        error = await refusal(upstreams, "one", "ECHO", b"{}")
        assert isinstance(error, NotFound)
        assert error.message.startswith("server 'one' offers no tool 'ECHO';")


async def test_a_tool_that_was_left_out_cannot_be_called(autojump_clock: MockClock) -> None:
    upstreams = Watched(one=FakeServer(tools=[tool("a.b"), tool("a_b")]))
    async with running(upstreams):
        assert isinstance(await refusal(upstreams, "one", "a.b", b"{}"), NotFound)


async def test_a_server_that_is_away_is_named_with_the_reason(autojump_clock: MockClock) -> None:
    server = FakeServer()
    upstreams = Watched(one=server)
    async with running(upstreams):
        server.refusals = [RemoteError("nobody answers") for _ in range(100)]
        server.attempt.fate.end("its process was ended by signal 9")
        await trio.testing.wait_all_tasks_blocked()
        error = await refusal(upstreams, "one", "echo", b"{}")
        assert isinstance(error, ServerDisconnected)
        assert error.message == (
            "server 'one' is not connected: its process was ended by signal 9; "
            "the tool was not called, it is safe to retry"
        )
        assert error.retry_safe is True


async def test_a_call_under_way_ends_with_its_connection(autojump_clock: MockClock) -> None:
    server = FakeServer(answer=never)
    upstreams = Watched(one=server)
    async with running(upstreams), trio.open_nursery() as nursery:

        async def lose() -> None:
            await trio.sleep(1)
            server.attempt.fate.end("it is dead")

        nursery.start_soon(lose)
        error = await refusal(upstreams, "one", "echo", b"{}")
        assert isinstance(error, ServerDisconnected)
        assert error.message == "tool 'echo' of server 'one' was lost: it is dead; the tool may already have run"
        assert error.retry_safe is False


async def test_a_call_under_way_outlives_its_tool(autojump_clock: MockClock) -> None:
    """HAZARDS F31: "in-flight finishes; new call `unknown_tool`"."""

    async def slow(tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
        await trio.sleep(5)
        return b'{"content":[]}'

    server = FakeServer(answer=slow)
    upstreams = Watched(one=server)
    results: list[bytes] = []
    async with running(upstreams), trio.open_nursery() as nursery:

        async def call() -> None:
            results.append(await upstreams.call("one", "echo", b"{}"))

        nursery.start_soon(call)
        await trio.sleep(1)
        server.tools = []
        server.attempt.on_list_changed()
        await trio.sleep(1)
        assert isinstance(await refusal(upstreams, "one", "echo", b"{}"), NotFound)
    assert results == [b'{"content":[]}']


async def test_a_call_that_takes_too_long_is_ended(autojump_clock: MockClock) -> None:
    upstreams = Watched(one=FakeServer(answer=never))
    async with running(upstreams):
        started = trio.current_time()
        error = await refusal(upstreams, "one", "echo", b"{}")
        assert isinstance(error, ServerTimeout)
        assert error.message == "tool 'echo' of server 'one' timed out after 60 s; the tool may already have run"
        assert (error.code, error.kind, error.retry_safe) == (-32004, "server_timeout", False)
        assert trio.current_time() - started == 60


async def test_the_server_s_own_error_is_told_in_its_words(autojump_clock: MockClock) -> None:
    async def refuse(tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
        await trio.lowlevel.checkpoint()
        raise RemoteError("no\u202e such \x1b[31mplace" + "!" * 1000, -32602)

    upstreams = Watched(one=FakeServer(answer=refuse))
    async with running(upstreams):
        error = await refusal(upstreams, "one", "echo", b"{}")
    assert isinstance(error, ServerError)
    assert error.message.startswith("tool 'echo' of server 'one' answered with an error: no such place!")
    assert len(error.message) < 600


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (b'"%b"' % (b"x" * MAX_RESULT_BYTES), "has 4194306 bytes; at most 4194304 can be passed on"),
        (b"[" * 127 + b"]" * 127, "is nested deeper than 126 levels"),
    ],
)
async def test_a_result_that_no_link_can_carry_is_refused(autojump_clock: MockClock, result: bytes, why: str) -> None:
    upstreams = Watched(one=answering(result))
    async with running(upstreams):
        error = await refusal(upstreams, "one", "echo", b"{}")
    assert isinstance(error, ServerError)
    assert error.message == f"the result of tool 'echo' of server 'one' {why}; the tool may already have run"


async def test_calls_under_way_are_bounded(autojump_clock: MockClock) -> None:
    upstreams = Watched(one=FakeServer(answer=never))
    async with running(upstreams), trio.open_nursery() as nursery:
        for _ in range(MAX_IN_FLIGHT):
            nursery.start_soon(upstreams.call, "one", "echo", b"{}")
        await trio.testing.wait_all_tasks_blocked()
        error = await refusal(upstreams, "one", "echo", b"{}")
        assert isinstance(error, LimitExceeded)
        assert error.message.startswith("64 calls are under way at server 'one' already;")
        assert error.retry_safe is True
        nursery.cancel_scope.cancel()
        await trio.lowlevel.cancel_shielded_checkpoint()
    async with running(Watched(one=FakeServer())):
        pass


async def test_calls_that_ended_make_room(autojump_clock: MockClock) -> None:
    upstreams = Watched(one=FakeServer(answer=never))
    async with running(upstreams):
        for _ in range(2 * MAX_IN_FLIGHT):
            with trio.move_on_after(0.1) as scope:
                await upstreams.call("one", "echo", b"{}")
            assert scope.cancelled_caught


async def test_progress_rises_and_is_clean(autojump_clock: MockClock) -> None:
    """MCP: "The progress value MUST increase with each notification"."""

    async def report(tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
        await trio.lowlevel.checkpoint()
        for done in (1, 3, 2, 3, math.nan, math.inf, 4):
            on_progress(done, math.inf if done == 4 else 9, f"at\x1b[31m {done}\n")
        on_progress(5, None, None)
        return b"{}"

    told: list[Any] = []
    upstreams = Watched(one=FakeServer(answer=report))
    async with running(upstreams):
        await upstreams.call("one", "echo", b"{}", lambda *news: told.append(news))
    assert told == [(1, 9, "at 1"), (3, 9, "at 3"), (4, None, "at 4"), (5, None, None)]
