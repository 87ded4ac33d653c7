"""What ends with a token: everything that its principal has open, within a second (HAZARDS G12, F33)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from math import inf
from typing import Any

import pytest
import trio

from tests.helpers.http import Api, EventReader, Reply
from tests.helpers.link import AgentLink, open_link
from tests.helpers.mcp_http import ACCEPT, McpHttp, initialized
from tests.helpers.mcp_socket import LOGGED, META, McpSocketClient, open_socket

LIMIT = 20
# Seconds: HAZARDS G12, "≤ 1 s".
AT_ONCE = 1.0
STATELESS = {"Accept": ACCEPT, "MCP-Protocol-Version": "2026-07-28"}

Waiting = Callable[[], Awaitable[Any]]


class Principal:
    """A principal with an external session that offers `send`, and everything open that can be."""

    def __init__(self, api: Api, token_id: str, expires_at: str | None) -> None:
        self.api = api
        self.token_id = token_id
        self.expires_at = datetime.fromisoformat(expires_at).timestamp() if expires_at else inf
        self.session: Any = None
        self.link: AgentLink
        self.mcp: McpHttp
        self.open: dict[str, Waiting] = {}

    async def poll(self) -> Reply:
        return await self.api.get(self._events("?wait_seconds=30&since_index=9"), {"Accept": "application/json"})

    async def held(self) -> Reply:
        arguments = {"session_id": self.session["session_id"], "since_index": 9, "wait_seconds": 30}
        return await self.mcp.post(_call("session_events", **arguments))

    async def followed(self) -> Reply:
        """Its head is out: the pending request was told on it."""
        message = _call("session_events", LOGGED, session_id=self.session["session_id"], follow=True)
        return await self.api.request("POST", "/mcp", message, _stateless("session_events"))

    async def listened(self) -> Reply:
        params = {"notifications": {"toolsListChanged": True}, "_meta": META}
        message = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
        headers = {**STATELESS, "Mcp-Method": "subscriptions/listen"}
        return await self.api.request("POST", "/mcp", message, headers)

    async def open_all(self, stack: AsyncExitStack) -> None:
        """Opens a stream of each kind. `open` has what returns when it has ended."""
        self.session = await self.api.start_session("send")
        self.mcp = await initialized(self.api)
        await self.mcp.call("session_get", session_id=self.session["session_id"])
        streams = {
            "GET /events": self.api.events("/events"),
            "GET /sessions/{id}/events": self.api.events(self._events("")),
            "GET /mcp": self.mcp.stream(),
        }
        for name, stream in streams.items():
            self.open[name] = _reader(await stack.enter_async_context(stream))
        socket = await stack.enter_async_context(open_socket(self.api))
        await socket.initialize()
        self.open["WebSocket"] = socket.close_code
        self.open |= {"poll": self.poll, "held": self.held, "followed": self.followed, "listened": self.listened}

    def _events(self, query: str) -> str:
        return f"/sessions/{self.session['session_id']}/events{query}"


def _call(tool: str, meta: Any = None, **arguments: Any) -> Any:
    params = {"name": tool, "arguments": arguments, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def _stateless(tool: str) -> dict[str, str]:
    return {**STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": tool}


def _reader(events: EventReader) -> Waiting:
    async def read() -> str:
        try:
            while True:
                await events.next()
        except trio.EndOfChannel:
            return "ended"

    return read


@asynccontextmanager
async def principal(admin: Api, **more: Any) -> AsyncIterator[Principal]:
    """A principal of scope admin, whose session's link is open (an external one's path is for admins)."""
    mcp = await initialized(admin)
    made = (await mcp.call("token_create", name="test", scope="admin", **more))["structuredContent"]
    async with AsyncExitStack() as stack:
        found = Principal(Api(admin.port, made["token"]), made["token_id"], made["expires_at"])
        await found.open_all(stack)
        found.link = await stack.enter_async_context(open_link(found.session["socket"]))
        yield found


async def revoke(admin: Api, token_id: str) -> None:
    mcp = await initialized(admin)
    assert (await mcp.call("token_revoke", token_id=token_id))["structuredContent"] == {"revoked": True}


class Ends:
    """What the open streams of a principal ended with, and when."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self.times: list[float] = []

    async def watch(self, name: str, wait: Waiting) -> None:
        self.results[name] = await wait()
        self.times.append(trio.current_time())


async def all_end(found: Principal, end: Callable[[], Awaitable[float]]) -> dict[str, Any]:
    """Waits on everything that is open, calls `end`, and returns what each ended with, all within a second of it."""
    ends = Ends()
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            for name, wait in found.open.items():
                nursery.start_soon(ends.watch, name, wait)
            await found.link.call("send")
            await _until_heard(found)
            ended_at = await end()
        answer = await found.link.receive()
    assert min(ends.times) >= ended_at - 0.01
    assert max(ends.times) - ended_at < AT_ONCE
    assert (answer["error"]["code"], answer["error"]["data"]["kind"]) == (-32003, "caller_disconnected")
    return ends.results


async def _until_heard(found: Principal) -> None:
    """Returns when the request is an event, and what waits has had its time to be taken up."""
    path = f"/sessions/{found.session['session_id']}/events?since_index=0&wait_seconds=10"
    while True:
        page = (await found.api.get(path, {"Accept": "application/json"})).json
        if any(event["type"] == "caller_tool_request" for event in page["events"]):
            return


def check(ends: dict[str, Any]) -> None:
    refused = {name: result for name, result in ends.items() if isinstance(result, Reply) and result.status == 401}
    assert set(refused) >= {"poll", "held"}
    assert ends["GET /events"] == ends["GET /sessions/{id}/events"] == ends["GET /mcp"] == "ended"
    assert ends["WebSocket"] == 1008
    for name in ("followed", "listened"):
        assert (ends[name].status, ends[name].headers["content-type"][:17]) == (200, "text/event-stream")


async def is_out(api: Api) -> bool:
    replies = [
        await api.get("/events", {"Accept": "text/event-stream"}),
        await api.get("/sessions/x"),
        await api.request("POST", "/mcp", _call("token_list")),
    ]
    return [reply.status for reply in replies] == [401] * 3


async def test_a_revocation_ends_all_that_its_principal_has_open(api: Api) -> None:
    async with principal(api) as found:

        async def end() -> float:
            now = trio.current_time()
            await revoke(api, found.token_id)
            return now

        check(await all_end(found, end))
        assert await is_out(found.api)


async def test_an_expiry_does_too(api: Api) -> None:
    async with principal(api, expires_in_seconds=1.0) as found:

        async def end() -> float:
            return trio.current_time() + found.expires_at - time.time()

        check(await all_end(found, end))
        assert await is_out(found.api)


async def test_the_sessions_of_the_principal_go_on_without_a_caller(api: Api) -> None:
    """An agent's work is not lost with a key; who may see the session still does, and may end it."""
    async with principal(api) as found:
        await revoke(api, found.token_id)
        await found.link.call("send")
        assert (await found.link.receive())["error"]["data"] == {"kind": "caller_disconnected", "retry_safe": True}
        session = f"/sessions/{found.session['session_id']}"
        assert (await api.get(session)).json["status"] == "running"
        events = (await api.get(f"{session}/events", {"Accept": "application/json"})).json["events"]
        assert "session_ended" not in {event["type"] for event in events}
        assert (await api.request("DELETE", session)).json["status"] == "ended"


async def test_others_streams_are_left_alone(api: Api) -> None:
    async with principal(api) as mine, principal(api) as yours:
        await revoke(api, mine.token_id)
        assert await is_out(mine.api)
        async with yours.api.events("/events") as events:
            await yours.link.call("send")
            assert (await events.next_of("caller_tool_request"))[1]["session_id"] == yours.session["session_id"]


@pytest.mark.parametrize("door", ["mcp", "websocket"])
async def test_whoever_revokes_its_own_token_is_told_so(api: Api, door: str) -> None:
    async with principal(api) as found, _mcp(found.api, door) as mcp:
        assert (await mcp.call("token_revoke", token_id=found.token_id))["structuredContent"] == {"revoked": True}
        if isinstance(mcp, McpSocketClient):
            assert await mcp.close_code() == 1008
        assert await is_out(found.api)


@asynccontextmanager
async def _mcp(api: Api, door: str) -> AsyncIterator[McpHttp | McpSocketClient]:
    if door == "mcp":
        yield await initialized(api)
    else:
        async with open_socket(api) as socket:
            await socket.initialize()
            yield socket
