"""`/mcp` of the revisions 2025-03-26 to 2025-11-25 by hand (WIRE section 4.1)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.helpers.http import Api
from tests.helpers.link import open_link
from tests.helpers.mcp_http import McpHttp, initialized

REVISIONS = ["2025-03-26", "2025-06-18", "2025-11-25"]


@pytest.mark.parametrize(
    ("asked", "spoken"),
    [*((revision, revision) for revision in REVISIONS), ("2024-11-05", "2025-11-25"), ("1999-01-01", "2025-11-25")],
)
async def test_versions_are_negotiated(api: Api, asked: str, spoken: str) -> None:
    result = await McpHttp(api, asked).initialize()
    assert result["protocolVersion"] == spoken
    assert result["serverInfo"]["name"] == "oubliette"
    assert set(result["capabilities"]) == {"logging", "tools", "prompts", "resources", "completions"}


@pytest.mark.parametrize("revision", REVISIONS)
async def test_what_a_revision_does_not_know_is_left_out(api: Api, revision: str) -> None:
    mcp = await initialized(api, revision)
    knows = revision >= "2025-06-18"
    tools = (await mcp.request("tools/list"))["result"]["tools"]
    # WIRE section 6: "The `ot` tools have no `outputSchema`".
    assert all(("outputSchema" in tool) is knows for tool in tools if not tool["name"].startswith("ot_"))
    assert all(tool["inputSchema"]["type"] == "object" for tool in tools)
    result = await mcp.call("session_list", limit=1)
    assert ("structuredContent" in result) is knows


async def test_ping_unknown_methods_and_unknown_tools(api: Api) -> None:
    mcp = await initialized(api)
    assert (await mcp.request("ping"))["result"] == {}
    assert (await mcp.request("nope"))["error"]["code"] == -32601
    error = (await mcp.request("tools/call", name="nope"))["error"]
    assert (error["code"], error["data"]["field"]) == (-32602, "name")
    assert (await mcp.request("tools/call"))["error"]["code"] == -32602
    assert (await mcp.request("logging/setLevel", level="loud"))["error"]["code"] == -32602


async def test_batches_are_for_the_one_revision_that_knows_them(api: Api) -> None:
    batch = [
        {"jsonrpc": "2.0", "id": "a", "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "session_list", "arguments": None}},
    ]
    old = await initialized(api, "2025-03-26")
    reply = await old.post(batch)
    assert reply.status == 200
    assert [answer["id"] for answer in reply.json] == ["a", 2]
    assert (await old.post(batch[1:2])).status == 202
    assert (await old.post([])).status == 400

    new = await initialized(api)
    refused = await new.post(batch)
    assert (refused.status, refused.json["error"]["code"]) == (400, -32600)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[" * 200 + b"]" * 200, -32700),
        (b"5", -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"pong"}', -32600),
    ],
)
async def test_malformed_bodies(api: Api, body: bytes, code: int) -> None:
    mcp = await initialized(api)
    reply = await mcp.post(body)
    assert (reply.status, reply.json["error"]["code"]) == (400, code)
    assert (await mcp.request("ping"))["result"] == {}


async def test_sessions_are_asked_for_and_belong_to_their_principal(api: Api) -> None:
    mcp = await initialized(api)
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert (await api.request("POST", "/mcp", ping, {"Accept": "application/json"})).status == 400
    unknown = {**mcp.headers, "Mcp-Session-Id": "f" * 32}
    assert (await api.request("POST", "/mcp", ping, unknown)).status == 404

    other = Api(api.port, await token_of(api, "admin"))
    for method, body in (("POST", ping), ("GET", None), ("DELETE", None)):
        assert (await other.request(method, "/mcp", body, mcp.headers)).status == 404
    assert (await mcp.request("ping"))["result"] == {}

    assert (await api.request("DELETE", "/mcp", None, mcp.headers)).status == 204
    assert (await mcp.post(ping)).status == 404


async def test_headers_of_the_transport(api: Api) -> None:
    mcp = await initialized(api)
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert (await mcp.post(ping, {"MCP-Protocol-Version": "1999-01-01"})).status == 400
    assert (await mcp.post(ping, {"Accept": "text/html"})).status == 406
    assert (await api.get("/mcp", {**mcp.headers, "Accept": "application/json"})).status == 406
    assert (await api.request("PUT", "/mcp", ping, mcp.headers)).status == 405


async def test_events_ride_on_the_get_stream_of_the_session_that_started_it(api: Api) -> None:
    mine, other = await initialized(api), await initialized(api)
    async with mine.stream() as events, other.stream() as others:
        session = await mine.start("echo")
        sse, first = await events.next_of("session_started")
        assert first["method"] == "notifications/message"
        assert (first["params"]["level"], first["params"]["logger"]) == ("info", "oubliette.session")
        assert first["params"]["data"]["session_id"] == session["session_id"]
        assert sse.id
        elsewhere = await other.start("echo")
        _, theirs = await others.next_of("session_started")
        assert theirs["params"]["data"]["session_id"] == elsewhere["session_id"]


async def test_naming_a_session_brings_its_events_from_then_on(api: Api) -> None:
    first, second = await initialized(api), await initialized(api)
    session = await first.start("echo")
    async with second.stream() as events, open_link(session["socket"]) as link:
        await second.call("session_get", session_id=session["session_id"])
        await link.call("echo", {"n": 1})
        _, event = await events.next_of("caller_tool_request")
        assert event["params"]["data"]["arguments"] == {"n": 1}


async def test_last_event_id_resumes_over_several_sessions(api: Api) -> None:
    mcp = await initialized(api)
    async with mcp.stream() as events:
        one, two = await mcp.start("echo"), await mcp.start("echo")
        ids = [(await events.next_of("session_started"))[0].id for _ in range(2)]
    for session in (one, two):
        await mcp.call("session_message", session_id=session["session_id"], message="more")
    async with mcp.stream({"Last-Event-ID": ids[0]}) as events:
        seen = [(await events.next()).data for _ in range(5)]
    started = [data for data in seen if '"session_started"' in data]
    assert len(started) == 1
    assert sum('"text":"more"' in data for data in seen) == 2
    assert sum('"text":"hi"' in data for data in seen) == 2


@pytest.mark.parametrize("unknown", ["", "nonsense", "-1", "0-ffffffff", "x" * 500])
async def test_an_unknown_event_id_gives_a_fresh_stream(api: Api, unknown: str) -> None:
    mcp = await initialized(api)
    session = await mcp.start("echo")
    async with mcp.stream({"Last-Event-ID": unknown}) as events:
        await mcp.call("session_message", session_id=session["session_id"], message="fresh")
        assert '"text":"fresh"' in (await events.next()).data


async def test_a_newer_get_stream_takes_over(api: Api) -> None:
    mcp = await initialized(api)
    session = await mcp.start("echo")
    async with mcp.stream() as first, open_link(session["socket"]) as link:
        await link.call("echo", id=1)
        await first.next_of("caller_tool_request")
        async with mcp.stream() as second:
            with pytest.raises(trio.EndOfChannel):
                await first.next()
            assert b"taken over" in first.comments
            # The request goes on waiting, and is given again on the newer stream, without an id.
            sse, event = await second.next_of("caller_tool_request")
            assert sse.id == ""
            answer = {"session_id": session["session_id"], "request_id": event["params"]["data"]["request_id"]}
            await mcp.call("caller_tool_response", **answer, result="late but there")
            assert (await link.receive())["result"] == "late but there"


async def test_a_level_above_info_stops_the_events_and_the_presence(api: Api) -> None:
    mcp = await initialized(api)
    session = await mcp.start("echo")
    async with mcp.stream() as events, open_link(session["socket"]) as link:
        await mcp.request("logging/setLevel", level="error")
        await link.call("echo", id=1)
        assert (await link.receive())["error"]["data"] == {"kind": "caller_disconnected", "retry_safe": True}
        await mcp.request("logging/setLevel", level="debug")
        await link.call("echo", id=2)
        _, event = await events.next_of("caller_tool_request")
        assert event["params"]["data"]["tool"] == "echo"


async def test_deleting_an_mcp_session_ends_its_stream_and_not_the_agents_session(api: Api) -> None:
    mcp = await initialized(api)
    async with mcp.stream() as events:
        session = await mcp.start("echo")
        await api.request("DELETE", "/mcp", None, mcp.headers)
        await events.next_of("session_started")
        await events.next_of("message")
        with pytest.raises(trio.EndOfChannel):
            await events.next()
    assert (await api.get(f"/sessions/{session['session_id']}")).json["status"] == "running"


async def test_wait_holds_the_answer_back_until_the_turn_has_ended(api: Api) -> None:
    mcp = await initialized(api)
    refused = await mcp.call("session_message", message="hi", agent="external", wait=True)
    assert refused["_meta"]["oubliette/error"]["field"] == "wait"


async def test_an_answer_that_is_long_in_coming_is_a_stream_with_comments(api: Api) -> None:
    mcp = await initialized(api)
    session = await mcp.start("echo")
    arguments: Any = {"session_id": session["session_id"], "since_index": 100, "wait_seconds": 1.5}
    params = {"name": "session_events", "arguments": arguments}
    reply = await mcp.post({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.body.startswith(b": keep-alive\n\n")
    assert b'event: message\ndata: {"jsonrpc":"2.0","id":5,"result":' in reply.body


async def test_a_cancelled_wait_is_answered_as_cancelled_and_the_session_goes_on(api: Api) -> None:
    mcp = await initialized(api)
    session = await mcp.start("echo")
    arguments = {"session_id": session["session_id"], "follow": True}
    replies: list[Any] = []

    async def follow() -> None:
        message = {"jsonrpc": "2.0", "id": "w", "method": "tools/call"}
        replies.append(await mcp.post({**message, "params": {"name": "session_events", "arguments": arguments}}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        with trio.fail_after(10):
            while not replies:
                await mcp.notify("notifications/cancelled", requestId="w")
                await trio.sleep(0.02)
    assert b'"kind":"cancelled"' in replies[0].body
    assert (await api.get(f"/sessions/{session['session_id']}")).json["status"] == "running"


async def token_of(api: Api, scope: str) -> str:
    mcp = await initialized(api)
    created = await mcp.call("token_create", name="another", scope=scope)
    return str(created["structuredContent"]["token"])
