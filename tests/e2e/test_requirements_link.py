"""REQ-CTR-001 to 005 of ../shared/spec/caller-tool-relay-spec.md over a raw link and plain HTTP with SSE.

Each test bears the number and the title of its scenario.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.helpers.http import Api
from tests.helpers.link import open_link

SEND: Any = {"name": "send_notification", "description": "Send notification"}


async def test_req_ctr_001_agent_calls_caller_tool_successfully(api: Api) -> None:
    session = await api.start_session(SEND)
    async with api.events(f"/sessions/{session['session_id']}/events") as events, open_link(session["socket"]) as link:
        await link.call("send_notification", {"message": "hello"})
        _, request = await events.next_of("caller_tool_request")
        answered = await api.answer(session, request["request_id"], result={"status": "sent"})
        assert answered.status == 204
        assert await link.receive() == {"jsonrpc": "2.0", "id": 1, "result": {"status": "sent"}}
        _, resolved = await events.next_of("caller_tool_resolved")
        assert resolved["request_id"] == request["request_id"]
        assert resolved["is_error"] is False


async def test_req_ctr_001_caller_tool_request_times_out(api: Api) -> None:
    session = await api.start_session({"name": "slow_tool", "timeout_seconds": 0.2})
    async with api.events(f"/sessions/{session['session_id']}/events") as events, open_link(session["socket"]) as link:
        await link.call("slow_tool")
        _, request = await events.next_of("caller_tool_request")
        assert request["timeout_seconds"] == 0.2
        error = (await link.receive())["error"]
        assert error["code"] == -32004
        assert error["message"].startswith("caller tool 'slow_tool' timed out after 0.2 s")
        assert error["data"] == {"kind": "caller_timeout", "retry_safe": False}
        _, cancelled = await events.next_of("caller_tool_cancelled")
        assert cancelled["reason"] == "timeout"
        late = await api.answer(session, request["request_id"], result=1)
        assert (late.status, late.error["kind"]) == (409, "conflict")


async def test_req_ctr_001_a_tool_without_a_timeout_of_its_own_gets_60_seconds(api: Api) -> None:
    session = await api.start_session("slow_tool")
    async with open_link(session["socket"]) as link:
        assert link.configs[0]["params"]["tools"] == [{"name": "slow_tool", "timeout_seconds": 60}]


async def test_req_ctr_001_caller_disconnected_before_response(api: Api) -> None:
    session = await api.start_session(SEND)
    async with open_link(session["socket"]) as link:
        async with api.events(f"/sessions/{session['session_id']}/events") as events:
            await link.call("send_notification")
            await events.next_of("caller_tool_request")
        error = (await link.receive())["error"]
        assert error["code"] == -32003
        assert error["data"] == {"kind": "caller_disconnected", "retry_safe": False}
        assert "may already have run" in error["message"]


async def test_req_ctr_002_caller_declares_tools_at_session_start(api: Api) -> None:
    session = await api.start_session(SEND)
    assert (session["caller_id"], session["caller_tools"]) == ("myapp", ["send_notification"])
    async with open_link(session["socket"]) as link:
        tools, packs = link.configs
        assert tools == {
            "jsonrpc": "2.0",
            "type": "caller_tools_config",
            "params": {"caller_id": "myapp", "tools": [{**SEND, "timeout_seconds": 60}]},
        }
        assert packs["type"] == "pack_tools_config"
        assert {tool["pack"] for tool in packs["params"]["tools"]} == {"ot"}


async def test_req_ctr_002_a_new_declaration_reaches_the_link(api: Api) -> None:
    session = await api.start_session(SEND)
    async with open_link(session["socket"]) as link:
        body = {"message": "more", "context": {"caller_id": "ant", "caller_tools": [{"name": "get_memory"}]}}
        assert (await api.post(f"/sessions/{session['session_id']}/messages", body)).status == 202
        config = await link.receive()
        assert config["type"] == "caller_tools_config"
        assert config["params"]["caller_id"] == "ant"
        assert [tool["name"] for tool in config["params"]["tools"]] == ["get_memory"]


async def test_req_ctr_002_tools_include_input_schema(api: Api) -> None:
    schema = {"type": "object", "properties": {"message": {"type": "string"}}}
    session = await api.start_session({**SEND, "inputSchema": schema})
    async with api.events(f"/sessions/{session['session_id']}/events"), open_link(session["socket"]) as link:
        assert link.configs[0]["params"]["tools"][0]["inputSchema"] == schema
        await link.call("send_notification", {"message": 5})
        error = (await link.receive())["error"]
        assert (error["code"], error["data"]["kind"]) == (-32602, "invalid_params")
        assert error["data"]["retry_safe"] is True


async def test_req_ctr_003_tool_request_event_format(api: Api) -> None:
    session = await api.start_session(SEND)
    async with api.events(f"/sessions/{session['session_id']}/events") as events, open_link(session["socket"]) as link:
        ids = set()
        for number in range(2):
            await link.call("send_notification", {"message": "hi"}, id=number)
            sse, event = await events.next_of("caller_tool_request")
            assert (event["tool"], event["arguments"]) == ("send_notification", {"message": "hi"})
            assert (sse.type, sse.id) == ("caller_tool_request", str(event["index"]))
            ids.add(event["request_id"])
        assert len(ids) == 2


async def test_req_ctr_004_successful_tool_response_null(api: Api) -> None:
    """A `result` key without error is a success, also when it is null."""
    session = await api.start_session(SEND)
    async with api.events(f"/sessions/{session['session_id']}/events") as events, open_link(session["socket"]) as link:
        await link.call("send_notification")
        _, request = await events.next_of("caller_tool_request")
        assert (await api.answer(session, request["request_id"], result=None)).status == 204
        assert await link.receive() == {"jsonrpc": "2.0", "id": 1, "result": None}


async def test_req_ctr_004_tool_execution_error_response(api: Api) -> None:
    session = await api.start_session(SEND)
    async with api.events(f"/sessions/{session['session_id']}/events") as events, open_link(session["socket"]) as link:
        await link.call("send_notification")
        _, request = await events.next_of("caller_tool_request")
        reply = await api.answer(session, request["request_id"], result=None, error="recipient not found")
        assert reply.status == 204
        error = (await link.receive())["error"]
        assert (error["code"], error["message"]) == (-32000, "recipient not found")
        assert error["data"] == {"kind": "caller_tool_error", "retry_safe": False}
        _, resolved = await events.next_of("caller_tool_resolved")
        assert resolved["is_error"] is True


async def test_req_ctr_005_socket_request_and_response_without_id_and_jsonrpc(api: Api) -> None:
    """The requirement's own message, to the letter: it has no `id`, and is answered with `"id": null`."""
    session = await api.start_session("x")
    async with api.events(f"/sessions/{session['session_id']}/events") as events, open_link(session["socket"]) as link:
        await link.send_line(b'{"method": "caller_tool", "params": {"tool": "x", "arguments": {}}}')
        _, request = await events.next_of("caller_tool_request")
        await api.answer(session, request["request_id"], result="done")
        assert await link.receive() == {"jsonrpc": "2.0", "id": None, "result": "done"}


async def test_the_greeting_of_older_clients_is_taken(api: Api) -> None:
    session = await api.start_session("x")
    async with open_link(session["socket"]) as link:
        await link.send_line(b"OUBLIETTE-DOWNSTREAM default")
        await link.send({"id": 7, "method": "nope"})
        assert (await link.receive())["error"]["code"] == -32601


async def test_a_greeting_that_names_another_project_is_refused_and_the_link_closed(api: Api) -> None:
    session = await api.start_session("x")
    async with open_link(session["socket"]) as link:
        await link.send_line(b"OUBLIETTE-DOWNSTREAM other")
        assert (await link.receive())["error"]["code"] == -32002
        with pytest.raises(trio.EndOfChannel):
            await link.receive()
