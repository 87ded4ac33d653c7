"""A caller written with the official `mcp` SDK: what a user of it would write, and what the tests ask of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import trio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, LoggingMessageNotificationParams

LIMIT = 20


class McpCaller:
    """An MCP client in `mode="legacy"` whose log messages are the events."""

    def __init__(self) -> None:
        self.client: Client
        self._send, self._events = trio.open_memory_channel[Any](10_000)

    async def log(self, params: LoggingMessageNotificationParams) -> None:
        assert params.logger == "oubliette.session"
        self._send.send_nowait(params.data)

    async def next_of(self, kind: str) -> Any:
        """Returns the next event of a type; others are passed over."""
        with trio.fail_after(LIMIT):
            while True:
                event = await self._events.receive()
                if event["type"] == kind:
                    return event

    async def next(self) -> Any:
        """Returns the next event, however long that takes."""
        return await self._events.receive()

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Calls a tool that must succeed, and returns its structured content."""
        result = await self.try_call(tool, **arguments)
        assert not result.is_error, result.content
        assert result.structured_content == json.loads(result.content[0].text)  # type: ignore[union-attr]
        return result.structured_content

    async def try_call(self, tool: str, **arguments: Any) -> CallToolResult:
        with trio.fail_after(LIMIT):
            result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        return result


@asynccontextmanager
async def open_mcp_caller(url: str, token: str) -> AsyncIterator[McpCaller]:
    """Connects to the daemon's `/mcp` and closes everything in the end."""
    caller = McpCaller()
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode="legacy", logging_callback=caller.log) as client:
            caller.client = client
            yield caller
