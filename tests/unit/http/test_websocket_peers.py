"""`oubliette.http.websocket`: peers that do not read or are not there, and the handshake (RFC 6455, section 4)."""

from __future__ import annotations

import base64
import logging
from typing import Any

import pytest
import trio
from trio.testing import MemorySendStream, MockClock, lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked
from wsproto.events import CloseConnection, Ping, Pong

from oubliette.http.request import Request
from oubliette.http.server import WRITE_RATE, WRITE_TIMEOUT
from oubliette.http.websocket import KEEP_ALIVE, PONG_TIMEOUT, WebSocket
from tests.unit.http.harness import connected, make_door, serving
from tests.unit.http.websocket_caller import (
    KEY,
    MAX_MESSAGE,
    Caller,
    handshake,
    head_of,
    paired,
    receive_all,
    socket_pair,
    text,
)

# --- peers that do not read, or are not there ---


@pytest.mark.parametrize("size", [1, 4 * WRITE_RATE])
async def test_a_peer_that_does_not_read_is_cut_off(
    size: int, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ours, _ = lockstep_stream_pair()
    websocket = WebSocket(ours, b"", MAX_MESSAGE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive_all, websocket)
        websocket.put(bytes(size))
        await websocket.flush()
    assert trio.current_time() == pytest.approx(WRITE_TIMEOUT + size / WRITE_RATE, abs=0.01)
    assert "does not read" in caplog.text


async def test_messages_that_are_put_while_one_is_written_go_out_in_one_write() -> None:
    ours, theirs = memory_stream_pair()
    assert isinstance(ours.send_stream, MemorySendStream)
    deliver: Any = ours.send_stream.send_all_hook
    websocket, caller, writes = WebSocket(ours, b"", MAX_MESSAGE), Caller(theirs), 0

    async def slowly() -> None:
        nonlocal writes
        writes += 1
        await wait_all_tasks_blocked()
        await deliver()

    async def send(number: int) -> None:
        websocket.put(b"%d" % number)
        await websocket.flush()

    ours.send_stream.send_all_hook = slowly
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(send, number)
    heard = [await caller.hear() for _ in range(10)]
    assert sorted(map(str, heard)) == sorted(str(text(f"{number}")) for number in range(10))
    assert writes == 2


async def test_a_peer_that_is_not_there_any_more_is_found(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await trio.sleep(0.3)
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:
        nursery.start_soon(websocket.keep_alive)
        nursery.start_soon(receive_all, websocket)
        assert await caller.hear() == Ping(b"")
        assert trio.current_time() == KEEP_ALIVE, "on a whole second"
        assert await caller.hear() is None
        assert trio.current_time() == KEEP_ALIVE + PONG_TIMEOUT == 30
    assert "does not answer" in caplog.text


async def test_a_peer_that_answers_pings_or_talks_is_kept(autojump_clock: MockClock) -> None:
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:
        nursery.start_soon(websocket.keep_alive)
        nursery.start_soon(receive_all, websocket)
        for answer in (Pong(), text("x"), Ping(b"you?"), Pong()):
            asked = await caller.hear()
            assert isinstance(asked, Ping)
            await trio.sleep(PONG_TIMEOUT - 1)
            await caller.say(answer)
            if isinstance(answer, Ping):
                assert await caller.hear() == Pong(b"you?")
        assert trio.current_time() > 4 * PONG_TIMEOUT
        for _ in range(10):
            await trio.sleep(KEEP_ALIVE - 2)
            await caller.say(text("no need to ask"))
        await caller.say(CloseConnection(1000))
        pings = []
        while (event := await caller.hear()) is not None:
            pings.append(event)
        assert pings == [Ping(b"")] * (len(pings) - 1) + [CloseConnection(1000, "")]
        assert len(pings) <= 2


async def test_nobody_is_cut_off_for_answers_that_are_not_read(autojump_clock: MockClock) -> None:
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:
        nursery.start_soon(websocket.keep_alive)
        await trio.sleep(100)
        await caller.say(text("still here"))
        assert await websocket.receive() == [b"still here"]
        nursery.cancel_scope.cancel()


async def test_keeping_alive_ends_with_the_connection(autojump_clock: MockClock) -> None:
    async with paired() as (websocket, _), trio.open_nursery() as nursery:
        nursery.start_soon(websocket.keep_alive)
        await websocket.close()
    assert trio.current_time() <= KEEP_ALIVE


@pytest.mark.parametrize("ending", ["reset", "closed here"])
async def test_a_socket_that_breaks_is_the_end(ending: str) -> None:
    async with socket_pair() as (ours, theirs):
        websocket = WebSocket(ours, b"", MAX_MESSAGE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive_all, websocket)
            await wait_all_tasks_blocked()
            await (ours if ending == "closed here" else theirs).aclose()
        websocket.put(b"nobody reads it")
        await websocket.flush()
        await websocket.close()
        assert await websocket.receive() == []


# --- the handshake ---


async def echo(request: Request) -> None:
    websocket = await WebSocket.accept(request, subprotocol="mcp", max_message=MAX_MESSAGE)
    while messages := await websocket.receive():
        for message in messages:
            websocket.put(message)
        await websocket.flush()
    await websocket.close()


async def test_a_handshake_and_a_conversation_over_a_socket() -> None:
    async with serving(make_door(echo)) as (_, connect):
        peer = await connect()
        await peer.send(handshake() + Caller(None).frames(text("with it")))
        assert await head_of(peer) == (
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nsec-websocket-protocol: mcp\r\n\r\n"
        )
        caller = Caller(peer.stream)
        assert await caller.hear() == text("with it")
        for number in range(10):
            await caller.say(text(f"{number}"), text("x" * MAX_MESSAGE))
            assert [await caller.hear(), await caller.hear()] == [text(f"{number}"), text("x" * MAX_MESSAGE)]
        await caller.say(CloseConnection(1000))
        assert [await caller.hear(), await caller.hear()] == [CloseConnection(1000, ""), None]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"Upgrade": b"h2c"}, b"no WebSocket handshake"),
        ({"Connection": b"close"}, b"no WebSocket handshake"),
        ({"Sec_WebSocket_Protocol": b""}, b"Sec-WebSocket-Protocol must offer 'mcp'"),
        ({"Sec_WebSocket_Protocol": b"chat, mcp2"}, b"Sec-WebSocket-Protocol must offer 'mcp'"),
        ({"Sec_WebSocket_Protocol": b"MCP"}, b"Sec-WebSocket-Protocol must offer 'mcp'"),
        ({"Sec_WebSocket_Key": b""}, b"Sec-WebSocket-Key must be"),
        ({"Sec_WebSocket_Key": b"no base64 at all"}, b"Sec-WebSocket-Key must be"),
        ({"Sec_WebSocket_Key": base64.b64encode(bytes(15))}, b"Sec-WebSocket-Key must be"),
        ({"Sec_WebSocket_Key": KEY + b", " + KEY}, b"Sec-WebSocket-Key must be"),
        ({"Sec_WebSocket_Key": b"\xe9" * 24}, b"Sec-WebSocket-Key must be"),
    ],
)
async def test_what_is_no_handshake_is_refused_in_words(other: dict[str, bytes], words: bytes) -> None:
    async with connected(make_door(echo)) as peer:
        await peer.send(handshake(**other))
        status, _, body = await peer.response()
        assert status == 400
        assert words in body


@pytest.mark.parametrize("version", [b"", b"8", b"14", b"013", b"13, 8"])
async def test_another_version_is_told_ours(version: bytes) -> None:
    async with connected(make_door(echo)) as peer:
        for _ in range(2):
            await peer.send(handshake(Sec_WebSocket_Version=version))
            status, headers, body = await peer.response()
            assert (status, headers[b"sec-websocket-version"], headers[b"upgrade"]) == (426, b"13", b"websocket")
            assert b"must be 13" in body


async def test_a_wrong_token_is_told_before_a_wrong_handshake() -> None:
    async with connected(make_door(echo)) as peer:
        await peer.send(handshake(Authorization=b"Bearer bad", Sec_WebSocket_Version=b"8"))
        assert (await peer.response())[0] == 401
