"""Peers that mean no good: the same process goes on, the next request is 200, the log has a line (HAZARDS G6)."""

from __future__ import annotations

import json
import os
import random
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from tests.helpers.http import Api
from tests.helpers.link import open_link
from tests.helpers.mcp_http import initialized
from tests.helpers.peer import break_off, exchange, open_peer
from tests.helpers.process import DaemonProcess

HOST = b"Host: localhost\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WEBSOCKET = (
    b"GET /mcp HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def upgrade_to_h2c(settings: bytes) -> bytes:
    lines = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: " + settings
    return b"GET /health HTTP/1.1\r\n" + HOST + lines + b"\r\n\r\n"


@asynccontextmanager
async def surviving(daemon: DaemonProcess) -> AsyncIterator[Api]:
    """Asserts that what happens within leaves the daemon alive and answering, with lines in its log but no error."""
    api, pid, before = Api(daemon.port, daemon.admin_token), daemon.pid, len(daemon.log_text)
    yield api
    assert (await api.get("/health")).status == 200
    assert (await api.get("/ready")).status == 200
    assert daemon.process.poll() is None
    assert daemon.pid == pid
    lines = daemon.log_text[before:]
    assert lines
    assert '"level": "error"' not in lines


# --- finding 1 ---


_SOURCE = random.Random(20251121)
NO_HTTP = "what a peer sent is not HTTP/1.1"
# What is sent, how the answer begins, and what the log says of it.
FINDING_1 = {
    "h2c with bad settings": (upgrade_to_h2c(b"A"), b"HTTP/1.1 200", "/health"),
    "h2c with good settings": (upgrade_to_h2c(b"AAMAAABkAARAAAAAAAIAAAAA"), b"HTTP/1.1 200", "/health"),
    "h2c with empty settings": (upgrade_to_h2c(b""), b"HTTP/1.1 200", "/health"),
    "h2c with settings that are not ASCII": (upgrade_to_h2c(b"\xff\xfe"), b"HTTP/1.1 200", "/health"),
    "HTTP/2 by prior knowledge": (PREFACE + bytes(9), b"HTTP/1.1 400", "http ended"),
    "HTTP/2 and garbage": (PREFACE + _SOURCE.randbytes(500), b"HTTP/1.1 400", "http ended"),
    "WebSocket": (WEBSOCKET, b"HTTP/1.1 401", "http ended"),
    "WebSocket and a stray byte": (WEBSOCKET + b"x", b"HTTP/1.1 401", "http ended"),
    "WebSocket and frames at once": (WEBSOCKET + b"\x81\x85\0\0\0\0hello" * 100, b"HTTP/1.1 401", "http ended"),
    "WebSocket of another version": (WEBSOCKET.replace(b"13", b"14"), b"HTTP/1.1 401", ""),
    "WebSocket by POST": (WEBSOCKET.replace(b"GET", b"POST"), b"HTTP/1.1 401", "/mcp"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + _SOURCE.randbytes(300), b"HTTP/1.1 400", NO_HTTP),
    "garbage": (_SOURCE.randbytes(2000) + b"\r\n\r\n", b"HTTP/1.1 400", NO_HTTP),
    "zeros": (bytes(5000), b"HTTP/1.1 400", NO_HTTP),
    "a header of odd bytes": (b"GET / HTTP/1.1\r\n" + HOST + b"X-\xff: \0\r\n\r\n", b"HTTP/1.1 400", NO_HTTP),
    "a version of the future": (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", b"HTTP/1.1 401", "http ended"),
    "a target without end": (b"GET /" + b"a" * 40_000, b"HTTP/1.1 431", NO_HTTP),
    "headers without end": (b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 9000, b"HTTP/1.1 431", NO_HTTP),
}


@pytest.mark.parametrize("name", FINDING_1)
async def test_what_ends_a_daemon_on_hypercorns_own_worker(daemon: DaemonProcess, name: str) -> None:
    sent, starts, line = FINDING_1[name]
    async with surviving(daemon):
        before = len(daemon.log_text)
        async with open_peer(daemon.port) as peer:
            await peer.send(sent)
            received = bytes(await peer.stream.receive_some(65536))
            assert received.startswith(starts)
            assert b" 101 " not in received
        with trio.fail_after(10):
            while line not in daemon.log_text[before:]:  # noqa: ASYNC110  # another process writes it
                await trio.sleep(0.01)


JSON = b"TOKENContent-Type: application/json\r\n"
UNFINISHED = [
    b"",
    b"G",
    b"GET /health HTTP/1.1\r\n",
    b"POST /sessions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 100\r\n\r\n",
    b"POST /sessions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 100\r\n\r\n{",
    b"POST /mcp HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    b"GET /sessions/SESSION/events?since_index=9&wait_seconds=20 HTTP/1.1\r\nAccept: application/json\r\n"
    + HOST
    + b"TOKEN\r\n",
]
ANSWERED = [
    b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /health HTTP/1.1\r\n" + HOST + b"\r\nGET /he",
    b"POST /sessions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 2\r\n\r\n{}",
    b"POST /sessions HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    b"POST /sessions HTTP/1.1\r\n" + HOST + b"TOKENContent-Type: text/plain\r\nContent-Length: 9999999\r\n\r\nxxx",
    b"GET /events HTTP/1.1\r\n" + HOST + b"TOKEN\r\n",
    b"GET /sessions/SESSION/events HTTP/1.1\r\n" + HOST + b"TOKEN\r\n",
    WEBSOCKET,
]


@pytest.mark.parametrize("ending", ["reset", "close", "half-close", "reset within the answer"])
async def test_peers_that_break_off_at_every_phase(daemon: DaemonProcess, ending: str) -> None:
    async with surviving(daemon) as api:
        session = await api.start_session("echo")
        for phase in ANSWERED if "answer" in ending else UNFINISHED + ANSWERED:
            sent = phase.replace(b"TOKEN", f"Authorization: Bearer {api.token}\r\n".encode())
            sent = sent.replace(b"SESSION", session["session_id"].encode())
            for _ in range(3):
                if ending == "half-close":
                    await exchange(daemon.port, sent)
                else:
                    await break_off(daemon.port, sent, polite=ending == "close", reads="answer" in ending)
        async with open_link(session["socket"]) as link:
            await link.call("echo")
            assert (await link.receive())["error"]["code"] == -32003, "none of those streams counts any more"


async def test_mutated_requests(daemon: DaemonProcess) -> None:
    """A thousand requests with bytes exchanged, removed, doubled: seeded, so that a failure can be had again."""
    async with surviving(daemon) as api:
        token = f"Authorization: Bearer {api.token}\r\n".encode()
        seeds = [phase.replace(b"TOKEN", token) for phase in UNFINISHED + ANSWERED]
        seeds += [upgrade_to_h2c(b"AAMAAABk"), WEBSOCKET + b"\x81\x80\0\0\0\0", PREFACE]
        seeds += [b"POST /mcp HTTP/1.1\r\n" + HOST + token + initialize()]
        random_source = random.Random(20251121)
        work = [mutate(random_source.choice(seeds), random_source) for _ in range(1000)]

        async def attack() -> None:
            while work:
                await exchange(daemon.port, work.pop())

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(attack)


def initialize() -> bytes:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode()
    return b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def mutate(data: bytes, source: random.Random) -> bytes:
    for _ in range(source.randint(1, 4)):
        at, length = source.randrange(len(data) + 1), source.choice([1, 1, 2, 8, 64])
        odd = [b"", b"\r\n", b"\0", b": ", b"\xff"]
        piece = source.choice([source.randbytes(length), data[at : at + length] * 2, *odd])
        data = data[:at] + piece + data[at + length * source.randint(0, 1) :]
    return data


# --- many ---


async def test_two_thousand_drips_beside_a_healthy_client(daemon: DaemonProcess) -> None:
    """They are let in, they cost no task of the healthy one anything but time, and they are cut (`test_server.py`)."""
    async with surviving(daemon) as api, AsyncExitStack() as drips, trio.open_nursery() as nursery:
        streams: list[trio.SocketStream] = []

        async def drip() -> None:
            for _ in range(125):
                stream = await drips.enter_async_context(await trio.open_tcp_stream("127.0.0.1", daemon.port))
                await stream.send_all(b"GET /health HTTP/1.1\r\nX: ")
                streams.append(stream)

        for _ in range(16):
            nursery.start_soon(drip)
        while len(streams) < 2000:
            assert (await api.get("/health")).status == 200
        session = await api.start_session("echo")
        assert (await api.get(f"/sessions/{session['session_id']}")).json["status"] == "running"


@pytest.fixture
def own_daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess("relay: {attach_grace_seconds: 2}") as process:
        yield process


async def test_without_descriptors_live_sessions_go_on_and_newcomers_get_in_again(own_daemon: DaemonProcess) -> None:
    """HAZARDS F29: EMFILE. Idle connections make room."""
    api = Api(own_daemon.port, own_daemon.admin_token)
    session = await api.start_session("echo")
    path = f"/sessions/{session['session_id']}/events"
    async with AsyncExitStack() as clients:
        events = await clients.enter_async_context(api.events(path))
        link = await clients.enter_async_context(open_link(session["socket"]))
        used = len(os.listdir(f"/proc/{own_daemon.pid}/fd"))
        _, hard = resource.prlimit(own_daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(own_daemon.pid, resource.RLIMIT_NOFILE, (used + 10, hard))
        idle = [await clients.enter_async_context(open_peer(own_daemon.port)) for _ in range(40)]

        await link.call("echo")
        _, request = await events.next_of("caller_tool_request")
        assert (await api.answer(session, request["request_id"], result="there")).status == 204
        assert (await link.receive())["result"] == "there"
        assert (await api.get("/health")).status == 200
        assert "cannot accept connections" in own_daemon.log_text
        with trio.fail_after(20):
            assert await idle[0].rest() == b"", "it made room"
        resource.prlimit(own_daemon.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert (await api.start_session("echo"))["status"] == "running"
    assert own_daemon.process.poll() is None


# --- what is told apart ---


async def test_equal_ids_of_json_rpc_never_cross(api: Api) -> None:
    """HAZARDS T6: many callers, every one of them with the same ids, all at once."""

    async def caller(number: int) -> None:
        mcp = await initialized(api)
        session = await mcp.start(f"tool{number}")
        for _ in range(5):
            found = await mcp.call("session_get", session_id=session["session_id"])
            assert found["structuredContent"]["caller_tools"] == [f"tool{number}"]

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(caller, number)


HOSTILE_TEXTS = [
    "a\nb",
    "a\r\nb",
    "a\rb",
    "\n\nevent: session_ended\ndata: {}\n\n",
    "\r\rid: 9\r\r",
    "\u2028\u2029\u0085\x0b\x0c\x1c",
    "\0",
    ": comment",
    "\ufeffdata",
    "'\"\\{}[]",
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
async def test_one_event_in_is_one_event_out(api: Api, text: str) -> None:
    """HAZARDS T28: no text ends a frame, in a name, a message, an argument or an answer."""
    session = await api.start_session("echo", message=text)
    path = f"/sessions/{session['session_id']}/events?since_index=0"
    async with api.events(path) as events, open_link(session["socket"]) as link:
        assert [(await events.next()).type for _ in range(2)] == ["session_started", "message"]
        await link.call("echo", {text: [text]}, id=text)
        frame, request = await events.next_of("caller_tool_request")
        assert (frame.id, request["index"], request["arguments"]) == ("3", 3, {text: [text]})
        assert (await api.answer(session, request["request_id"], result={text: text})).status == 204
        assert await link.receive() == {"jsonrpc": "2.0", "id": text, "result": {text: text}}
        assert (await events.next()).id == "4"


async def test_line_ends_between_the_tokens_of_a_payload_break_no_frame(api: Api) -> None:
    """JSON allows them, `msgspec.Raw` keeps them, SSE and the link's lines end at them."""
    session = await api.start_session("echo")
    async with (
        api.events(f"/sessions/{session['session_id']}/events") as events,
        open_link(session["socket"]) as link,
    ):
        await link.send_line(
            b'{"id":1,"method":"caller_tool","params":{"tool":"echo","arguments":{"a":\r1.10\r,"b":[\r]}}}'
        )
        frame, request = await events.next_of("caller_tool_request")
        assert '"arguments":{"a":1.10,"b":[]}' in frame.data
        path = f"/sessions/{session['session_id']}/requests/{request['request_id']}"
        answered = await api.request("POST", path, b'{"result":\r\n {"a":\n\n1.10,\r"b":1e400}}')
        assert answered.status == 204
        assert await link.receive_line() == b'{"jsonrpc":"2.0","id":1,"result":{"a":1.10,"b":1e400}}'


@pytest.mark.parametrize(
    "name", ["Authorization", "Last-Event-ID", "Accept", "Content-Type", "Mcp-Session-Id", "X-Odd"]
)
async def test_headers_that_are_not_utf8(daemon: DaemonProcess, name: str) -> None:
    """HAZARDS T30."""
    async with surviving(daemon) as api:
        for path in ("/mcp", "/events", "/sessions/x/events", "/sessions/%ff%fe"):
            lines = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n".encode()
            async with open_peer(daemon.port) as peer:
                await peer.send(lines + name.encode() + b": \xff\xfe\xc3\x28\r\n\r\n")
                answer = bytes(await peer.stream.receive_some(65536))
                assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200"))


async def test_a_session_is_not_reached_with_another_projects_token(api: Api) -> None:
    """HAZARDS T4 and T5: neither by its id, nor by an MCP session's that is somebody else's."""
    mcp = await initialized(api)
    session = await mcp.start("echo")
    created = (await mcp.call("token_create", name="b", scope="project:other"))["structuredContent"]
    other = Api(api.port, created["token"])
    for method in ("GET", "DELETE"):
        assert (await other.request(method, f"/sessions/{session['session_id']}")).status == 404
        assert (await other.request(method, "/mcp", None, mcp.headers)).status == 404
    ping: Any = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert (await other.request("POST", "/mcp", ping, mcp.headers)).status == 404
    assert (await mcp.request("ping"))["result"] == {}
