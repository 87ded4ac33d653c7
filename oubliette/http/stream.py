"""The writing of a stream as SSE, shared by every route that has one (WIRE section 4.3)."""

from __future__ import annotations

from collections.abc import Callable
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
        while chunk := await _next_chunk(stream, frame):
            await request.write(chunk)
        await request.write(farewell(), more=False)
        nursery.cancel_scope.cancel(reason="the stream has ended")


async def _next_chunk(stream: Stream, frame: Frame) -> bytes:
    """Returns the next events in one piece, or a comment when there were none for a while; empty at the end.

    It is handed to the transport without a checkpoint in between, so that what the stream calls given is given.
    """
    batch: list[Entry] | None = None
    try:
        with trio.move_on_after(KEEP_ALIVE_SECONDS):
            batch = await stream.batch()
    except FellBehindError:
        stream.end()
        return FELL_BEHIND
    return KEEP_ALIVE if batch is None else b"".join(map(frame, batch))


async def _cancel_when_gone(request: Request, scope: trio.CancelScope) -> None:
    await request.disconnected()
    scope.cancel(reason="the peer has gone")
