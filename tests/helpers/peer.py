"""A client's end of an HTTP connection that sends whatever bytes the test wants."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import trio

# Beyond every wait of the server, so that it ends a test that hangs and nothing else.
PATIENCE_SECONDS = 600
# Closing sends RST instead of FIN.
_RESET = struct.pack("ii", 1, 0)


class Peer:
    """A client's end: what is sent is bytes, what is received is h11's."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def response(self, method: str = "GET") -> tuple[int, dict[bytes, bytes], bytes]:
        """Returns the next response: status, headers, body. The connection may be used again after it."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        request = h11.Request(method=method, target="/", headers=[("Host", "localhost")])
        self._http.send(request)
        self._http.send(h11.EndOfMessage())
        head, body = await self._event(), b""
        while isinstance(piece := await self._event(), h11.Data):
            body += piece.data
        assert isinstance(head, h11.Response)
        return head.status_code, dict(head.headers), body

    async def rest(self) -> bytes:
        """Returns what comes until the end of the connection."""
        received = b""
        with trio.fail_after(PATIENCE_SECONDS):
            while data := await self.stream.receive_some(65536):
                received += data
        return received

    async def _event(self) -> Any:
        with trio.fail_after(PATIENCE_SECONDS):
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(bytes(await self.stream.receive_some(65536)))
        return event


@asynccontextmanager
async def open_peer(port: int) -> AsyncIterator[Peer]:
    """Connects to a daemon on this host."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        yield Peer(stream)


async def break_off(port: int, data: bytes, *, polite: bool = False, reads: bool = False) -> None:
    """Connects, sends `data`, reads the beginning of an answer where it is to, and breaks the connection off."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    if not polite:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    async with stream:
        await stream.send_all(data)
        if reads:
            assert await stream.receive_some(1)


async def exchange(port: int, data: bytes) -> bytes:
    """Connects, sends `data`, closes that half, and returns what comes back until the end."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        received = b""
        try:
            await stream.send_all(data)
            await stream.send_eof()
            while piece := await stream.receive_some(65536):
                received += piece
        except trio.BrokenResourceError:
            pass  # refused before it was read
        return received
