"""An MCP server of the newest revision for tests, on the official SDK: `stdio`, or `http` on a free port.

Over HTTP it prints `listening on PORT`. Started with `-P`, as `mcp_server` is.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("modern")


@server.tool()
async def echo(text: str) -> dict[str, str]:
    """Says what it hears."""
    return {"text": text}


@server.tool()
async def slow(journal: str, ctx: Context) -> str:
    """Reports progress, then waits for its end."""
    await ctx.report_progress(1, 2, "half")
    try:
        await anyio.sleep_forever()
    finally:
        note(journal)
    return ""


@server.tool()
async def grow(ctx: Context) -> str:
    """Has one more tool from now on."""

    def more() -> str:
        return "more"

    server.add_tool(more)
    await ctx.notify_tools_changed()
    return "grown"


def note(journal: str) -> None:
    Path(journal).write_text("cancelled")


def main() -> None:
    if sys.argv[1] == "stdio":
        server.run("stdio")
        return
    with socket.create_server(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0)) as listener:
        app = server.streamable_http_app()
        print(f"listening on {listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
