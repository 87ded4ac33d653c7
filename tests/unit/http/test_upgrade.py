"""Requests that take their connection over: before, while and after they have it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.errors import Forbidden
from oubliette.http.request import UPGRADE, Request
from oubliette.http.server import HEADER_TIMEOUT, KEEP_ALIVE
from tests.helpers.peer import Peer
from tests.unit.http.harness import GET, Receive, Send, connected, make_door, serving

LINES = b"Authorization: Bearer good\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
ASKED = GET.replace(b"\r\n\r\n", b"\r\n" + LINES + b"\r\n")
HEADERS = [(b"upgrade", b"websocket"), (b"connection", b"upgrade")]
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"


async def shout(request: Request) -> None:
    """Takes the connection over where that is asked for, and answers every read in capitals, until one says `end`."""
    if not request.wants_websocket:
        return await request.respond(200, b'"plain"')
    stream, data = await request.upgrade(HEADERS)
    while data != b"end":
        await stream.send_all(data.upper() or b"-")
        data = bytes(await stream.receive_some(100))
        if not data:
            return


async def received(peer: Peer, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += bytes(await peer.stream.receive_some(length - len(data)))
    return data


async def test_the_route_has_the_connection_and_the_connection_ends_with_it() -> None:
    async with connected(make_door(shout)) as peer:
        await peer.send(ASKED)
        assert await received(peer, len(ACCEPTED) + 1) == ACCEPTED + b"-"
        for word in (b"one", b"two", GET):
            await peer.send(word)
            assert await received(peer, len(word)) == word.upper()
        await peer.send(b"end")
        assert await peer.rest() == b""


@pytest.mark.parametrize("behind", [b"x", b"frames that could not wait", b"\r\n\r\n", GET])
async def test_what_came_behind_the_request_is_the_routes(behind: bytes) -> None:
    """HAZARDS, finding 1: one byte of it ended Hypercorn."""
    async with connected(make_door(shout)) as peer:
        await peer.send(ASKED + behind)
        assert await received(peer, len(ACCEPTED + behind)) == ACCEPTED + behind.upper()


async def test_the_request_may_come_in_pieces_and_follow_others() -> None:
    async with connected(make_door(shout)) as peer:
        await peer.send(GET.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer good\r\n\r\n"))
        assert (await peer.response())[0] == 200
        for at in range(len(ASKED)):
            await peer.send(ASKED[at : at + 1])
        assert await received(peer, len(ACCEPTED) + 1) == ACCEPTED + b"-"


async def test_over_a_real_socket_a_peer_that_leaves_is_the_end_of_the_stream() -> None:
    async with serving(make_door(shout)) as (server, connect):
        peer = await connect()
        await peer.send(ASKED + b"a")
        assert await received(peer, len(ACCEPTED) + 1) == ACCEPTED + b"A"
        assert isinstance(peer.stream, trio.SocketStream)
        await peer.stream.send_eof()
        assert await peer.rest() == b""
        await wait_all_tasks_blocked()
        assert server._connections == set()


# --- the answers of HTTP ---


async def test_whoever_is_refused_can_go_on_in_http() -> None:
    async def refuse(request: Request) -> None:
        if request.wants_websocket:
            raise Forbidden("no")
        await shout(request)

    async with connected(make_door(refuse)) as peer:
        for sent, status in (
            (ASKED.replace(b"good", b"bad"), 401),
            (ASKED.replace(b"localhost", b"evil.com"), 403),
            (ASKED.replace(b"\r\n\r\n", b"\r\nOrigin: http://evil.com\r\n\r\n"), 403),
            (ASKED, 403),
            (GET.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer good\r\n\r\n"), 200),
        ):
            await peer.send(sent)
            assert (await peer.response())[0] == status


async def test_a_stray_byte_behind_a_request_that_is_refused_is_no_http() -> None:
    async with connected(make_door(shout)) as peer:
        await peer.send(ASKED.replace(b"good", b"bad") + b"x\r\n\r\n")
        assert (await peer.response())[0] == 401
        assert (await peer.response())[0] == 400
        assert await peer.rest() == b""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"WebSocket", b"h2c"),
        (b"Upgrade: WebSocket\r\n", b""),
        (b"keep-alive, Upgrade", b"keep-alive"),
        (b"Connection: keep-alive, Upgrade\r\n", b""),
        (b"GET /", b"DELETE /"),
        (b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
async def test_what_does_not_ask_for_a_websocket(old: bytes, new: bytes) -> None:
    async with connected(make_door(shout)) as peer:
        await peer.send(ASKED.replace(old, new))
        assert (await peer.response())[0] == 200


@pytest.mark.parametrize("line", [b"Upgrade: h2c, websocket", b"Upgrade: h2c\r\nUpgrade: websocket"])
async def test_it_may_be_one_of_several_that_the_peer_proposes(line: bytes) -> None:
    async with connected(make_door(shout)) as peer:
        await peer.send(ASKED.replace(b"Upgrade: WebSocket", line))
        assert (await received(peer, len(ACCEPTED))) == ACCEPTED


# --- once, and only where it is asked for ---


async def test_a_route_cannot_upgrade_what_is_none(caplog: pytest.LogCaptureFixture) -> None:
    async def eager(request: Request) -> None:
        await request.upgrade(HEADERS)

    async with connected(make_door(eager)) as peer:
        for _ in range(2):
            await peer.send(GET.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer good\r\n\r\n"))
            assert (await peer.response())[0] == 500, "and the connection goes on"
    assert "no request that could be upgraded" in caplog.text


async def test_a_route_cannot_upgrade_twice_nor_after_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def twice(request: Request) -> None:
        await request.upgrade(HEADERS)
        await request.upgrade(HEADERS)

    async def late(request: Request) -> None:
        await request.respond(204)
        await request.upgrade(HEADERS)

    async with connected(make_door(twice)) as peer:
        await peer.send(ASKED)
        assert await peer.rest() == ACCEPTED
    async with connected(make_door(late)) as peer:
        await peer.send(ASKED + ASKED)
        assert (await peer.response())[0] == 204
        assert (await peer.response())[0] == 204, "it has not taken the next request's connection over"
    assert caplog.text.count("a request failed") == 3


async def test_a_body_that_is_not_read_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        with pytest.raises(RuntimeError, match="no request"):
            await scope["extensions"][UPGRADE](HEADERS)
        while (await receive())["more_body"]:
            pass
        stream, behind = await scope["extensions"][UPGRADE](HEADERS)
        await stream.send_all(behind)

    async with connected(app) as peer:
        await peer.send(ASKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\n") + b"bo")
        await wait_all_tasks_blocked()
        await peer.send(b"dybehind")
        assert await peer.rest() == ACCEPTED + b"behind"


# --- errors, time and the stop ---


async def test_an_error_behind_the_upgrade_ends_that_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def route(request: Request) -> None:
        stream, _ = await request.upgrade(HEADERS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some, 1)
            await wait_all_tasks_blocked()
            raise Forbidden("too late") if request.path == "/late" else ValueError("boom")

    async with serving(make_door(route)) as (server, connect):
        bystander = await connect()
        for path in (b"/late", b"/boom"):
            peer = await connect()
            await peer.send(ASKED.replace(b"/ ", path + b" "))
            assert await peer.rest() == ACCEPTED
        await bystander.send(GET)
        assert (await bystander.response())[0] == 401
        await wait_all_tasks_blocked()
        assert len(server._connections) == 1
    assert caplog.text.count("a request failed") == 2


async def test_no_timer_of_http_ends_it(autojump_clock: MockClock) -> None:
    async with connected(make_door(shout)) as peer:
        await peer.send(ASKED)
        assert await received(peer, len(ACCEPTED) + 1) == ACCEPTED + b"-"
        for _ in range(3):
            await trio.sleep(KEEP_ALIVE + HEADER_TIMEOUT)
            await peer.send(b"a")
            assert await received(peer, 1) == b"A"


async def test_its_cancellation_closes_it() -> None:
    async with connected(make_door(shout)) as peer:
        await peer.send(ASKED)
        assert await received(peer, len(ACCEPTED) + 1) == ACCEPTED + b"-"
    assert await peer.rest() == b""


async def test_a_peer_that_does_not_take_the_answer_is_the_routes_to_notice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[type[Exception]] = []

    async def route(request: Request) -> None:
        await went.wait()
        stream, _ = await request.upgrade(HEADERS)
        try:
            await stream.receive_some(1)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            seen.append(type(error))

    went = trio.Event()
    caplog.set_level(logging.WARNING)
    async with connected(make_door(route)) as peer:
        await peer.send(ASKED)
        await peer.stream.aclose()
        went.set()
        await wait_all_tasks_blocked()
    assert seen == [trio.ClosedResourceError]
    assert "failed" not in caplog.text


async def test_where_connections_run_out_it_does_not_make_room(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(make_door(shout), max_connections=2) as (_, connect):
        upgraded, idle = await connect(), await connect()
        await idle.send(GET)
        assert (await idle.response())[0] == 401
        await upgraded.send(ASKED)
        assert await received(upgraded, len(ACCEPTED) + 1) == ACCEPTED + b"-"
        newcomer = await connect()
        await newcomer.send(GET)
        assert (await newcomer.response())[0] == 401
        assert await idle.rest() == b""
        await upgraded.send(b"here")
        assert await received(upgraded, 4) == b"HERE"


async def test_a_stop_waits_for_its_owner() -> None:
    async with serving(make_door(shout)) as (server, connect):
        peer = await connect()
        await peer.send(ASKED)
        assert await received(peer, len(ACCEPTED) + 1) == ACCEPTED + b"-"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.stop)
            await wait_all_tasks_blocked(0.02)
            await peer.send(b"still")
            assert await received(peer, 5) == b"STILL"
            await peer.send(b"end")
            assert await peer.rest() == b""
        assert server._connections == set()
