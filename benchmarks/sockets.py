"""One MCP session over WebSocket, as the load processes have it: it blocks while it is set up, and never after that."""

from __future__ import annotations

from typing import Final

import msgspec

from benchmarks import loop
from benchmarks.doors import HELLO, Server, rpc_request
from benchmarks.websocket import HANDSHAKE, FrameReader, text_frame


class Response(msgspec.Struct):
    """A message as far as it may be a response: `id` is None in a notification."""

    id: int | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


decode_response: Final = msgspec.json.Decoder(Response).decode


class McpSocket:
    """A connection to `/mcp` of a server. Raises `ValueError` where that refuses it."""

    def __init__(self, server: Server) -> None:
        self._sock = server.connect()
        self._reader = FrameReader()
        self._number = 0
        self._sock.sendall(server.request("GET", "/mcp", HANDSHAKE))
        while self._reader.status is None:
            self._reader.feed(loop.receive(self._sock))
        self.ask("initialize", HELLO)
        self.send(msgspec.json.encode({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    def fileno(self) -> int:
        """Returns the descriptor, for a loop to watch."""
        return self._sock.fileno()

    def ask(self, method: str, params: object) -> msgspec.Raw:
        """Sends a request and blocks until its result, which it returns. What comes before it is dropped."""
        number = self.next_id()
        self.send(msgspec.json.encode(rpc_request(method, params, number)))
        while True:
            for text in self.receive():
                response = decode_response(text)
                if response.id == number and not response.result:
                    raise ValueError(f"{method} was answered with {text!r}")
                if response.id == number:
                    return response.result

    def next_id(self) -> int:
        """Returns an id for a request that no other one of this connection has."""
        self._number += 1
        return self._number

    def send(self, text: bytes) -> None:
        """Sends one message. Raises `BlockingIOError` as `loop.send` does."""
        loop.send(self._sock, text_frame(text))

    def receive(self) -> list[bytes]:
        """Returns the messages of one read, and answers pings. Raises `ConnectionError` when the connection is over."""
        messages = self._reader.feed(loop.receive(self._sock))
        if self._reader.reply:
            loop.send(self._sock, self._reader.reply)
            self._reader.reply = b""
        return messages

    def stop_blocking(self) -> None:
        """Ends the set-up: from here on the connection is watched."""
        self._sock.setblocking(False)
