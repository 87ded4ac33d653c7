"""What holds for every input behind a WebSocket handshake (RFC 6455; HAZARDS T32): it ends, and wsproto agrees."""

from __future__ import annotations

import struct
from typing import Final

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair
from wsproto.frame_protocol import FrameProtocol, Opcode, ParseFailed

from oubliette.http.websocket import CLOSE_TIMEOUT, KEEP_ALIVE, PONG_TIMEOUT, WebSocket
from oubliette.protocol.frames import (
    INVALID_DATA,
    NEED_DATA,
    NOTHING_YET,
    PROTOCOL_ERROR,
    TOO_LONG,
    UNSUPPORTED_DATA,
    Close,
    FrameError,
    FrameReader,
    Ping,
)

# Examples are not kept between runs, and a busy machine is no failure.
few: Final = settings(deadline=None, database=None, max_examples=50)
MAX_MESSAGE: Final = 300
# IANA registered it after wsproto was written.
REGISTERED_LATER: Final = 1014


def frame(first: int, mask: int, payload: bytes, key: bytes) -> bytes:
    short, extended = len(payload), b""
    if len(payload) > 125:
        short, extended = 126, struct.pack("!H", len(payload))
    masked = bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))
    return bytes((first, mask | short)) + extended + key + masked


TEXTS: Final = st.text(max_size=20).map(str.encode) | st.sampled_from([b"x" * 126, "ü".encode() * 150, b"x" * 301])
CLOSINGS: Final = st.binary(max_size=3) | st.integers(990, 5010).map(lambda code: struct.pack("!H", code) + b"why")
PAYLOADS: Final = TEXTS | CLOSINGS | st.binary(max_size=130)
FIRSTS: Final = st.sampled_from([0x81] * 4 + [0x01, 0x00, 0x00, 0x80, 0x80, 0x89, 0x8A, 0x88]) | st.integers(0, 255)
MASKS: Final = st.sampled_from([0x80] * 9 + [0])
FRAMES: Final = st.builds(frame, FIRSTS, MASKS, PAYLOADS, st.binary(min_size=4, max_size=4))
STREAMS: Final = st.lists(FRAMES | st.binary(max_size=20), max_size=8).map(b"".join)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    return [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]


CHUNKS: Final = st.builds(cut, STREAMS, st.lists(st.integers(0, 2000), max_size=5))


@few
@given(CHUNKS, st.sampled_from(["goes", "stays", "answers"]))
@example([b"\x81\xfe\xff\xff"], "stays")
def test_whatever_a_peer_sends_the_connection_ends_and_nothing_is_raised(chunks: list[bytes], then: str) -> None:
    trio.run(speak, chunks, then, clock=MockClock(autojump_threshold=0))


async def speak(chunks: list[bytes], then: str) -> None:
    ours, theirs = memory_stream_pair()
    websocket = WebSocket(ours, chunks[0], MAX_MESSAGE)
    with trio.fail_after(KEEP_ALIVE + PONG_TIMEOUT + CLOSE_TIMEOUT + 1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(websocket.keep_alive)
            nursery.start_soon(send, theirs, chunks[1:], then)
            while messages := await websocket.receive():
                for message in messages:
                    assert len(message) <= MAX_MESSAGE
                    message.decode()
            await websocket.close()
            nursery.cancel_scope.cancel()


async def send(stream: trio.abc.HalfCloseableStream, chunks: list[bytes], then: str) -> None:
    try:
        for chunk in chunks:
            await stream.send_all(chunk)
            await trio.lowlevel.checkpoint()
        if then == "goes":
            await stream.send_eof()
        while then == "answers" and await stream.receive_some(100):
            pass
        if then != "stays":
            await stream.aclose()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # cut off meanwhile


def ours(chunks: list[bytes]) -> tuple[list[object], int | None]:
    """Returns messages, pings and the close frame, and the code of what broke the protocol."""
    reader = FrameReader(MAX_MESSAGE)
    said: list[object] = []
    try:
        for chunk in chunks:
            reader.receive_data(chunk)
            while (event := reader.next_event()) is not NEED_DATA:
                said += [event] if event is not NOTHING_YET else []
                if isinstance(event, Close):
                    return said, None
    except FrameError as error:
        return said, error.code
    return said, None


def theirs(chunks: list[bytes]) -> tuple[list[object], int | None]:
    """The same by wsproto, which takes binary messages and those of any length: here they are errors too."""
    reader, said, message = FrameProtocol(client=False, extensions=[]), list[object](), ""
    try:
        for chunk in chunks:
            reader.receive_bytes(chunk)
            for piece in reader.received_frames():
                if piece.opcode is Opcode.BINARY:
                    return said, UNSUPPORTED_DATA
                if piece.opcode is Opcode.TEXT:
                    message += str(piece.payload)
                    if piece.message_finished:
                        said.append(message.encode())
                        message = ""
                elif piece.opcode is Opcode.PING:
                    said.append(Ping(bytes(piece.payload)))  # type: ignore[arg-type]  # a union of all payloads
                elif piece.opcode is Opcode.CLOSE:
                    assert isinstance(piece.payload, tuple)
                    code, reason = piece.payload
                    return [*said, Close(None if code == 1005 else int(code), reason)], None
    except ParseFailed as error:
        return said, int(error.code)
    return said, None


@settings(few, max_examples=150)
@given(CHUNKS)
@example([frame(0x01, 0x80, b"\xff", bytes(4)) + frame(0x89, 0x80, b"", bytes(4)) + frame(0x80, 0x80, b"", bytes(4))])
@example([frame(0x88, 0x80, b"\x03\xf6", bytes(4))])
def test_wsproto_reads_the_same(chunks: list[bytes]) -> None:
    said, code = ours(chunks)
    # What we tell by a frame's head, wsproto tells when it has the frame: the zeros see to that.
    expected, their_code = theirs([*chunks, bytes(MAX_MESSAGE)] if code else chunks)
    if said and isinstance(said[-1], Close) and said[-1].code == REGISTERED_LATER:
        said, code = said[:-1], PROTOCOL_ERROR
    shared = min(len(said), len(expected))
    assert said[:shared] == expected[:shared]
    if code in (TOO_LONG, UNSUPPORTED_DATA) or their_code == INVALID_DATA:
        # It reads on where a message is too long; we read on where a fragment is in no text, until its message ends.
        assert not any(isinstance(event, bytes) for event in said[shared:])
    else:
        assert (said, code) == (expected, their_code)
