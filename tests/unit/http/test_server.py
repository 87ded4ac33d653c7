"""Connections on memory streams with a clock of the test's own, and the server around them on real sockets."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from hypercorn.trio.worker_context import WorkerContext
from trio.testing import MockClock, lockstep_stream_pair, wait_all_tasks_blocked

import oubliette.http.server
from oubliette.http.server import (
    HEADER_TIMEOUT,
    KEEP_ALIVE,
    MAX_PIECES,
    WRITE_RATE,
    WRITE_TIMEOUT,
    Connection,
)
from tests.helpers.peer import Peer
from tests.unit.http.harness import GET, Receive, Send, connected, ok, serving, slowly_read


def test_hypercorn_is_the_one_version_whose_protocol_class_was_read() -> None:
    """`server.py` overrides private methods of it: another version needs another reading."""
    assert importlib.metadata.version("hypercorn") == "0.18.0"
    pyproject = Path(__file__).parents[3] / "pyproject.toml"
    assert re.findall(r'"hypercorn([^"]*)"', pyproject.read_text()) == ["==0.18.0"]


# --- what one peer sends ends one connection ---


async def break_down(scope: Any, receive: Receive, send: Send) -> None:
    raise RuntimeError(f"boom at {scope['path']}")


async def break_down_in_half(scope: Any, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("boom behind the head")


async def break_in_a_group(scope: Any, receive: Receive, send: Send) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        raise RuntimeError("boom in a nursery")


async def send_nonsense(scope: Any, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"more than two"})


@pytest.mark.parametrize("broken", [break_down, break_down_in_half, break_in_a_group, send_nonsense])
async def test_an_error_in_a_connections_tasks_ends_that_connection_alone(
    broken: Callable[[Any, Receive, Send], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await (broken if scope["path"] == "/broken" else ok)(scope, receive, send)

    async with serving(app) as (_, connect):
        bystander = await connect()
        await bystander.send(GET)
        assert (await bystander.response())[0] == 200
        victim = await connect()
        await victim.send(GET.replace(b"/ ", b"/broken "))
        await victim.rest()
        await bystander.send(GET)
        assert (await bystander.response())[0] == 200
        newcomer = await connect()
        await newcomer.send(GET)
        assert (await newcomer.response())[0] == 200
    assert "a connection" in caplog.text


async def test_an_error_in_the_protocol_ends_that_connection_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Finding 1 of HAZARDS: what Hypercorn's own worker dies of. The reader itself raises here."""

    async def broken(self: Any, request: Any) -> None:
        if request.target == b"/broken":
            raise IndexError("as Hypercorn raises on a bad HTTP2-Settings")

    monkeypatch.setattr(oubliette.http.server._PlainH11Protocol, "_check_protocol", broken)
    async with serving(ok) as (_, connect):
        bystander, victim = await connect(), await connect()
        await victim.send(GET.replace(b"/ ", b"/broken "))
        assert await victim.rest() == b""
        await bystander.send(GET)
        assert (await bystander.response())[0] == 200
    assert "a connection failed" in caplog.text


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\1\2\3\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000,
    ],
)
async def test_what_is_not_http_is_refused_in_json_and_logged(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(ok) as peer:
        await peer.send(sent)
        status, headers, body = await peer.response()
        assert 400 <= status < 500
        assert (headers[b"content-type"], headers[b"connection"]) == (b"application/json", b"close")
        assert b'"kind":"invalid_request"' in body
        assert await peer.rest() == b""
    assert "not HTTP/1.1" in caplog.text


@pytest.mark.parametrize("settings", [b"A", b"AAMAAABkAARAAAAAAAIAAAAA"])
async def test_h2c_is_not_spoken(settings: bytes) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: " + settings
    async with connected(ok) as peer:
        await peer.send(GET.replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n\r\n"))
        assert (await peer.response())[0] == 200


async def test_prior_knowledge_of_http2_gets_http1() -> None:
    async with connected(ok) as peer:
        await peer.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        assert (await peer.rest()).startswith(b"HTTP/1.1 ")


# --- time ---


async def test_an_idle_connection_is_kept_for_75_seconds(autojump_clock: MockClock) -> None:
    async with connected(ok) as peer:
        for _ in range(3):
            await trio.sleep(KEEP_ALIVE - 1)
            await peer.send(GET)
            assert (await peer.response())[0] == 200
        left_at = trio.current_time()
        assert await peer.rest() == b""
        assert trio.current_time() == left_at + KEEP_ALIVE == left_at + 75


async def test_a_peer_that_says_nothing_is_cut_after_75_seconds(autojump_clock: MockClock) -> None:
    async with connected(ok) as peer:
        assert await peer.rest() == b""
        assert trio.current_time() == 75


async def test_headers_that_drip_get_no_more_time_with_each_byte(autojump_clock: MockClock) -> None:
    async with connected(ok) as peer, trio.open_nursery() as nursery:
        await trio.sleep(30)

        async def drip() -> None:
            for byte in GET:
                await peer.send(bytes([byte]))
                await trio.sleep(1)

        nursery.start_soon(drip)
        assert await peer.rest() == b""
        assert trio.current_time() == 30 + HEADER_TIMEOUT
        nursery.cancel_scope.cancel()


async def test_a_request_may_take_longer_than_an_idle_connection(autojump_clock: MockClock) -> None:
    async def slow(scope: Any, receive: Receive, send: Send) -> None:
        await trio.sleep(KEEP_ALIVE * 3)
        await ok(scope, receive, send)

    async with connected(slow) as peer:
        await peer.send(GET)
        assert (await peer.response())[0] == 200
        assert trio.current_time() == KEEP_ALIVE * 3


@pytest.mark.parametrize("size", [1, WRITE_RATE, 4 * WRITE_RATE])
async def test_a_write_that_hangs_ends_the_connection_and_the_application(
    size: int, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[float] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(size), "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.append(trio.current_time())

    caplog.set_level(logging.INFO)
    async with slowly_read(app) as peer:
        await peer.send(GET)
        await peer.rest()
        assert trio.current_time() == pytest.approx(WRITE_TIMEOUT + size / WRITE_RATE, abs=0.05)
        await wait_all_tasks_blocked()
        assert ended == [trio.current_time()]
    assert "does not read" in caplog.text


async def test_a_longer_write_has_more_time(autojump_clock: MockClock) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(4 * WRITE_RATE)})

    async with slowly_read(app, WRITE_TIMEOUT + 3) as peer:
        await peer.send(GET)
        assert len((await peer.response())[2]) == 4 * WRITE_RATE
        assert trio.current_time() == WRITE_TIMEOUT + 3


async def test_stalled_and_trickling_readers_are_cut_while_a_healthy_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over real sockets, with a kernel's buffers in between. Only the deadline is shorter than in earnest."""
    monkeypatch.setattr(oubliette.http.server, "WRITE_TIMEOUT", 0.3)
    monkeypatch.setattr(oubliette.http.server, "WRITE_RATE", 1024 * 1024)
    running: set[str] = set()

    async def stream(scope: Any, receive: Receive, send: Send) -> None:
        async def pour() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": bytes(256 * 1024), "more_body": True})

        running.add(scope["path"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pour)
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()
        running.remove(scope["path"])

    async def trickle(peer: Peer) -> None:
        while await peer.stream.receive_some(1):  # noqa: ASYNC110  # the pace is the point
            await trio.sleep(0.01)

    async with serving(stream) as (_, connect), trio.open_nursery() as nursery:
        peers = {name: await connect() for name in ("stalled", "trickling", "healthy")}
        for name, peer in peers.items():
            await peer.send(GET.replace(b"/ ", f"/{name} ".encode()))
        nursery.start_soon(trickle, peers["trickling"])
        while len(running) < 3:
            await trio.lowlevel.checkpoint()
        while running != {"/healthy"}:
            assert await peers["healthy"].stream.receive_some(65536)
        for _ in range(100):
            assert await peers["healthy"].stream.receive_some(65536)
        nursery.cancel_scope.cancel()


# --- what the application and the protocol owe each other ---


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def name(scope: Any, receive: Receive, send: Send) -> None:
        body = scope["path"].encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": body})

    async with connected(name) as peer:
        await peer.send(b"".join(GET.replace(b"/ ", b"/%d " % number) for number in range(5)))
        assert [(await peer.response())[2] for _ in range(5)] == [b"/%d" % number for number in range(5)]


async def test_a_peer_that_leaves_is_a_disconnect(autojump_clock: MockClock) -> None:
    """A half-close counts as leaving (HAZARDS F19)."""
    received: list[Any] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        while not received or received[-1] != "http.disconnect":
            received.append((await receive())["type"])
        assert (await receive())["type"] == "http.disconnect", "as often as it is asked for"

    async with connected(app) as peer:
        await peer.send(GET)
        await wait_all_tasks_blocked()
        assert received == ["http.request"]
        await peer.stream.send_eof()  # type: ignore[attr-defined]  # a StapledStream
        await wait_all_tasks_blocked()
        assert received == ["http.request", "http.disconnect"]


async def test_an_application_that_does_not_read_the_body_can_answer() -> None:
    """The queue to it is full then, and Hypercorn puts the disconnect into it from the application's own task."""

    async def deaf(scope: Any, receive: Receive, send: Send) -> None:
        await wait_all_tasks_blocked()
        await ok(scope, receive, send)

    async with connected(deaf) as peer:
        await peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n")
        for _ in range(2 * MAX_PIECES):
            await peer.send(bytes(64 * 1024))
        assert (await peer.rest()).endswith(b"\r\n\r\nok")


async def test_a_body_that_nobody_reads_is_held_within_bounds() -> None:
    async def deaf(scope: Any, receive: Receive, send: Send) -> None:
        await trio.sleep_forever()

    ours, theirs = lockstep_stream_pair()
    sent = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(deaf, WorkerContext(None), theirs).run)
        await ours.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 90000000\r\n\r\n")

        async def flood() -> None:
            nonlocal sent
            while True:
                await ours.send_all(bytes(64 * 1024))
                sent += 1

        nursery.start_soon(flood)
        await wait_all_tasks_blocked()
        assert sent <= MAX_PIECES + 2
        nursery.cancel_scope.cancel()
