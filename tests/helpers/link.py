"""The agent's end of a link, spoken by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

LIMIT = 20


class AgentLink:
    """A connection to a session's socket. `configs` are the notifications that came first."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.configs: list[Any] = []
        self._buffer = bytearray()

    async def send_line(self, line: bytes) -> None:
        await self.stream.send_all(line + b"\n")

    async def send(self, message: Any) -> None:
        await self.send_line(json.dumps(message).encode())

    async def receive_line(self) -> bytes:
        """Returns the next line. Raises `EndOfChannel` when the daemon has closed the link."""
        with trio.fail_after(LIMIT):
            while b"\n" not in self._buffer:
                data = await self.stream.receive_some(65536)
                if not data:
                    raise trio.EndOfChannel
                self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line

    async def receive(self) -> Any:
        return json.loads(await self.receive_line())

    async def call(self, tool: str, arguments: Any = None, *, id: Any = 1) -> None:
        """Asks for a caller tool; the answer is the caller's to `receive`."""
        await self.ask("caller_tool", {"tool": tool, "arguments": arguments or {}}, id=id)

    async def ask(self, method: str, params: Any, *, id: Any = 1) -> None:
        """Sends a request; the answer is the caller's to `receive`."""
        await self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


@asynccontextmanager
async def open_link(socket: str) -> AsyncIterator[AgentLink]:
    """Connects to a session's socket and takes the two notifications that come first."""
    async with await trio.open_unix_socket(socket) as stream:
        link = AgentLink(stream)
        link.configs = [await link.receive(), await link.receive()]
        yield link
