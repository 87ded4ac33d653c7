"""`/mcp` of revision 2026-07-28 by hand (WIRE sections 3 and 4.1), and where the two eras differ or meet."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from mcp import Client, StdioServerParameters, stdio_client

from tests.helpers.http import Api
from tests.helpers.link import AgentLink, open_link
from tests.helpers.mcp_http import initialized
from tests.helpers.mcp_socket import META
from tests.helpers.mcp_stateless import PREFIX, SUPPORTED, VERSION, StatelessMcp, another, message_of
from tests.helpers.process import DaemonProcess

GONE = {"kind": "caller_disconnected"}


@pytest.fixture
def mcp(api: Api) -> StatelessMcp:
    return StatelessMcp(api)


async def status_of(mcp: StatelessMcp, session: Any) -> str:
    result = await mcp.call("session_get", session_id=session["session_id"])
    return str(result["structuredContent"]["status"])


# Discovery, and what every result says


async def test_discover_names_the_revisions_and_what_can_be_done(mcp: StatelessMcp) -> None:
    found = await mcp.request("server/discover")
    assert found["supportedVersions"] == SUPPORTED
    assert found["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}
    assert found["_meta"][f"{PREFIX}serverInfo"]["name"] == "oubliette"
    assert (found["resultType"], found["cacheScope"]) == ("complete", "public")
    assert "session_events" in found["instructions"]


async def test_every_result_says_that_it_is_complete_and_whose(mcp: StatelessMcp) -> None:
    session = await mcp.start()
    uri = f"oubliette://sessions/{session['session_id']}/events"
    reference = {"type": "ref/resource", "uri": "oubliette://sessions/{id}/events"}
    cached = {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}
    requests: dict[str, Any] = {
        **{method: {} for method in cached},
        "resources/read": {"uri": uri},
        "completion/complete": {"ref": reference, "argument": {"name": "id", "value": session["session_id"]}},
        "tools/call": {"name": "session_list", "arguments": {"limit": 1}},
    }
    for method, params in requests.items():
        result = await mcp.request(method, **params)
        assert result["resultType"] == "complete", method
        assert f"{PREFIX}serverInfo" in result["_meta"]
        assert ("ttlMs" in result, "cacheScope" in result) == (method in cached,) * 2
    assert result["structuredContent"]["sessions"]


# The relay


async def test_the_whole_relay_on_one_response_stream(mcp: StatelessMcp) -> None:
    """Declare, be asked, answer by another POST, and get the turn's end: all that a caller of this era does."""
    context = {"caller_id": "myapp", "caller_tools": [{"name": "add"}]}
    prompt = 'call myapp_add {"a": 1}'
    async with mcp.calling("session_message", message=prompt, context=context, wait=True) as response:
        request = await response.next_of("caller_tool_request")
        assert (request["tool"], request["arguments"]) == ("add", {"a": 1})
        accepted = await mcp.answer(request, result={"sum": 3})
        assert accepted["structuredContent"] == {"accepted": True}
        *events, answer = await response.rest()
    kinds = [event["params"]["data"]["type"] for event in events]
    assert {event["params"]["logger"] for event in events} == {"oubliette.session"}
    assert "caller_tool_resolved" in kinds
    assert kinds[-1] == "turn_completed"
    assert (answer["id"], answer["result"]["resultType"]) == (1, "complete")
    assert 'myapp_add answered: {"sum": 3}' in answer["result"]["structuredContent"]["text"]


async def test_without_a_log_level_a_poll_is_what_brings_the_request(mcp: StatelessMcp) -> None:
    """ "no `notifications/message` unless `_meta` logLevel was set"; "Without streaming: `session_events`"."""
    session = await mcp.start("echo")
    replies: list[Any] = []

    async def follow() -> None:
        arguments = {"session_id": session["session_id"], "follow": True}
        replies.append(await mcp.post(message_of("tools/call", name="session_events", arguments=arguments)))

    async with trio.open_nursery() as nursery, open_link(session["socket"]) as link:
        nursery.start_soon(follow)
        await link.call("echo")
        polled = await mcp.call("session_events", session_id=session["session_id"], since_index=2, wait_seconds=15)
        (request,) = polled["structuredContent"]["events"]
        assert request["type"] == "caller_tool_request"
        await mcp.answer(request, result="polled")
        assert (await link.receive())["result"] == "polled"
        await mcp.call("session_end", session_id=session["session_id"])
    messages = [line for line in replies[0].body.splitlines() if line.startswith((b"data:", b"{"))]
    assert len(messages) == 1
    assert b'"status":"ended"' in messages[0]
    assert b"notifications/message" not in messages[0]


async def test_a_request_under_way_is_delivered_on_the_stream_that_opens(mcp: StatelessMcp) -> None:
    session = await mcp.start("echo")
    async with open_link(session["socket"]) as link:
        await link.call("echo", {"n": 1})
        async with mcp.calling("session_events", session_id=session["session_id"], follow=True) as response:
            request = await response.next_of("caller_tool_request")
            await mcp.answer(request, error="no")
            assert (await link.receive())["error"]["message"] == "no"
            await mcp.call("session_end", session_id=session["session_id"])
            *_, ended, answer = await response.rest()
    assert ended["params"]["data"]["type"] == "session_ended"
    assert answer["result"]["structuredContent"]["status"] == "ended"


async def test_following_everything_brings_what_the_principal_starts_later(mcp: StatelessMcp) -> None:
    me, other = await another(mcp), await another(mcp)
    before = await me.start("echo")
    async with open_link(before["socket"]) as link:
        await link.call("echo")
        async with me.calling("session_events", follow=True) as response:
            assert (await response.next_of("caller_tool_request"))["session_id"] == before["session_id"]
            await other.start()
            later = await me.start()
            told = [(await response.next())["params"]["data"] for _ in range(2)]
            assert [event["session_id"] for event in told] == [later["session_id"]] * 2
            assert [event["type"] for event in told] == ["session_started", "message"]
        assert (await link.receive())["error"]["data"] == {**GONE, "retry_safe": False}


async def test_closing_the_stream_ends_the_following_and_what_pends_but_no_session(mcp: StatelessMcp) -> None:
    session = await mcp.start("echo")
    async with open_link(session["socket"]) as link:
        async with mcp.calling("session_events", session_id=session["session_id"], follow=True) as response:
            await link.call("echo", id=1)
            request = await response.next_of("caller_tool_request")
        assert (await link.receive())["error"]["data"] == {**GONE, "retry_safe": False}
        await link.call("echo", id=2)
        assert (await link.receive())["error"]["data"] == {**GONE, "retry_safe": True}
    late = await mcp.answer(request, result=1)
    assert late["_meta"]["oubliette/error"]["kind"] == "conflict"
    assert await status_of(mcp, session) == "running"


async def test_an_observer_follows_and_does_not_count(mcp: StatelessMcp) -> None:
    observer = await another(mcp)
    session = await mcp.start("echo")
    name = {"session_id": session["session_id"], "follow": True}
    async with observer.calling("session_events", **name) as observed, open_link(session["socket"]) as link:
        async with mcp.calling("session_events", **name):
            await link.call("echo")
            request = await observed.next_of("caller_tool_request")
            refused = await observer.answer(request, result=1)
            assert refused["_meta"]["oubliette/error"]["kind"] == "forbidden"
        assert (await link.receive())["error"]["data"]["kind"] == "caller_disconnected"


# The two eras


@asynccontextmanager
async def agent_of(session: Any, mode: Any) -> AsyncIterator[Client]:
    """The agent's end: the official SDK beside a real `oubliette-client`."""
    command = ["-m", "oubliette_client", "--socket", session["socket"]]
    parameters = StdioServerParameters(command=sys.executable, args=command)
    async with Client(stdio_client(parameters), mode=mode) as agent:
        yield agent


async def test_a_new_caller_serves_an_agent_of_the_earlier_era(mcp: StatelessMcp) -> None:
    session = await mcp.start("echo")
    name = {"session_id": session["session_id"], "follow": True}
    async with mcp.calling("session_events", **name) as response, agent_of(session, "legacy") as agent:
        assert agent.session.protocol_version == "2025-11-25"
        results: list[Any] = []

        async def call() -> None:
            results.append(await agent.call_tool("myapp_echo", {"n": 1}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await mcp.answer(await response.next_of("caller_tool_request"), result={"n": 2})
    assert results[0].structured_content == {"n": 2}


async def test_a_caller_of_the_earlier_era_serves_a_new_agent(api: Api) -> None:
    mcp = await initialized(api)
    async with mcp.stream() as events:
        session = await mcp.start("echo")
        async with agent_of(session, "auto") as agent, trio.open_nursery() as nursery:
            assert agent.session.protocol_version == VERSION
            results: list[Any] = []

            async def call() -> None:
                results.append(await agent.call_tool("myapp_echo", {"n": 1}))

            nursery.start_soon(call)
            _, event = await events.next_of("caller_tool_request")
            request = event["params"]["data"]
            answer = {"session_id": session["session_id"], "request_id": request["request_id"]}
            await mcp.call("caller_tool_response", **answer, result={"n": 2})
    assert results[0].structured_content == {"n": 2}


async def test_one_principal_may_speak_both_at_once(api: Api, mcp: StatelessMcp) -> None:
    """A request is given on either stream, and answered once, on whichever way."""
    legacy = await initialized(api)
    async with legacy.stream() as events:
        session = await legacy.start("echo")
        name = {"session_id": session["session_id"], "follow": True}
        async with mcp.calling("session_events", **name) as response, open_link(session["socket"]) as link:
            await link.call("echo")
            request = await response.next_of("caller_tool_request")
            _, same = await events.next_of("caller_tool_request")
            assert same["params"]["data"] == request
            await mcp.answer(request, result="new")
            assert (await link.receive())["result"] == "new"
            again = {"session_id": session["session_id"], "request_id": request["request_id"]}
            late = await legacy.call("caller_tool_response", **again, result="old")
            assert late["_meta"]["oubliette/error"]["kind"] == "conflict"


# The stop


async def test_a_stop_ends_every_stream_in_good_order() -> None:
    with DaemonProcess("server: {shutdown_grace_seconds: 5}") as daemon:
        mcp = StatelessMcp(Api(daemon.port, daemon.admin_token))
        session = await mcp.start("echo")
        uri = f"oubliette://sessions/{session['session_id']}/events"
        listening = mcp.stream("subscriptions/listen", notifications={"resourceSubscriptions": [uri]})
        async with AsyncExitStack() as opened:
            one = await opened.enter_async_context(
                mcp.calling("session_events", session_id=session["session_id"], follow=True)
            )
            subscribed = await opened.enter_async_context(listening)
            link = await opened.enter_async_context(open_link(session["socket"]))
            await link.call("echo")
            await one.next_of("caller_tool_request")
            everything = await opened.enter_async_context(mcp.calling("session_events", follow=True))
            await everything.next_of("caller_tool_request")
            daemon.process.terminate()
            *events, answer = await everything.rest()
            assert [event["params"]["data"]["type"] for event in events] == ["caller_tool_cancelled", "session_ended"]
            assert events[-1]["params"]["data"]["reason"] == "shutdown"
            assert answer["result"]["_meta"]["oubliette/error"]["kind"] == "shutting_down"
            *_, ended, followed = await one.rest()
            assert ended["params"]["data"]["reason"] == "shutdown"
            assert followed["result"]["structuredContent"]["last_index"] == ended["params"]["data"]["index"]
            *_, closing = await subscribed.rest()
            assert closing["result"]["_meta"][f"{PREFIX}subscriptionId"] == 1
            assert await last_error(link) == -32800
        with trio.fail_after(20):
            assert await trio.to_thread.run_sync(daemon.process.wait) == 0
        assert '"level": "error"' not in daemon.log_text


async def last_error(link: AgentLink) -> int:
    return int((await link.receive())["error"]["code"])


# Subscriptions


async def test_a_subscription_tells_of_a_session_and_of_the_list(mcp: StatelessMcp) -> None:
    session = await mcp.start()
    uri = f"oubliette://sessions/{session['session_id']}/events"
    wanted = {"resourcesListChanged": True, "resourceSubscriptions": [uri, "oubliette://sessions/none/events"]}
    async with mcp.stream("subscriptions/listen", meta=META, notifications=wanted) as told:
        granted = (await told.next())["params"]["notifications"]
        assert granted == {"resourcesListChanged": True, "resourceSubscriptions": [uri]}
        await mcp.call("session_message", session_id=session["session_id"], message="more")
        updated = await told.next()
        while updated["method"] != "notifications/resources/updated":  # other tests start sessions too
            updated = await told.next()
        assert updated["params"] == {"uri": uri, "_meta": {f"{PREFIX}subscriptionId": 1}}
        await mcp.start()
        assert (await told.next())["method"] == "notifications/resources/list_changed"


# Resources and completion of the earlier revisions


async def test_resources_and_completion_of_the_earlier_revisions(api: Api) -> None:
    mcp = await initialized(api)
    session = await mcp.start()
    id = session["session_id"]
    uri = f"oubliette://sessions/{id}/events"
    assert uri in [entry["uri"] for entry in (await mcp.request("resources/list"))["result"]["resources"]]
    (template,) = (await mcp.request("resources/templates/list"))["result"]["resourceTemplates"]
    assert template["uriTemplate"] == "oubliette://sessions/{id}/events"
    contents = (await mcp.request("resources/read", uri=uri))["result"]["contents"][0]
    assert json.loads(contents["text"])["session_id"] == id
    reference = {"type": "ref/resource", "uri": template["uriTemplate"]}
    asked = {"ref": reference, "argument": {"name": "id", "value": id[:12]}}
    assert (await mcp.request("completion/complete", **asked))["result"]["completion"]["values"] == [id]
    assert (await mcp.request("prompts/list"))["result"] == {"prompts": []}
    async with mcp.stream() as events:
        assert (await mcp.request("resources/subscribe", uri=uri))["result"] == {}
        await mcp.call("session_message", session_id=id, message="more")
        told = [json.loads((await events.next()).data) for _ in range(2)]
        assert {message["method"] for message in told} == {"notifications/message", "notifications/resources/updated"}
        assert (await mcp.request("resources/unsubscribe", uri=uri))["result"] == {}
