"""A proxy that gives every request a token, as the suite knows none.

It adds one header and leaves everything else alone: bytes go on as they come, in both directions, and when one side
leaves, the other is told by the end of its connection.

    serve
    └─ a connection of the suite
       ├─ its requests, with the header, to the daemon
       └─ the daemon's answers, as they are
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

import trio

HOST: Final = "127.0.0.1"
_CHUNK: Final = 64 * 1024
_END_OF_HEAD: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)


class HeaderAdder:
    """Adds a header to each request of an HTTP/1.1 connection: bytes in, bytes out.

    Bodies must have a declared length, as those of the suite have.
    """

    def __init__(self, name: str, value: str) -> None:
        self._line = f"{name}: {value}\r\n".encode()
        # At most one head, of a suite that is trusted: no bound is needed.
        self._waiting = b""
        self._body_left = 0

    def feed(self, received: bytes) -> bytes:
        """Returns what goes on by now: everything but the beginning of a head."""
        self._waiting += received
        pieces = []
        while piece := self._take_body() or self._take_head():
            pieces.append(piece)
        return b"".join(pieces)

    def _take_body(self) -> bytes:
        body, self._waiting = self._waiting[: self._body_left], self._waiting[self._body_left :]
        self._body_left -= len(body)
        return body

    def _take_head(self) -> bytes:
        head, end, rest = self._waiting.partition(_END_OF_HEAD)
        if not end:
            return b""
        self._waiting = rest
        length = _LENGTH.search(head + b"\r\n")
        self._body_left = int(length[1]) if length else 0
        request_line, _, fields = head.partition(b"\r\n")
        return b"%b\r\n%b%b%b" % (request_line, self._line, fields, end)


class TokenProxy:
    """Stands before the daemon at `port` of this machine and speaks as whoever `token` belongs to."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token

    async def serve(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until it is cancelled; started with the port that it listens on."""
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._hand_on, listeners)

    async def _hand_on(self, suite: trio.SocketStream) -> None:
        async with suite, await trio.open_tcp_stream(HOST, self._port) as daemon, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_answers, daemon, suite, nursery.cancel_scope)
            await self._pass_requests(suite, daemon)
            nursery.cancel_scope.cancel(reason="the suite has left")

    async def _pass_requests(self, suite: trio.SocketStream, daemon: trio.SocketStream) -> None:
        adder = HeaderAdder("Authorization", f"Bearer {self._token}")
        with suppress(trio.BrokenResourceError):
            while received := await suite.receive_some(_CHUNK):
                await daemon.send_all(adder.feed(received))

    async def _pass_answers(self, daemon: trio.SocketStream, suite: trio.SocketStream, both: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError):
            while received := await daemon.receive_some(_CHUNK):
                await suite.send_all(received)
        both.cancel(reason="the daemon has left")
