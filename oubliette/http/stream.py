"""The writing of a stream as SSE, shared by every route that has one (WIRE section 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

import trio

from oubliette.events import Entry, FellBehindError
from oubliette.http.request import Header, Request
from oubliette.protocol.sse import KEEP_ALIVE
from oubliette.streams import Stream

# WIRE section 4.3: "A comment line as keep-alive every 15 s, `X-Accel-Buffering: no`, `Cache-Control: no-store`".
KEEP_ALIVE_SECONDS: Final = 15.0
HEADERS: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
# Sent at once, so that proxies and clients see that the stream is open.
OPENED: Final = b": open\n\n"
FELL_BEHIND: Final = b": you fell behind; resume with Last-Event-ID\n\n"
TAKEN_OVER: Final = b": a newer stream has taken over\n\n"

Frame = Callable[[Entry], bytes]


def _nothing() -> bytes:
    return b""


async def write_events(
    request: Request, stream: Stream, frame: Frame, farewell: Callable[[], bytes] = _nothing
) -> None:
    """Answers `request` with a stream's events, each framed by `frame`, until the stream ends or the peer goes.

    `farewell` is asked what to say at the end. The stream is its opener's to close.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when_gone, request, nursery.cancel_scope)
        await request.start(200, HEADERS)
        await request.write(OPENED)
        try:
            await _write_batches(request, stream, frame)
        except FellBehindError:
            await request.write(FELL_BEHIND)
        await request.write(farewell(), more=False)
        nursery.cancel_scope.cancel(reason="the stream has ended")


async def _write_batches(request: Request, stream: Stream, frame: Frame) -> None:
    """Writes until the stream ends, and a comment whenever there was nothing to write for a while."""
    while True:
        # One scope for as long as there is something to write: its deadline moves, and is off while a batch is written.
        with trio.move_on_at(_next_comment()) as silence:
            while batch := await stream.batch():
                silence.deadline = inf
                # Handed over without a checkpoint in between: what the stream calls given is given.
                await request.write(b"".join(map(frame, batch)))
                silence.deadline = _next_comment()
            return
        await request.write(KEEP_ALIVE)


def _next_comment() -> float:
    """When a silence has lasted long enough, on a whole second: thousands of idle streams wake the process together."""
    return (trio.current_time() + KEEP_ALIVE_SECONDS) // 1


async def _cancel_when_gone(request: Request, scope: trio.CancelScope) -> None:
    await request.disconnected()
    scope.cancel(reason="the peer has gone")
