"""A session's socket without a daemon: a caller whose tools answer as a test says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from oubliette.protocol.lines import CLOSED, NEED_DATA, LineReader

Arguments = dict[str, Any]
Answer = Callable[[str, Arguments], Awaitable[Any]]


class ToolError(Exception):
    """What a tool answers with instead of a result."""


class StubRelay:
    """The daemon's end. `calls` are the caller tools that were called, `most` how many were under way at once.

    `keys` are the API keys that clients have shown, `opened` the trio times at which they came.
    """

    def __init__(self, answer: Answer, tools: list[Any]) -> None:
        self.calls: list[tuple[str, Arguments]] = []
        self.most = 0
        self.keys: list[str] = []
        self.opened: list[float] = []
        self._answer = answer
        self._tools = tools
        self._now = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Speaks with one client (WIRE section 1)."""
        self.opened.append(trio.current_time())
        link = _Link(stream)
        try:
            async with stream, trio.open_nursery() as nursery:
                await link.send({"type": "caller_tools_config", "params": {"caller_id": "myapp", "tools": self._tools}})
                await link.send({"type": "pack_tools_config", "params": {"tools": []}})
                async for message in _messages(stream):
                    nursery.start_soon(self._take, link, message)
                nursery.cancel_scope.cancel()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # an agent that ends its client

    async def _take(self, link: _Link, message: Any) -> None:
        if message["method"] == "caller_tool":
            answer = await self._call(message["params"]["tool"], message["params"]["arguments"])
            await link.send({"id": message["id"], **answer})
        elif message["method"] == "oubliette_tools":
            self.keys.append(message["params"]["api_key"])
            await link.send({"id": message["id"], "result": {"tools": []}})
        elif "id" in message:
            await link.send({"id": message["id"], "result": {"tools": []}})

    async def _call(self, tool: str, arguments: Arguments) -> dict[str, Any]:
        self.calls.append((tool, arguments))
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            return {"result": await self._answer(tool, arguments)}
        except ToolError as error:
            return {"error": {"code": -32000, "message": str(error)}}
        finally:
            self._now -= 1


class _Link:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._writing = trio.StrictFIFOLock()

    async def send(self, message: Any) -> None:
        async with self._writing:
            await self._stream.send_all(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


async def _messages(stream: trio.SocketStream) -> AsyncIterator[Any]:
    lines = LineReader(8 * 1024 * 1024)
    while (line := lines.next_event()) is not CLOSED:
        if line is NEED_DATA:
            lines.receive_data(await stream.receive_some(65536))
        elif isinstance(line, bytes):
            yield json.loads(line)


@asynccontextmanager
async def stub_relay(path: str, answer: Answer, tools: list[Any]) -> AsyncIterator[StubRelay]:
    """Opens the socket `path` as long as the block."""
    relay = StubRelay(answer, tools)
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(path)
    listening.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, relay.serve, [trio.SocketListener(listening)])
        yield relay
        nursery.cancel_scope.cancel()
