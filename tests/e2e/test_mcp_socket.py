"""`/mcp` over WebSocket (WIRE section 4.1): "the connection is one MCP session and one stream"."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import trio
from wsproto.events import BytesMessage, CloseConnection

from tests.helpers.http import Api
from tests.helpers.link import open_link
from tests.helpers.mcp_http import initialized
from tests.helpers.mcp_socket import LOGGED, META, McpSocketClient, RefusedError, open_socket
from tests.helpers.process import DaemonProcess

SLEEPER = """
server: {shutdown_grace_seconds: 2}
relay: {max_message_bytes: 65536}
agents:
  default: sleeper
  profiles:
    external: {type: external}
    sleeper: {type: command, command: [sleep, "60"]}
"""


async def answer(socket: McpSocketClient, event: Any, result: Any, **meta: Any) -> Any:
    named = {"session_id": event["session_id"], "request_id": event["request_id"]}
    return await socket.call("caller_tool_response", **meta, **named, result=result)


async def test_one_connection_carries_events_and_answers(api: Api) -> None:
    async with open_socket(api) as socket:
        assert socket.subprotocol == "mcp"
        assert (await socket.initialize())["protocolVersion"] == "2025-11-25"
        session = await socket.start("echo")
        assert (await socket.event("session_started"))["session_id"] == session["session_id"]
        async with open_link(session["socket"]) as link:
            await link.call("echo", {"n": 1})
            event = await socket.event("caller_tool_request")
            assert event["arguments"] == {"n": 1}
            assert (await answer(socket, event, {"n": 2}))["structuredContent"] == {"accepted": True}
            assert (await link.receive())["result"] == {"n": 2}
        assert (await socket.event("caller_tool_resolved"))["request_id"] == event["request_id"]
        await socket.call("session_end", session_id=session["session_id"])
        assert (await socket.event("session_ended"))["reason"] == "ended"


async def test_requests_that_say_their_revision_need_no_handshake(api: Api) -> None:
    async with open_socket(api) as socket:
        found = (await socket.request("server/discover", _meta=META))["result"]
        assert found["resultType"] == "complete"
        assert "2026-07-28" in found["supportedVersions"]
        session = await socket.start("echo", meta=META)
        following = await socket.ask(
            "tools/call",
            name="session_events",
            arguments={"session_id": session["session_id"], "follow": True},
            _meta=LOGGED,
        )
        async with open_link(session["socket"]) as link:
            await link.call("echo", {"n": 1})
            event = await socket.event("caller_tool_request")
            await answer(socket, event, {"n": 2}, meta=META)
            assert (await link.receive())["result"] == {"n": 2}
        await socket.call("session_end", META, session_id=session["session_id"])
        assert (await socket.event("session_ended"))["reason"] == "ended"
        assert (await socket.response(following))["result"]["structuredContent"]["status"] == "ended"


async def test_both_eras_meet_on_one_connection(api: Api) -> None:
    async with open_socket(api) as socket:
        await socket.initialize("2025-06-18")
        assert "resultType" not in (await socket.request("tools/list"))["result"]
        assert (await socket.request("tools/list", _meta=META))["result"]["resultType"] == "complete"
        assert (await socket.request("ping"))["result"] == {}
        assert (await socket.request("ping", _meta=META))["error"]["code"] == -32601


async def test_a_caller_that_leaves_is_gone_at_once(api: Api) -> None:
    async with open_socket(api) as watcher:
        await watcher.initialize()
        async with open_socket(api) as socket:
            await socket.initialize()
            session = await socket.start("echo")
        async with open_link(session["socket"]) as link, open_socket(api) as again:
            await again.initialize()
            await again.call("session_get", session_id=session["session_id"])
            await link.call("echo")
            event = await again.event("caller_tool_request")
            await again.send_event(CloseConnection(code=1000))
            assert (await link.receive())["error"]["data"] == {"kind": "caller_disconnected", "retry_safe": False}
            assert await again.close_code() == 1000
        await watcher.call("session_get", session_id=session["session_id"])
        page = await watcher.call("session_events", session_id=session["session_id"])
        ends = [it for it in page["structuredContent"]["events"] if it.get("request_id") == event["request_id"]]
        assert [it["type"] for it in ends] == ["caller_tool_request", "caller_tool_cancelled"]


async def test_a_waiting_request_is_cancelled_and_not_answered(api: Api) -> None:
    async with open_socket(api) as socket:
        await socket.initialize()
        session = (await socket.start("echo"))["session_id"]
        waiting = await socket.ask(
            "tools/call", name="session_events", arguments={"session_id": session, "follow": True}
        )
        again = await socket.ask("ping", id=waiting)
        assert (await socket.response(again))["result"] == {}, "a ping is answered at once, whatever waits"
        taken = await socket.ask("session_list", id=waiting)
        assert (await socket.response(None))["error"]["code"] == -32600, "the id is still in use"
        await socket.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": waiting, "reason": "x"}}
        )
        assert taken == waiting
        free = await socket.ask("tools/list", id=waiting)
        assert "tools" in (await socket.response(free))["result"], "the id is free again, and this is its first answer"


@pytest.mark.parametrize(
    ("message", "code", "id"),
    [
        ("{", -32700, None),
        ("[" * 200 + "]" * 200, -32700, None),
        ('{"jsonrpc": "2.0", "id": 7}', -32600, 7),
        ('{"jsonrpc": "2.0", "id": 7, "method": "ping", "method": "ping"}', -32600, 7),
        ('{"jsonrpc": "2.0", "id": 7, "method": "tools/list"}', -32600, 7),
        ('[{"jsonrpc": "2.0", "id": 7, "method": "ping"}]', -32600, None),
        ('{"jsonrpc": "2.0", "id": 7, "method": "server/discover"}', -32602, 7),
    ],
)
async def test_what_is_wrong_is_answered_and_costs_nothing_else(api: Api, message: str, code: int, id: Any) -> None:
    async with open_socket(api) as socket:
        await socket.send_text(message)
        assert (await socket.response(id))["error"]["code"] == code
        await socket.initialize()
        assert (await socket.request("nope"))["error"]["code"] == -32601
        assert (await socket.request("initialize", protocolVersion="2025-11-25"))["error"]["code"] == -32600


async def test_batches_are_for_the_one_revision_that_knows_them(api: Api) -> None:
    batch = [{"jsonrpc": "2.0", "id": id, "method": "ping"} for id in ("a", "b")]
    async with open_socket(api) as socket:
        await socket.initialize("2025-03-26")
        await socket.send([*batch, {"jsonrpc": "2.0", "method": "notifications/x"}])
        answers = await socket.array()
        assert [it["id"] for it in answers] == ["a", "b"]
    async with open_socket(api) as socket:
        await socket.initialize("2025-06-18")
        await socket.send(batch)
        assert (await socket.response(None))["error"]["code"] == -32600


async def test_the_level_stops_the_events_and_the_presence(api: Api) -> None:
    async with open_socket(api) as socket:
        await socket.initialize()
        session = await socket.start("echo")
        await socket.request("logging/setLevel", level="warning")
        async with open_link(session["socket"]) as link:
            await link.call("echo")
            assert (await link.receive())["error"]["code"] == -32003
            await socket.request("logging/setLevel", level="debug")
            await link.call("echo", {"n": 2})
            assert (await socket.event("caller_tool_request"))["arguments"] == {"n": 2}


async def test_a_subscription_ends_by_cancellation(api: Api) -> None:
    async with open_socket(api) as socket:
        session = (await socket.start(meta=META))["session_id"]
        uri = f"oubliette://sessions/{session}/events"
        wanted = {"resourceSubscriptions": [uri, "oubliette://sessions/nope/events"]}
        id = await socket.ask("subscriptions/listen", notifications=wanted, _meta=META)
        granted = await socket.notification("notifications/subscriptions/acknowledged")
        mark = {"io.modelcontextprotocol/subscriptionId": id}
        assert granted == {"notifications": {"resourceSubscriptions": [uri]}, "_meta": mark}
        await socket.call("session_message", META, session_id=session, message="more")
        assert await socket.notification("notifications/resources/updated") == {"uri": uri, "_meta": mark}
        await socket.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
        free = await socket.ask("tools/list", id=id, _meta=META)
        assert "tools" in (await socket.response(free))["result"]


@pytest.mark.parametrize(
    ("headers", "subprotocols", "status"),
    [
        ({}, (), 400),
        ({}, ("mqtt",), 400),
        ({"Authorization": "Bearer nope"}, ("mcp",), 401),
        ({"Origin": "https://evil.example"}, ("mcp",), 403),
    ],
)
async def test_who_may_not_come_in_is_told_why(
    api: Api, headers: dict[str, str], subprotocols: tuple[str, ...], status: int
) -> None:
    anonymous = Api(api.port, api.token)
    with pytest.raises(RefusedError) as refused:
        async with open_socket(anonymous, headers=headers, subprotocols=subprotocols):
            raise AssertionError("it came in")
    assert refused.value.status == status
    assert json.loads(refused.value.body)["error"]["message"]


async def test_an_agents_caller_may_speak_any_era(api: Api) -> None:
    """The session is started over HTTP in one era, and answered over WebSocket in the other."""
    started = await (await initialized(api)).start("echo")
    async with open_socket(api) as socket, open_link(started["socket"]) as link:
        await socket.ask(
            "tools/call",
            name="session_events",
            arguments={"session_id": started["session_id"], "follow": True},
            _meta=LOGGED,
        )
        await socket.event("session_started")
        await link.call("echo", {"n": 1})
        event = await socket.event("caller_tool_request")
        await answer(socket, event, "done", meta=META)
        assert (await link.receive())["result"] == "done"


async def test_a_stop_says_what_it_has_to_say_and_goodbye() -> None:
    with DaemonProcess(SLEEPER) as daemon:
        api = Api(daemon.port, daemon.admin_token)
        async with open_socket(api) as socket, open_socket(api) as idle, open_socket(api) as stateless:
            await socket.initialize()
            await socket.call("session_message", message="hi", agent="sleeper")
            id = await stateless.ask("subscriptions/listen", notifications={"toolsListChanged": True}, _meta=META)
            await stateless.notification("notifications/subscriptions/acknowledged")
            daemon.process.send_signal(signal.SIGTERM)
            assert (await socket.event("session_ended"))["reason"] == "shutdown"
            assert [await each.close_code() for each in (socket, idle, stateless)] == [1001, 1001, 1001]
            assert (await stateless.response(id))["result"]["resultType"] == "complete"
        with trio.fail_after(10):
            assert await trio.to_thread.run_sync(daemon.process.wait) == 0


async def test_what_no_mcp_peer_sends_ends_the_connection_alone() -> None:
    with DaemonProcess(SLEEPER) as daemon:
        api = Api(daemon.port, daemon.admin_token)
        async with open_socket(api) as binary, open_socket(api) as long:
            await binary.send_event(BytesMessage(data=b"{}"))
            assert await binary.close_code() == 1003
            await long.send_text(json.dumps({"x": "y" * 70_000}))
            assert await long.close_code() == 1009
        async with open_socket(api) as socket:
            assert await socket.initialize()
