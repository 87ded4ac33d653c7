"""`oubliette.protocol.frames` (RFC 6455, sections 5 and 7.4); tests/property/test_websocket.py holds it to wsproto."""

from __future__ import annotations

import struct
import sys

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection
from wsproto.events import Event as TheirEvent
from wsproto.events import Ping as TheirPing
from wsproto.events import Pong as TheirPong
from wsproto.events import TextMessage as TheirText

from oubliette.protocol.frames import (
    INVALID_DATA,
    NEED_DATA,
    NOTHING_YET,
    PROTOCOL_ERROR,
    TOO_LONG,
    UNSUPPORTED_DATA,
    Close,
    Event,
    FrameError,
    FrameReader,
    Ping,
    close_frame,
    ping_frame,
    pong_frame,
    text_frame,
)
from tests.unit.protocol.cuttings import cuttings

MAX_MESSAGE = 300
KEY = b"\x01\x80\xff\x7e"
FIN, TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x80, 1, 2, 0, 8, 9, 10


def frame(first: int, payload: bytes = b"", *, mask: int = 0x80, size: int | None = None) -> bytes:
    """A client's frame, as section 5.2 draws it; `size` is how many bytes the length is spelt in."""
    length = len(payload)
    size = size if size is not None else 0 if length < 126 else 2 if length < 65536 else 8
    second = {0: length, 2: 126, 8: 127}[size]
    return (
        bytes((first, mask | second))
        + (length.to_bytes(size) if size else b"")
        + KEY
        + bytes(byte ^ KEY[at % 4] for at, byte in enumerate(payload))
    )


def read(chunks: list[bytes]) -> tuple[list[Event], int | None]:
    """Returns what a reader says of the chunks, without what is only for its caller, and the code that it ends with."""
    reader = FrameReader(MAX_MESSAGE)
    events: list[Event] = []
    try:
        for chunk in chunks:
            reader.receive_data(chunk)
            while (event := reader.next_event()) is not NEED_DATA:
                events += [event] if event is not NOTHING_YET else []
    except FrameError as error:
        return events, error.code
    return events, None


HELLO = frame(FIN | TEXT, b"hello")
SENT: dict[str, tuple[bytes, list[Event]]] = {
    "nothing": (b"", []),
    "a message": (HELLO, [b"hello"]),
    "an empty one": (frame(FIN | TEXT), [b""]),
    "one that is not ASCII": (frame(FIN | TEXT, "Grüße 😀".encode()), ["Grüße 😀".encode()]),
    "one with every ASCII byte": (frame(FIN | TEXT, bytes(range(128))), [bytes(range(128))]),
    "two": (HELLO + frame(FIN | TEXT, b"you"), [b"hello", b"you"]),
    "125 bytes": (frame(FIN | TEXT, b"x" * 125), [b"x" * 125]),
    "126 bytes": (frame(FIN | TEXT, b"x" * 126), [b"x" * 126]),
    "the longest": (frame(FIN | TEXT, b"x" * MAX_MESSAGE), [b"x" * MAX_MESSAGE]),
    "two fragments": (frame(TEXT, b"he") + frame(FIN | CONTINUATION, b"llo"), [b"hello"]),
    "the longest, in fragments": (frame(TEXT, b"x" * 200) + frame(FIN, b"x" * 100), [b"x" * MAX_MESSAGE]),
    "empty fragments": (frame(TEXT) + frame(CONTINUATION) * 9 + frame(FIN | CONTINUATION), [b""]),
    "a character cut in two": (frame(TEXT, b"\xf0\x9f") + frame(FIN, b"\x98\x80") + HELLO, ["😀".encode(), b"hello"]),
    "a ping": (frame(FIN | PING, b"are you there"), [Ping(b"are you there")]),
    "an empty ping": (frame(FIN | PING), [Ping(b"")]),
    "the longest ping": (frame(FIN | PING, bytes(125)), [Ping(bytes(125))]),
    "a pong": (frame(FIN | PONG, b"x") + HELLO, [b"hello"]),
    "a ping between fragments": (
        frame(TEXT, b"x" * 200) + frame(FIN | PING, b"y" * 125) + frame(FIN, b"x" * 100),
        [Ping(b"y" * 125), b"x" * MAX_MESSAGE],
    ),
    "a close": (frame(FIN | CLOSE), [Close(None, "")]),
    "a close with a code": (frame(FIN | CLOSE, b"\x03\xe8"), [Close(1000, "")]),
    "a close with a reason": (frame(FIN | CLOSE, b"\x0f\xa0bye \xc3\xbc"), [Close(4000, "bye ü")]),
    "a close between fragments": (frame(TEXT, b"x") + frame(FIN | CLOSE), [Close(None, "")]),
}


@pytest.mark.parametrize(("data", "events"), SENT.values(), ids=SENT)
def test_events_do_not_depend_on_where_the_transport_cuts(data: bytes, events: list[Event]) -> None:
    for chunks in cuttings(data):
        assert read(chunks) == (events, None)


BROKEN = {
    "an unmasked frame": (frame(FIN | TEXT, b"x", mask=0), PROTOCOL_ERROR),
    "a reserved bit": (frame(FIN | TEXT | 0x40, b"x"), PROTOCOL_ERROR),
    "an opcode that is not used": (frame(FIN | 3, b"x"), PROTOCOL_ERROR),
    "a control opcode that is not used": (frame(FIN | 11), PROTOCOL_ERROR),
    "a ping in fragments": (frame(PING, b"x"), PROTOCOL_ERROR),
    "a ping of 126 bytes": (frame(FIN | PING, bytes(126)), PROTOCOL_ERROR),
    "a continuation of nothing": (frame(FIN | CONTINUATION, b"x"), PROTOCOL_ERROR),
    "a message within a message": (frame(TEXT, b"x") + HELLO, PROTOCOL_ERROR),
    "a length in more bytes than it needs": (frame(FIN | TEXT, b"x" * 125, size=2), PROTOCOL_ERROR),
    "a length in many more": (frame(FIN | TEXT, b"x" * 200, size=8), PROTOCOL_ERROR),
    "a length beyond 63 bits": (b"\x81\xff" + b"\x80" + bytes(7), PROTOCOL_ERROR),
    "a binary message": (frame(FIN | BINARY, b"x"), UNSUPPORTED_DATA),
    "a binary message in fragments": (frame(BINARY, b"x"), UNSUPPORTED_DATA),
    "no UTF-8": (frame(FIN | TEXT, b"\xff"), INVALID_DATA),
    "half a surrogate pair": (frame(FIN | TEXT, b"\xed\xa0\x80"), INVALID_DATA),
    "a character that does not end": (frame(TEXT, b"\xf0\x9f") + frame(FIN, b"\x98"), INVALID_DATA),
    "one byte too long": (frame(FIN | TEXT, bytes(MAX_MESSAGE + 1)), TOO_LONG),
    "one byte too long in fragments": (frame(TEXT, bytes(MAX_MESSAGE)) + frame(CONTINUATION, b"x"), TOO_LONG),
    "a close of one byte": (frame(FIN | CLOSE, b"\x03"), PROTOCOL_ERROR),
    "a close with a reason that is no UTF-8": (frame(FIN | CLOSE, b"\x03\xe8\xff"), INVALID_DATA),
}


@pytest.mark.parametrize(("data", "code"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_the_protocol_has_a_code_and_what_came_before_it_counts(data: bytes, code: int) -> None:
    for chunks in cuttings(data):
        assert read([HELLO, *chunks]) == ([b"hello"], code)


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535])
def test_codes_that_are_never_on_the_wire_are_refused(code: int) -> None:
    assert read([frame(FIN | CLOSE, struct.pack("!H", code))]) == ([], PROTOCOL_ERROR)


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1011, 1014, 3000, 4999])
def test_codes_that_may_be_sent(code: int) -> None:
    assert read([frame(FIN | CLOSE, struct.pack("!H", code))]) == ([Close(code, "")], None)


@pytest.mark.parametrize("length", [MAX_MESSAGE + 1, 2**40, 2**63 - 1])
def test_a_message_that_is_too_long_is_known_by_its_head(length: int) -> None:
    head = struct.pack("!BBH", 0x81, 0xFE, length) if length < 65536 else struct.pack("!BBQ", 0x81, 0xFF, length)
    assert read([head]) == ([], TOO_LONG)


@pytest.mark.parametrize("fragment", [2, 40_000, 100_000])
def test_a_reader_holds_no_more_than_a_message_and_a_chunk(fragment: int) -> None:
    reader, size, chunk = FrameReader(100_000), 100_000 // fragment, 8192
    data = frame(TEXT, bytes(fragment)) + frame(CONTINUATION, bytes(fragment)) * (size - 1) + frame(FIN | CONTINUATION)
    for begin in range(0, len(data), chunk):
        reader.receive_data(data[begin : begin + chunk])
        while (event := reader.next_event()) is NOTHING_YET:
            pass
        assert sys.getsizeof(reader._buffer) + sys.getsizeof(reader._fragments) < 1.2 * 100_000 + 2 * chunk
    assert event == bytes(fragment * size)
    assert reader.next_event() is NEED_DATA
    assert sys.getsizeof(reader._buffer) + sys.getsizeof(reader._fragments) < 200


def heard_by_wsproto(data: bytes) -> list[TheirEvent]:
    client = Connection(ConnectionType.CLIENT)
    client.receive_data(data)
    return list(client.events())


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536])
def test_a_client_reads_our_messages(length: int) -> None:
    assert heard_by_wsproto(text_frame(b"x" * length)) == [TheirText("x" * length)]


def test_a_client_reads_our_control_frames() -> None:
    assert heard_by_wsproto(ping_frame() + pong_frame(b"x" * 125)) == [TheirPing(b""), TheirPong(b"x" * 125)]
    assert heard_by_wsproto(close_frame(1001, "grüße")) == [CloseConnection(1001, "grüße")]
    assert heard_by_wsproto(close_frame(None)) == [CloseConnection(1005, "")]


def test_a_reason_is_cut_between_characters() -> None:
    assert heard_by_wsproto(close_frame(1000, "x" + "ü" * 100)) == [CloseConnection(1000, "x" + "ü" * 61)]
