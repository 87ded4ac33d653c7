"""An MCP client over WebSocket by hand, with wsproto for the frames."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, RejectConnection, RejectData, TextMessage
from wsproto.events import Request as Upgrade

from tests.helpers.http import Api

LIMIT = 20
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
LOGGED = {**META, "io.modelcontextprotocol/logLevel": "info"}


class RefusedError(Exception):
    """The daemon answered the handshake with something else than 101."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


class McpSocketClient:
    """One connection; what comes is kept until it is asked for, in the order in which it came."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.ws = WSConnection(ConnectionType.CLIENT)
        self.closed: CloseConnection | None = None
        self.subprotocol: str | None = None
        self._waiting: deque[Any] = deque()
        self._text = ""
        self._refusal = (0, b"")
        self._id = 0

    async def handshake(self, host: str, headers: Mapping[str, str], subprotocols: list[str]) -> None:
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send_event(Upgrade(host=host, target="/mcp", subprotocols=subprotocols, extra_headers=extra))
        while self.subprotocol is None:
            await self._read()

    async def send_event(self, event: Any) -> None:
        await self.stream.send_all(self.ws.send(event))

    async def send_text(self, text: str) -> None:
        await self.send_event(TextMessage(data=text))

    async def send(self, message: Any) -> None:
        await self.send_text(json.dumps(message))

    async def ask(self, method: str, *, id: Any = None, **params: Any) -> Any:
        """Sends a request and returns its id."""
        self._id += 1
        chosen = self._id if id is None else id
        await self.send({"jsonrpc": "2.0", "id": chosen, "method": method, "params": params})
        return chosen

    async def request(self, method: str, **params: Any) -> Any:
        """Sends a request and returns its response; what comes before that is kept."""
        id = await self.ask(method, **params)
        return await self.response(id)

    async def call(self, tool: str, meta: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        """Calls a tool and returns its `CallToolResult`."""
        common = {} if meta is None else {"_meta": meta}
        return (await self.request("tools/call", name=tool, arguments=arguments, **common))["result"]

    async def initialize(self, revision: str = "2025-11-25") -> Any:
        client = {"name": "test", "version": "1"}
        answer = await self.request("initialize", protocolVersion=revision, capabilities={}, clientInfo=client)
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    async def start(self, *tools: str, meta: Mapping[str, Any] | None = None) -> Any:
        """Starts an external session that offers `tools`; returns it."""
        context = {"caller_id": "myapp", "caller_tools": [{"name": tool} for tool in tools]}
        result = await self.call("session_message", meta, message="hi", agent="external", context=context)
        return result["structuredContent"]

    async def response(self, id: Any) -> Any:
        return await self._first(lambda message: "method" not in message and message["id"] == id)

    async def array(self) -> Any:
        """Returns the answers to a batch."""
        return await self._first(lambda message: isinstance(message, list))

    async def notification(self, method: str) -> Any:
        """Returns the params of the next notification of `method`."""
        return (await self._first(lambda message: message.get("method") == method))["params"]

    async def event(self, kind: str) -> Any:
        """Returns the next event of a session that is of type `kind`."""
        method = "notifications/message"
        found = await self._first(lambda it: it.get("method") == method and it["params"]["data"]["type"] == kind)
        return found["params"]["data"]

    async def close_code(self) -> int:
        """Waits until the daemon closes; returns the code."""
        with trio.fail_after(LIMIT):
            while self.closed is None:
                await self._read()
        return self.closed.code

    async def _first(self, wanted: Any) -> Any:
        with trio.fail_after(LIMIT):
            while True:
                for message in self._waiting:
                    if wanted(message):
                        self._waiting.remove(message)
                        return message
                await self._read()

    async def _read(self) -> None:
        data = await self.stream.receive_some(65536)
        self.ws.receive_data(bytes(data) or None)
        for event in self.ws.events():
            await self._take(event)
        if not data and self.closed is None:
            raise trio.EndOfChannel

    async def _take(self, event: Any) -> None:
        match event:
            case AcceptConnection():
                self.subprotocol = event.subprotocol
            case RejectConnection():
                self._refusal = (event.status_code, b"")
            case RejectData():
                self._refusal = (self._refusal[0], self._refusal[1] + bytes(event.data))
                if event.body_finished:
                    raise RefusedError(*self._refusal)
            case TextMessage():
                self._text += event.data
                if event.message_finished:
                    self._waiting.append(json.loads(self._text))
                    self._text = ""
            case Ping():
                await self.send_event(event.response())
            case CloseConnection():
                if self.closed is None:
                    self.closed = event


@asynccontextmanager
async def open_socket(
    api: Api, *, headers: Mapping[str, str] | None = None, subprotocols: tuple[str, ...] = ("mcp",)
) -> AsyncIterator[McpSocketClient]:
    """Opens a WebSocket of the api's principal. Raises `RefusedError` where the daemon refuses the handshake."""
    async with await trio.open_tcp_stream("127.0.0.1", api.port) as stream:
        client = McpSocketClient(stream)
        given = {"Authorization": f"Bearer {api.token}", **(headers or {})}
        with trio.fail_after(LIMIT):
            await client.handshake(f"127.0.0.1:{api.port}", given, list(subprotocols))
        yield client
