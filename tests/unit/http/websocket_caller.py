"""The other end of a WebSocket for its tests: wsproto's client side, on memory streams and on sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import memory_stream_pair
from wsproto.connection import Connection, ConnectionType
from wsproto.events import Event, TextMessage

from oubliette.http.websocket import WebSocket
from tests.helpers.peer import PATIENCE_SECONDS, Peer

MAX_MESSAGE = 1000


class Caller:
    """The other end: what it sends is events or bytes, what it hears is wsproto's events."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._frames = Connection(ConnectionType.CLIENT)
        self._heard: list[Event] = []

    def frames(self, *events: Event) -> bytes:
        return b"".join(self._frames.send(event) for event in events)

    async def say(self, *events: Event) -> None:
        await self.stream.send_all(self.frames(*events))

    async def hear(self) -> Event | None:
        """Returns what comes next, `None` for the end of the connection."""
        with trio.fail_after(PATIENCE_SECONDS):
            while not self._heard:
                data = bytes(await self.stream.receive_some(65536))
                if not data:
                    return None
                self._frames.receive_data(data)
                self._heard += self._frames.events()
        return self._heard.pop(0)


@asynccontextmanager
async def paired(received: bytes = b"", *, max_message: int = MAX_MESSAGE) -> AsyncIterator[tuple[WebSocket, Caller]]:
    ours, theirs = memory_stream_pair()
    yield WebSocket(ours, received, max_message), Caller(theirs)


def text(message: str) -> TextMessage:
    return TextMessage(data=message)


@asynccontextmanager
async def socket_pair() -> AsyncIterator[tuple[trio.SocketStream, trio.SocketStream]]:
    ours, theirs = (trio.SocketStream(end) for end in trio.socket.socketpair())
    async with ours, theirs:
        yield ours, theirs


async def receive_all(websocket: WebSocket) -> list[bytes]:
    """Receives until the connection is over, and makes sure that it stays so."""
    found: list[bytes] = []
    while messages := await websocket.receive():
        found += messages
    assert await websocket.receive() == []
    return found


KEY = b"dGhlIHNhbXBsZSBub25jZQ=="


def handshake(**other: bytes) -> bytes:
    """RFC 6455, section 1.2; `other` replaces headers, underscores for hyphens."""
    lines = {
        b"Host": b"localhost",
        b"Authorization": b"Bearer good",
        b"Upgrade": b"websocket",
        b"Connection": b"Upgrade",
        b"Sec-WebSocket-Version": b"13",
        b"Sec-WebSocket-Key": KEY,
        b"Sec-WebSocket-Protocol": b"chat, mcp",
        **{name.replace("_", "-").encode(): value for name, value in other.items()},
    }
    return b"GET /mcp HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % line for line in lines.items()) + b"\r\n"


async def head_of(peer: Peer) -> bytes:
    """Returns the head of an answer, to the byte."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += bytes(await peer.stream.receive_some(1))
    return head
