"""The peer: the same relay, as it is written on the official `mcp` Python SDK (2.3), uvicorn and asyncio.

`python -m benchmarks.sdk_relay --data-dir D` prints `listening on http://127.0.0.1:PORT`. It offers the tools
`session_message` and `caller_tool_response` over streamable HTTP, one unix socket for each session, a task for each
request of a link, the deadline of 60 s, and the request events as log notifications on the GET stream.

It is meant to be as good as a user of the SDK would make it: the low-level server (no schema is derived or validated
for each call), stateful sessions with JSON answers (no event stream for each POST), no event store, no access log. It
has no tokens, no owners, no schemas of caller tools, no records. uvicorn chooses uvloop and httptools where they are
installed; `mcp` depends on plain `uvicorn`, which brings neither (it is asyncio and h11 then), and `benchmarks.relay`
says which it was.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import socket
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession

DEADLINE_SECONDS: Final = 60.0
_LINE_BYTES: Final = 4 * 1024 * 1024
_TOOLS: Final = [
    types.Tool(name="session_message", input_schema={"type": "object"}),
    types.Tool(name="caller_tool_response", input_schema={"type": "object"}),
]

Context = ServerRequestContext[dict[str, Any]]


@dataclass
class Session:
    """One agent session: whose events go to `caller`, the MCP session that started it."""

    id: str
    caller: ServerSession


class Relay:
    """The tools of the server, and the sockets of its sessions."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._pending: dict[str, asyncio.Future[Any]] = {}
        self._listeners: list[asyncio.Server] = []

    async def list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """Serves `tools/list`."""
        return types.ListToolsResult(tools=_TOOLS)

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Serves `tools/call`."""
        arguments = params.arguments or {}
        if params.name == "session_message":
            return _result(await self._start_session(context.session))
        return _result(self._resolve(arguments["request_id"], arguments.get("result")))

    def _resolve(self, request_id: str, result: object) -> dict[str, Any]:
        future = self._pending.get(request_id)
        if future is None or future.done():
            raise ValueError(f"no pending request {request_id}")
        future.set_result(result)
        return {"accepted": True}

    async def _start_session(self, caller: ServerSession) -> dict[str, Any]:
        session = Session(str(uuid4()), caller)
        path = os.path.join(self._folder, f"{next(self._numbers)}.sock")

        async def serve_link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve_link(session, reader, writer)

        self._listeners.append(await asyncio.start_unix_server(serve_link, path, limit=_LINE_BYTES))
        return {"session_id": session.id, "socket": path}

    async def _serve_link(self, session: Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                while line := await reader.readline():
                    tasks.create_task(self._serve_request(session, json.loads(line), writer))
        finally:
            writer.close()

    async def _serve_request(self, session: Session, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        params = request["params"]
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            answer["result"] = await self._relay(session, params["tool"], params["arguments"])
        except TimeoutError:
            answer["error"] = {"code": -32004, "message": f"caller tool timed out after {DEADLINE_SECONDS:g} s"}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()

    async def _relay(self, session: Session, tool: str, arguments: dict[str, Any]) -> object:
        request_id = str(uuid4())
        future = self._pending[request_id] = asyncio.get_running_loop().create_future()
        try:
            await session.caller.send_notification(_event(session, request_id, tool, arguments))
            return await asyncio.wait_for(future, DEADLINE_SECONDS)
        finally:
            del self._pending[request_id]


def _event(session: Session, request_id: str, tool: str, arguments: dict[str, Any]) -> types.LoggingMessageNotification:
    data = {
        "type": "caller_tool_request",
        "session_id": session.id,
        "request_id": request_id,
        "tool": tool,
        "arguments": arguments,
        "timeout_seconds": DEADLINE_SECONDS,
    }
    # Sent as a notification, not with `send_log_message`: that is the same, and a deprecation warning each time.
    params = types.LoggingMessageNotificationParams(level="info", logger="oubliette.session", data=data)
    return types.LoggingMessageNotification(params=params)


def _result(value: dict[str, Any]) -> types.CallToolResult:
    text = types.TextContent(text=json.dumps(value))
    return types.CallToolResult(content=[text], structured_content=value)


class AnnouncingServer(uvicorn.Server):
    """uvicorn, which says where it listens as soon as it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen, then prints `listening on …`."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()
        print(f"listening on http://{host}:{port}", flush=True)


def main() -> None:
    """Reads the command line and serves until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="where the sockets lie; a short path")
    relay = Relay(parser.parse_args().data_dir)
    server = Server("sdk-relay", version="1", on_list_tools=relay.list_tools, on_call_tool=relay.call_tool)
    config = uvicorn.Config(
        server.streamable_http_app(json_response=True),
        host="127.0.0.1",
        port=0,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    AnnouncingServer(config).run()


if __name__ == "__main__":
    main()
