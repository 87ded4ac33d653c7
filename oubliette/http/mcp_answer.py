"""The response to one POST of `/mcp`: a JSON object where the answer comes soon and alone, else an SSE stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from oubliette.http.request import JSON, Header, Request
from oubliette.http.stream import HEADERS, KEEP_ALIVE_SECONDS
from oubliette.mcp.methods import Answer
from oubliette.protocol.sse import KEEP_ALIVE

# An answer that is longer in coming than this, in seconds, gets a stream with comments, lest the peer gives up.
HOLD_QUIETLY: Final = 1.0


class PostAnswer:
    """The channel of a request that came by POST. It `is_over` as soon as the answer is being sent."""

    def __init__(self, request: Request) -> None:
        self.is_over = False
        self._request = request

    async def send(self, *messages: bytes) -> None:
        """Sends messages that come before the answer; the first one makes the response a stream."""
        await self._open()
        await self._request.write(b"".join([_frame(message) for message in messages]))

    async def keep_alive(self) -> None:
        """Makes the response a stream when the answer is long in coming, and writes comments into it."""
        await trio.sleep(HOLD_QUIETLY)
        while not self.is_over:
            await self._open()
            await self._request.write(KEEP_ALIVE)
            await trio.sleep(KEEP_ALIVE_SECONDS)

    async def finish(self, answer: Answer) -> None:
        """Sends the answer, and nothing after it."""
        self.is_over = True
        if self._request.status:
            await self._request.write(_frame(answer.text), more=False)
        else:
            await respond(self._request, answer)

    async def _open(self) -> None:
        if not self._request.status:
            await self._request.start(200, HEADERS)


async def hold(request: Request, work: Callable[[PostAnswer], Awaitable[Answer]], *, can_stream: bool = True) -> None:
    """Answers with what `work` returns. A peer that goes away cancels it: "closing the stream is cancellation".

    Without `can_stream` the peer reads JSON alone, so that nothing may come before the answer.
    """
    answer = PostAnswer(request)
    async with trio.open_nursery() as nursery:

        async def leave() -> None:
            await request.disconnected()
            # The end of a response is announced in the same words, while its last bytes may still be on their way.
            if not answer.is_over:
                nursery.cancel_scope.cancel(reason="the peer has gone")

        nursery.start_soon(leave)
        if can_stream:
            nursery.start_soon(answer.keep_alive)
        await answer.finish(await work(answer))
        nursery.cancel_scope.cancel(reason="the request is answered")


async def respond(request: Request, answer: Answer, *headers: Header) -> None:
    """Sends an answer as one JSON object."""
    await request.start(answer.status, [JSON, (b"content-length", b"%d" % len(answer.text)), *headers])
    await request.write(answer.text, more=False)


def _frame(message: bytes) -> bytes:
    # A message is compact JSON, which holds no line end.
    return b"event: message\ndata: %b\n\n" % message
