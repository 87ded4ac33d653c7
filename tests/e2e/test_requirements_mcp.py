"""REQ-CTR-001 to 004 with the official SDK on both sides: its `Client` calls, its `stdio_client` is the agent.

Everything between them is real: the daemon's process, the session's socket, the `oubliette-client` process.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import CallToolResult, TextContent

from tests.helpers.mcp_caller import McpCaller, open_mcp_caller
from tests.helpers.process import DaemonProcess

SEND: Any = {
    "name": "send_notification",
    "description": "Send notification",
    "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}},
}


@asynccontextmanager
async def open_agent(socket: str) -> AsyncIterator[Client]:
    """The agent's side: the SDK's stdio client beside a real `oubliette-client`."""
    command = ["-m", "oubliette_client", "--socket", socket]
    async with Client(
        stdio_client(StdioServerParameters(command=sys.executable, args=command)), mode="legacy"
    ) as agent:
        yield agent


async def start(caller: McpCaller, *tools: Any) -> Any:
    context = {"caller_id": "myapp", "caller_tools": list(tools)}
    return await caller.call("session_message", message="hello", agent="external", context=context)


def text_of(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def test_req_ctr_001_and_004_an_agents_call_reaches_the_caller_and_comes_back(daemon: DaemonProcess) -> None:
    async with open_mcp_caller(daemon.url, daemon.admin_token) as caller:
        session = await start(caller, SEND)
        async with open_agent(session["socket"]) as agent, trio.open_nursery() as nursery:
            results: list[Any] = []

            async def call() -> None:
                results.append(await agent.call_tool("myapp_send_notification", {"message": "hello"}))

            nursery.start_soon(call)
            request = await caller.next_of("caller_tool_request")
            assert (request["tool"], request["arguments"]) == ("send_notification", {"message": "hello"})
            answer = {"session_id": session["session_id"], "request_id": request["request_id"]}
            assert await caller.call("caller_tool_response", **answer, result={"status": "sent"}) == {"accepted": True}
            assert (await caller.next_of("caller_tool_resolved"))["is_error"] is False
        assert results[0].structured_content == {"status": "sent"}
        assert results[0].is_error is False


async def test_req_ctr_004_a_tool_error_reaches_the_agent_as_one(daemon: DaemonProcess) -> None:
    async with open_mcp_caller(daemon.url, daemon.admin_token) as caller:
        session = await start(caller, SEND)
        async with open_agent(session["socket"]) as agent, trio.open_nursery() as nursery:
            results: list[Any] = []

            async def call() -> None:
                results.append(await agent.call_tool("myapp_send_notification", {"message": "hello"}))

            nursery.start_soon(call)
            request = await caller.next_of("caller_tool_request")
            answer = {"session_id": session["session_id"], "request_id": request["request_id"]}
            await caller.call("caller_tool_response", **answer, result=None, error="recipient not found")
        assert results[0].is_error is True
        assert text_of(results[0]) == "recipient not found"


async def test_req_ctr_002_the_agent_discovers_the_tool_with_its_schema(daemon: DaemonProcess) -> None:
    async with open_mcp_caller(daemon.url, daemon.admin_token) as caller:
        session = await start(caller, SEND)
        async with open_agent(session["socket"]) as agent:
            (tool,) = [tool for tool in (await agent.list_tools()).tools if tool.name.startswith("myapp_")]
            assert tool.name == "myapp_send_notification"
            assert tool.description == "Send notification"
            assert tool.input_schema == SEND["inputSchema"]


async def test_the_session_tools_over_mcp(daemon: DaemonProcess) -> None:
    async with open_mcp_caller(daemon.url, daemon.admin_token) as caller:
        offered = {tool.name for tool in (await caller.client.list_tools()).tools}
        assert {"session_message", "session_list", "session_get", "session_events", "session_end"} <= offered
        session = await start(caller, SEND)
        id = session["session_id"]
        assert (await caller.call("session_get", session_id=id))["status"] == "running"
        assert id in [one["session_id"] for one in (await caller.call("session_list", limit=1000))["sessions"]]
        page = await caller.call("session_events", session_id=id)
        assert [event["type"] for event in page["events"]] == ["session_started", "message"]
        assert (await caller.call("session_end", session_id=id))["status"] == "ended"
        assert (await caller.next_of("session_ended"))["reason"] == "ended"


async def test_a_failed_tool_is_a_result_that_names_the_argument(daemon: DaemonProcess) -> None:
    async with open_mcp_caller(daemon.url, daemon.admin_token) as caller:
        result = await caller.try_call("session_get", session_id=5)
        assert result.is_error
        assert result.meta is not None
        error = result.meta["oubliette/error"]
        assert (error["kind"], error["field"]) == ("invalid_params", "session_id")
        result = await caller.try_call("session_get", session_id="ses_unknown")
        assert result.meta is not None
        assert result.meta["oubliette/error"]["kind"] == "not_found"
