"""The two peers of the client, as a test drives them: an agent and a daemon on memory streams."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from oubliette_client.key import ApiKey
from oubliette_client.run import serve
from oubliette_client.tools import OWN
from trio.testing import memory_stream_pair

from oubliette.protocol.lines import CLOSED, NEED_DATA, LineReader

Message = dict[str, Any]
STATELESS = "2026-07-28"
# What every request of the stateless era says of itself in `_meta`.
ENVELOPE: Message = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
}
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
# Beyond every wait of the client, so that it ends a test that hangs and nothing else.
PATIENCE_SECONDS = 120


class Peer:
    """One end of a stream of lines."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._reader = LineReader(64 * 1024 * 1024)

    async def send(self, *messages: Message | bytes) -> None:
        lines = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in messages]
        await self.stream.send_all(b"".join(line + b"\n" for line in lines))

    async def receive_line(self) -> bytes:
        """Returns the next line, b"" at the end of the stream."""
        with trio.fail_after(PATIENCE_SECONDS):
            while (event := self._reader.next_event()) is NEED_DATA:
                self._reader.receive_data(bytes(await self.stream.receive_some()))
        if event is CLOSED:
            return b""
        assert isinstance(event, bytes)
        return event

    async def receive(self) -> Any:
        line = await self.receive_line()
        assert line, "the stream ended"
        return json.loads(line)

    async def is_silent(self, seconds: float) -> bool:
        """Says whether nothing comes for so long."""
        with trio.move_on_after(seconds) as scope:
            await self.receive_line()
        return scope.cancelled_caught


class Agent(Peer):
    """What an agent says."""

    async def ask(self, id: Any, method: str, params: Message | None = None) -> None:
        await self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})

    async def call(self, id: Any, name: str, arguments: Any = None, token: Any = None) -> None:
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        await self.ask(id, "tools/call", {"name": name, "arguments": arguments or {}, **meta})

    async def ask_stateless(self, id: Any, method: str, params: Message | None = None, **meta: Any) -> None:
        """Asks as an agent of the stateless era does."""
        await self.ask(id, method, {**(params or {}), "_meta": {**ENVELOPE, **meta}})

    async def call_stateless(self, id: Any, name: str, arguments: Any = None, **meta: Any) -> None:
        await self.ask_stateless(id, "tools/call", {"name": name, "arguments": arguments or {}}, **meta)

    async def cancel(self, id: Any) -> None:
        params = {"requestId": id, "reason": "changed my mind"}
        await self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def initialize(self, revision: str = "2025-11-25") -> Message:
        """Goes through the handshake and returns the result of `initialize`."""
        await self.ask("init", "initialize", {"protocolVersion": revision, "capabilities": {}})
        answer = await self.receive()
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        result: Message = answer["result"]
        return result

    async def tools(self) -> dict[str, Message]:
        """Returns what `tools/list` shows beside the client's own tools, by name."""
        await self.ask("list", "tools/list")
        return beside_own((await self.receive())["result"]["tools"])


class DaemonEnd(Peer):
    """What the daemon says on one connection."""

    async def declare(self, *tools: Message, caller_id: str | None = "ant") -> None:
        params = {"caller_id": caller_id, "tools": list(tools)}
        await self.send({"jsonrpc": "2.0", "type": "caller_tools_config", "params": params})

    async def offer(self, *tools: Message) -> None:
        await self.send({"jsonrpc": "2.0", "type": "pack_tools_config", "params": {"tools": list(tools)}})

    async def configure(self, *names: str) -> None:
        """Declares caller tools of these names and no pack tool."""
        await self.declare(*({"name": name} for name in names))
        await self.offer()

    async def answer(self, request: Message, result: Any) -> None:
        await self.send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    async def fail(self, id: Any, code: int, message: str) -> None:
        error = {"code": code, "message": message, "data": {"kind": "test", "retry_safe": True}}
        await self.send({"jsonrpc": "2.0", "id": id, "error": error})

    async def report(self, request: Message, **progress: Any) -> None:
        params = {"request": request["id"], **progress}
        await self.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


class Counted(trio.abc.ReceiveStream):
    """A stream that counts what is read of it."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self.read_bytes = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        self.read_bytes += len(data)
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()


class Daemon:
    """The daemon's socket: each connection of the client can be accepted once."""

    def __init__(self) -> None:
        self.refusal: OSError | None = None
        self.attempts: list[float] = []
        self._accepted, self._connections = trio.open_memory_channel[DaemonEnd](math.inf)

    async def connect(self, path: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.attempts.append(trio.current_time())
        if self.refusal is not None:
            raise self.refusal
        ours, theirs = memory_stream_pair()
        self._accepted.send_nowait(DaemonEnd(ours))
        self.read = Counted(theirs.receive_stream)
        return trio.StapledStream(theirs.send_stream, self.read)

    async def accept(self) -> DaemonEnd:
        with trio.fail_after(PATIENCE_SECONDS):
            return await self._connections.receive()


def beside_own(listed: list[Message]) -> dict[str, Message]:
    """Returns the tools of a list by name, without those that every client has."""
    assert {tool.name for tool in OWN} <= {tool["name"] for tool in listed}
    return {tool["name"]: tool for tool in listed if tool["name"] not in {own.name for own in OWN}}


@asynccontextmanager
async def client(daemon: Daemon | None = None, key: str | None = None) -> AsyncIterator[tuple[Agent, Daemon]]:
    """Runs a client between an agent and a daemon; leaving ends it."""
    daemon = daemon or Daemon()
    agent_end, client_end = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        api_key = None if key is None else ApiKey(key)
        nursery.start_soon(serve, "/the/socket", client_end, client_end, daemon.connect, api_key)
        yield Agent(agent_end), daemon
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def ready_client(*tools: str, revision: str = "2025-11-25") -> AsyncIterator[tuple[Agent, DaemonEnd, Daemon]]:
    """Runs a client whose agent has been told the caller tools `ant_{tool}`."""
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.configure(*tools)
        await agent.initialize(revision)
        assert list(await agent.tools()) == [f"ant_{tool}" for tool in tools]
        yield agent, link, daemon


def text_of(answer: Message) -> str:
    """Returns the text of the only block of a tool result."""
    [block] = answer["result"]["content"]
    text: str = block["text"]
    return text
