"""An MCP client of revision 2026-07-28 over HTTP by hand: each request stands for itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from oubliette.protocol.mcp_headers import NAMED_BY, encode
from tests.helpers.http import Api, EventReader, Reply
from tests.helpers.mcp_http import ACCEPT
from tests.helpers.mcp_socket import LOGGED, META

VERSION = "2026-07-28"
SUPPORTED = [VERSION, "2025-11-25", "2025-06-18", "2025-03-26"]
PREFIX = "io.modelcontextprotocol/"


def message_of(method: str, *, id: Any = 1, meta: Any = META, **params: Any) -> Any:
    """A request with its `_meta`."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {"_meta": meta, **params}}


def headers_of(message: Any) -> dict[str, str]:
    """The headers that repeat a message."""
    headers = {"Accept": ACCEPT, "MCP-Protocol-Version": VERSION, "Mcp-Method": message["method"]}
    named = NAMED_BY.get(message["method"])
    return headers if named is None else {**headers, "Mcp-Name": encode(message["params"][named]).decode()}


class Response:
    """The response stream of one request."""

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader

    async def next(self) -> Any:
        """Returns the next message. Raises `EndOfChannel` behind the last one."""
        return json.loads((await self._reader.next()).data)

    async def next_of(self, kind: str) -> Any:
        """Returns the next event of a type; other messages are passed over."""
        _, message = await self._reader.next_of(kind)
        return message["params"]["data"]

    async def rest(self) -> list[Any]:
        """Returns the messages up to the end of the stream."""
        found = []
        while True:
            try:
                found.append(await self.next())
            except trio.EndOfChannel:
                return found


class StatelessMcp:
    """Requests of the api's principal."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def post(self, message: Any, headers: Mapping[str, str | None] | None = None) -> Reply:
        """Posts a message with the headers that repeat it; those that are given go over them, None leaves one out."""
        chosen = {**headers_of(message), **(headers or {})}
        return await self.api.request("POST", "/mcp", message, {k: v for k, v in chosen.items() if v is not None})

    async def request(self, method: str, **params: Any) -> Any:
        """Returns the result of a request that must succeed with one JSON object."""
        reply = await self.post(message_of(method, **params))
        assert reply.status == 200, reply.body
        return reply.json["result"]

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Calls a tool and returns its `CallToolResult`."""
        return await self.request("tools/call", name=tool, arguments=arguments)

    async def start(self, *tools: str) -> Any:
        """Starts an external session that offers `tools`; returns it."""
        context = {"caller_id": "myapp", "caller_tools": [{"name": tool} for tool in tools]}
        result = await self.call("session_message", message="hi", agent="external", context=context)
        return result["structuredContent"]

    async def answer(self, event: Any, **outcome: Any) -> Any:
        """Answers a `caller_tool_request`."""
        named = {"session_id": event["session_id"], "request_id": event["request_id"]}
        return await self.call("caller_tool_response", **named, **outcome)

    @asynccontextmanager
    async def stream(self, method: str, *, meta: Any = LOGGED, **params: Any) -> AsyncIterator[Response]:
        """Posts a request and reads its response stream; leaving closes it."""
        message = message_of(method, meta=meta, **params)
        async with self.api._open("POST", "/mcp", message, headers_of(message)) as connection:
            assert (connection.status, connection.headers["content-type"][:17]) == (200, "text/event-stream")
            yield Response(EventReader(connection))

    @asynccontextmanager
    async def calling(self, tool: str, **arguments: Any) -> AsyncIterator[Response]:
        """Calls a tool whose answer is a stream of events; leaving closes it."""
        async with self.stream("tools/call", name=tool, arguments=arguments) as response:
            yield response


async def another(mcp: StatelessMcp, scope: str = "admin") -> StatelessMcp:
    """Returns another principal, whose token has that scope."""
    created = (await mcp.call("token_create", name="another", scope=scope))["structuredContent"]
    return StatelessMcp(Api(mcp.api.port, created["token"]))
