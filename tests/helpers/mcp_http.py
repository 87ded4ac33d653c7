"""An MCP client over HTTP by hand, for what the official SDK would never send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.helpers.http import Api, EventReader, Reply

ACCEPT = "application/json, text/event-stream"


class McpHttp:
    """One MCP session of an earlier revision; `initialize` comes first."""

    def __init__(self, api: Api, revision: str = "2025-11-25") -> None:
        self.api = api
        self.revision = revision
        self.headers: dict[str, str] = {"Accept": ACCEPT}
        self._id = 0

    async def initialize(self) -> Any:
        client = {"name": "test", "version": "1"}
        params = {"protocolVersion": self.revision, "capabilities": {}, "clientInfo": client}
        reply = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert reply.status == 200, reply.body
        result = reply.json["result"]
        self.headers |= {"Mcp-Session-Id": reply.headers["mcp-session-id"]}
        if result["protocolVersion"] >= "2025-06-18":
            self.headers["MCP-Protocol-Version"] = result["protocolVersion"]
        assert (await self.notify("notifications/initialized")).status == 202
        return result

    async def post(self, message: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return await self.api.request("POST", "/mcp", message, {**self.headers, **(headers or {})})

    async def notify(self, method: str, **params: Any) -> Reply:
        return await self.post({"jsonrpc": "2.0", "method": method, "params": params})

    async def request(self, method: str, **params: Any) -> Any:
        """Sends a request and returns the whole JSON-RPC response."""
        self._id += 1
        reply = await self.post({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        assert reply.status == 200, reply.body
        assert reply.json["id"] == self._id
        return reply.json

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Calls a tool and returns its `CallToolResult`."""
        return (await self.request("tools/call", name=tool, arguments=arguments))["result"]

    async def start(self, *tools: str) -> Any:
        """Starts an external session that offers `tools`; returns it."""
        context = {"caller_id": "myapp", "caller_tools": [{"name": tool} for tool in tools]}
        result = await self.call("session_message", message="hi", agent="external", context=context)
        return result["structuredContent"]

    @asynccontextmanager
    async def stream(self, headers: Mapping[str, str] | None = None) -> AsyncIterator[EventReader]:
        """Opens the GET stream."""
        async with self.api.events("/mcp", {**self.headers, **(headers or {})}) as events:
            yield events


async def initialized(api: Api, revision: str = "2025-11-25") -> McpHttp:
    mcp = McpHttp(api, revision)
    await mcp.initialize()
    return mcp
