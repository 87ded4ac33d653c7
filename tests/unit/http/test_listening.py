"""The listening socket: when there is no room, when an accept fails, and the stop."""

from __future__ import annotations

import errno
import resource
import socket
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from oubliette.errors import InvalidRequest
from oubliette.http.server import MAX_CONNECTIONS, HttpServer, bind
from tests.unit.http.harness import GET, Receive, Send, ok, serving


async def test_where_connections_run_out_the_idle_ones_make_room(caplog: pytest.LogCaptureFixture) -> None:
    async def busy(scope: Any, receive: Receive, send: Send) -> None:
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"on", "more_body": True})
            await trio.sleep_forever()
        await ok(scope, receive, send)

    async with serving(busy, max_connections=3) as (_, connect):
        working = await connect()
        await working.send(GET.replace(b"/ ", b"/stream "))
        idle = [await connect(), await connect()]
        for peer in idle:
            await peer.send(GET)
            assert (await peer.response())[0] == 200
        newcomer = await connect()
        await newcomer.send(GET)
        assert (await newcomer.response())[0] == 200
        for peer in idle:
            assert await peer.rest() == b""
        assert b"200" in bytes(await working.stream.receive_some(64))
    assert "3 connections are open" in caplog.text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EPROTO, errno.ECONNABORTED])
async def test_an_accept_that_fails_is_tried_again(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept_one, failures = HttpServer._accept_one, [number, number]

    def fail_at_first(self: HttpServer) -> Any:
        if failures:
            raise OSError(failures.pop(), "as the test wants it")
        return accept_one(self)

    monkeypatch.setattr(HttpServer, "_accept_one", fail_at_first)
    async with serving(ok) as (_, connect):
        peer = await connect()
        await peer.send(GET)
        assert (await peer.response())[0] == 200
    assert caplog.text.count("cannot accept connections") == 2


async def test_a_stop_lets_responses_end_and_returns_with_the_last_one() -> None:
    may_end = trio.Event()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            await may_end.wait()
        await ok(scope, receive, send)

    async with serving(app) as (server, connect):
        idle, slow = await connect(), await connect()
        await idle.send(GET)
        assert (await idle.response())[0] == 200
        await slow.send(GET.replace(b"/ ", b"/slow "))
        await wait_all_tasks_blocked(0.05)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.stop)
            assert await idle.rest() == b""
            meanwhile = await connect()
            await meanwhile.send(GET)
            assert (await meanwhile.rest()).endswith(b"ok"), "answered, and closed after it"
            may_end.set()
            assert (await slow.rest()).endswith(b"ok")
        with pytest.raises(OSError, match="all attempts to connect"):
            await connect()


def test_half_of_the_descriptors_are_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((64, 32), (1_000_000, MAX_CONNECTIONS), (resource.RLIM_INFINITY, MAX_CONNECTIONS)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        with bind("127.0.0.1", 0) as listener:
            assert HttpServer(ok, listener)._max_connections == most


def test_an_address_that_cannot_be_had_is_refused_in_words() -> None:
    with bind("127.0.0.1", 0) as taken:
        for host, port in (("127.0.0.1", taken.getsockname()[1]), ("127.0.0.1", 99999), ("192.0.2.1", 0)):
            with pytest.raises(InvalidRequest, match="choose another with --host and --port") as refusal:
                bind(host, port)
            assert refusal.value.field == "server.port"


def test_half_open_peers_are_found_by_the_kernel() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
