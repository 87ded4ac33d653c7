"""`oubliette.http.websocket`: messages, closing, and what breaks the protocol (RFC 6455)."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from wsproto.events import CloseConnection, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason

from oubliette.http.request import Request
from oubliette.http.websocket import _BURST, CLOSE_TIMEOUT, WebSocket
from tests.unit.http.harness import make_door, serving
from tests.unit.http.websocket_caller import (
    MAX_MESSAGE,
    Caller,
    handshake,
    head_of,
    paired,
    receive_all,
    socket_pair,
    text,
)

# --- messages ---


async def test_messages_go_both_ways() -> None:
    async with paired() as (websocket, caller):
        await caller.say(text("one"))
        assert await websocket.receive() == [b"one"]
        websocket.put(b"two")
        websocket.put("drei 😀".encode())
        await websocket.flush()
        assert [await caller.hear(), await caller.hear()] == [text("two"), text("drei 😀")]


async def test_what_one_read_brings_comes_together() -> None:
    async with paired() as (websocket, caller):
        await caller.say(text("one"), text("two"), text(""), text("x" * MAX_MESSAGE))
        assert await websocket.receive() == [b"one", b"two", b"", b"x" * MAX_MESSAGE]


async def test_a_message_may_come_byte_by_byte() -> None:
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:

        async def drip() -> None:
            for byte in caller.frames(text("grüße" * 30), text("two")):
                await caller.stream.send_all(bytes([byte]))
                await wait_all_tasks_blocked()

        nursery.start_soon(drip)
        assert await websocket.receive() == ["grüße".encode() * 30]
        assert await websocket.receive() == [b"two"]


async def test_a_message_may_come_in_fragments_with_a_ping_in_between() -> None:
    async with paired() as (websocket, caller):
        await caller.say(TextMessage("he", message_finished=False), Ping(b"now?"), text("llo"))
        assert await websocket.receive() == [b"hello"]
        assert await caller.hear() == Pong(b"now?")


async def test_what_came_behind_the_handshake_counts() -> None:
    behind = Caller(None).frames(text("one"), text("two"))
    async with paired(behind) as (websocket, caller):
        assert await websocket.receive() == [b"one", b"two"]
        await caller.say(text("three"))
        assert await websocket.receive() == [b"three"]
    async with paired(behind[:-1]) as (websocket, caller):
        assert await websocket.receive() == [b"one"]
        await caller.stream.send_all(behind[-1:])
        assert await websocket.receive() == [b"two"]


async def test_many_frames_are_looked_at_in_turns() -> None:
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        await caller.stream.send_all(caller.frames(text("x")) * (3 * _BURST) + caller.frames(text("end")))
        nursery.start_soon(other)
        found = [await websocket.receive() for _ in range(4)]
        assert [len(messages) for messages in found] == [_BURST, _BURST, _BURST, 1]
        assert turns >= 3
        nursery.cancel_scope.cancel()


async def test_a_flood_of_pings_is_answered_with_one_pong_a_turn() -> None:
    async with paired() as (websocket, caller):
        await caller.say(*(Ping(b"%d" % number) for number in range(_BURST)), text("end"))
        assert await websocket.receive() == [b"end"]
        websocket.put(b"end")
        await websocket.flush()
        assert [await caller.hear(), await caller.hear()] == [Pong(b"%d" % (_BURST - 1)), text("end")]


async def test_a_receive_that_is_cancelled_loses_nothing(autojump_clock: MockClock) -> None:
    async with paired() as (websocket, caller):
        frames = caller.frames(text("one"), text("two"))
        for piece, messages in ((frames[:5], []), (frames[5:-1], [b"one"]), (b"", []), (frames[-1:], [b"two"])):
            await caller.stream.send_all(piece)
            found: list[bytes] = []
            with trio.move_on_after(1):
                found = await websocket.receive()
            assert found == messages


# --- closing ---


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (CloseConnection(1000, "bye"), CloseConnection(1000, "")),
        (CloseConnection(4000), CloseConnection(4000, "")),
        (CloseConnection(CloseReason.NO_STATUS_RCVD), CloseConnection(CloseReason.NO_STATUS_RCVD, "")),
    ],
)
async def test_the_peer_closes(said: CloseConnection, answer: CloseConnection) -> None:
    async with paired() as (websocket, caller):
        await caller.say(text("last"), said)
        assert await websocket.receive() == [b"last"]
        websocket.put(b"too late")
        await websocket.flush()
        assert await websocket.receive() == []
        assert [await caller.hear(), await caller.hear()] == [answer, None]
        await websocket.close(1001)
        assert await websocket.receive() == []


async def test_a_peer_that_goes_without_a_word() -> None:
    async with paired() as (websocket, caller):
        await caller.stream.send_all(caller.frames(text("one"), text("two"))[:-1])
        await caller.stream.aclose()
        assert await receive_all(websocket) == [b"one"]
        websocket.put(b"nobody hears it")
        await websocket.flush()
        await websocket.close()


async def test_a_write_to_a_peer_that_has_gone_is_the_end() -> None:
    async with paired() as (websocket, caller):
        await caller.stream.aclose()
        websocket.put(b"nobody hears it")
        await websocket.flush()
        assert await websocket.receive() == []


async def test_we_close_and_the_peer_answers(autojump_clock: MockClock) -> None:
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:
        crossing = caller.frames(Ping(b"x"), text("crosses ours"))
        websocket.put(b"last")
        nursery.start_soon(websocket.close, 1001, "the daemon is stopping")
        assert await caller.hear() == text("last")
        assert await caller.hear() == CloseConnection(1001, "the daemon is stopping")
        await trio.sleep(CLOSE_TIMEOUT / 2)
        await caller.stream.send_all(crossing)
        await caller.say(CloseConnection(1001))
        assert await caller.hear() is None
        assert trio.current_time() == CLOSE_TIMEOUT / 2
    assert await websocket.receive() == []


async def test_we_close_while_another_task_receives(autojump_clock: MockClock) -> None:
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:
        found: list[list[bytes]] = []
        crossing = caller.frames(text("crosses ours"))

        async def receive() -> None:
            found.append(await websocket.receive())

        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        nursery.start_soon(websocket.close)
        nursery.start_soon(websocket.close)
        assert await caller.hear() == CloseConnection(1000, "")
        await caller.stream.send_all(crossing + caller.frames(CloseConnection(1000)))
        assert await caller.hear() is None
    assert found == [[]]
    assert trio.current_time() == 0


async def test_several_tasks_may_close_at_once(autojump_clock: MockClock) -> None:
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(websocket.close)
        assert await caller.hear() == CloseConnection(1000, "")
        await trio.sleep(CLOSE_TIMEOUT / 2)
        await caller.say(CloseConnection(1000))
        assert await caller.hear() is None
    assert trio.current_time() == CLOSE_TIMEOUT / 2


async def test_a_close_while_another_task_drops_what_still_comes(autojump_clock: MockClock) -> None:
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:
        await caller.stream.send_all(b"no frame")
        nursery.start_soon(receive_all, websocket)
        await trio.sleep(CLOSE_TIMEOUT / 2)
        nursery.start_soon(websocket.close)
    assert trio.current_time() == CLOSE_TIMEOUT


@pytest.mark.parametrize("said", [b"", b"\x81\x80", b"no frame"])
async def test_a_peer_that_does_not_answer_our_close_is_left(said: bytes, autojump_clock: MockClock) -> None:
    async with paired() as (websocket, caller):
        await caller.stream.send_all(said)
        await websocket.close()
        assert trio.current_time() == (0 if said == b"no frame" else CLOSE_TIMEOUT)
        assert [await caller.hear(), await caller.hear()] == [CloseConnection(1000, ""), None]
        await websocket.close()
        assert await websocket.receive() == []


async def test_a_close_that_is_cancelled_still_says_why() -> None:
    async with socket_pair() as (ours, theirs):
        websocket, caller = WebSocket(ours, b"", MAX_MESSAGE), Caller(theirs)
        with trio.CancelScope() as scope:
            scope.cancel()
            await websocket.close(1001, "stopping")
        assert [await caller.hear(), await caller.hear()] == [CloseConnection(1001, "stopping"), None]


# --- what breaks the protocol ---


def masked(first: int, payload: bytes) -> bytes:
    return bytes((first, 0x80 | len(payload), 0, 0, 0, 0)) + payload


BROKEN = {
    "a binary message": (masked(0x82, b"x"), 1003),
    "no UTF-8": (masked(0x81, b"\xff"), 1007),
    "a head that says too much": (struct.pack("!BBH", 0x81, 0xFE, MAX_MESSAGE + 1), 1009),
    "a head that says far too much": (struct.pack("!BBQ", 0x81, 0xFF, 2**62), 1009),
    "an unmasked frame": (b"\x81\x01x", 1002),
    "a reserved bit, as of a compressed message": (masked(0xC1, b"x"), 1002),
    "no frame": (b"GET /mcp HTTP/1.1\r\n\r\n", 1002),
}


@pytest.mark.parametrize(("sent", "code"), BROKEN.values(), ids=BROKEN)
async def test_what_breaks_the_protocol_is_told_and_ends_it(sent: bytes, code: int, autojump_clock: MockClock) -> None:
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:
        await caller.stream.send_all(caller.frames(text("before")) + sent)
        assert await websocket.receive() == [b"before"]
        websocket.put(b"not behind a close frame")
        await websocket.flush()
        nursery.start_soon(receive_all, websocket)
        closed = await caller.hear()
        assert isinstance(closed, CloseConnection)
        assert (closed.code, bool(closed.reason)) == (code, True)
        assert await caller.hear() is None, "half closed at once"
        await caller.stream.send_all(bytes(100_000))
        assert trio.current_time() == 0
    assert trio.current_time() == CLOSE_TIMEOUT


async def test_a_message_that_grows_too_long_is_noticed_before_it_ends() -> None:
    async with paired() as (websocket, caller), trio.open_nursery() as nursery:
        await caller.say(TextMessage("x" * MAX_MESSAGE, message_finished=False))
        nursery.start_soon(receive_all, websocket)
        await wait_all_tasks_blocked()
        await caller.stream.send_all(caller.frames(TextMessage("x", message_finished=False))[:2])
        closed = await caller.hear()
        assert isinstance(closed, CloseConnection)
        assert closed.code == 1009


async def test_whoever_sends_too_much_over_a_socket_still_learns_why() -> None:
    """A socket that is closed on unread bytes sends a reset, and the close frame would be lost."""

    async def route(request: Request) -> None:
        websocket = await WebSocket.accept(request, subprotocol="mcp", max_message=MAX_MESSAGE)
        assert await websocket.receive() == []

    async with serving(make_door(route)) as (_, connect), trio.open_nursery() as nursery:
        peer = await connect()
        await peer.send(handshake())
        await head_of(peer)

        async def pour() -> None:
            with suppress(trio.BrokenResourceError):
                await peer.send(struct.pack("!BBQ", 0x81, 0xFF, 2**62) + bytes(4_000_000))

        nursery.start_soon(pour)
        caller = Caller(peer.stream)
        closed = await caller.hear()
        assert isinstance(closed, CloseConnection)
        assert closed.code == 1009
        assert await caller.hear() is None
