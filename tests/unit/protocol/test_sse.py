"""`oubliette.protocol.sse` (WIRE section 4.3; the HTML standard, section 9.2; HAZARDS T28, T30)."""

from __future__ import annotations

import pytest

from oubliette.protocol.sse import KEEP_ALIVE, EventDecoder, ServerSentEvent, encode
from tests.unit.protocol.cuttings import cuttings


def event(data: str, type: str = "message", id: str = "") -> ServerSentEvent:
    return ServerSentEvent(data=data, type=type, id=id)


def read(chunks: list[bytes]) -> list[ServerSentEvent]:
    decoder = EventDecoder()
    return [found for chunk in chunks for found in decoder.feed(chunk)]


STREAMS: dict[str, tuple[bytes, list[ServerSentEvent]]] = {
    "nothing": (b"", []),
    "one event": (b"data: x\n\n", [event("x")]),
    "the standard's stock ticker": (b"data: YHOO\ndata: +2\ndata: 10\n\n", [event("YHOO\n+2\n10")]),
    "the standard's four blocks": (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        [event("first event", id="1"), event("second event"), event(" third event")],
    ),
    "the standard's empty events": (b"data\n\ndata\ndata\n\ndata:", [event(""), event("\n")]),
    "the standard's optional space": (b"data:test\n\ndata: test\n\n", [event("test"), event("test")]),
    "ends with \\r": (b"data: a\rdata: b\r\rdata: c\r\r", [event("a\nb"), event("c")]),
    "ends with \\r\\n": (b"data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", [event("a\nb"), event("c")]),
    "mixed ends": (b"data: a\rdata: b\n\r\ndata: c\r\n\ndata: d\n\r", [event("a\nb"), event("c"), event("d")]),
    "not an end: U+2028, U+2029, U+0085, VT, FF, NUL": (
        "data: a\u2028b\u2029c\x85d\x0be\x0cf\0g\n\n".encode(),
        [event("a\u2028b\u2029c\x85d\x0be\x0cf\0g")],
    ),
    "type": (b"event: added\ndata: x\n\ndata: y\n\n", [event("x", "added"), event("y")]),
    "an empty type is message": (b"event: added\nevent:\ndata: x\n\n", [event("x")]),
    "a type without data is forgotten": (b"event: added\n\ndata: x\n\n", [event("x")]),
    "id stays until the next": (
        b"id: 7\ndata: x\n\ndata: y\n\nid\ndata: z\n\n",
        [event("x", id="7"), event("y", id="7"), event("z")],
    ),
    "an id with NUL is ignored": (b"id: 7\nid: 8\0\ndata: x\n\n", [event("x", id="7")]),
    "retry, comments and the unknown": (
        b"retry: 10\n: a\n:\nfoo: 1\nfoo\nDATA: 1\n data: 2\ndata: x\n\n",
        [event("x")],
    ),
    "a colon in the value": (b"data: a: b\n\n", [event("a: b")]),
    "keep-alives": (KEEP_ALIVE * 3 + b"data: x\n\n" + KEEP_ALIVE, [event("x")]),
    "a byte order mark": (b"\xef\xbb\xbfdata: x\n\n", [event("x")]),
    "a byte order mark alone on its line": (b"\xef\xbb\xbf\ndata: x\n\n", [event("x")]),
    "one byte order mark, not two": (b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\ndata: y\n\n", [event("y")]),
    "a byte order mark later on": (b"data: \xef\xbb\xbfx\n\n\xef\xbb\xbfdata: y\n\n", [event("\ufeffx")]),
    "bytes that are no UTF-8": (b"data: \xffa\xe2\x80\ndata: \xc3\n\n", [event("\ufffda\ufffd\n\ufffd")]),
    "an id that is no UTF-8": (b"id: \xff\ndata: x\n\n", [event("x", id="\ufffd")]),
    "an event without its blank line is none": (b"data: x\n\ndata: y\nid: 3\n", [event("x")]),
}


@pytest.mark.parametrize(("stream", "events"), STREAMS.values(), ids=STREAMS)
def test_events_do_not_depend_on_where_the_transport_cuts(stream: bytes, events: list[ServerSentEvent]) -> None:
    for chunks in cuttings(stream):
        assert read(chunks) == events


@pytest.mark.parametrize(
    ("stream", "events"), [case for case in STREAMS.values() if case[0].endswith((b"\n\n", b"\r\r", b"\r\n\r\n"))]
)
@pytest.mark.parametrize("trailing", [b"d", b"data: y\n", b": comment\n", b"id: 9\n"])
def test_trailing_bytes_change_nothing_before_them(
    stream: bytes, events: list[ServerSentEvent], trailing: bytes
) -> None:
    for chunks in cuttings(stream + trailing):
        assert read(chunks) == events


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_an_event_is_out_with_the_last_byte_it_needs(end: bytes) -> None:
    decoder = EventDecoder()
    assert decoder.feed(b"data: x" + end + end[:1]) == [event("x")]
    assert decoder.feed(end[1:] + b"data: y" + end + end) == [event("y")]


def test_an_empty_chunk_is_no_byte() -> None:
    decoder = EventDecoder()
    found = [decoder.feed(chunk) for chunk in (b"data: x\r", b"", b"\ndata: y\r", b"", b"\n", b"", b"\n")]
    assert found == [[], [], [], [], [], [], [event("x\ny")]]


ENCODED: dict[str, tuple[bytes, bytes]] = {
    "data alone": (encode("x"), b"data: x\n\n"),
    "everything, the id first": (encode("x", type="added", id="7"), b"id: 7\nevent: added\ndata: x\n\n"),
    "empty data": (encode(""), b"data: \n\n"),
    "an empty id resets": (encode("x", id=""), b"id: \ndata: x\n\n"),
    "line ends become lines": (encode("a\nb\rc\r\nd"), b"data: a\ndata: b\ndata: c\ndata: d\n\n"),
    "what looks like a field": (
        encode("a\n\nevent: b\rid: 1\n"),
        b"data: a\ndata: \ndata: event: b\ndata: id: 1\ndata: \n\n",
    ),
    "U+2028 is no line end": (encode("a\u2028b\x85"), "data: a\u2028b\x85\n\n".encode()),
}


@pytest.mark.parametrize(("written", "expected"), ENCODED.values(), ids=ENCODED)
def test_encoding(written: bytes, expected: bytes) -> None:
    assert written == expected


@pytest.mark.parametrize(
    "data", ["", " x", ":x", "a\nb", "\n", "\n\n", "\0", "\u2028", "\x85", "\ufeffx", "data: x\n\n", "é😀"]
)
def test_one_event_in_is_one_event_out(data: str) -> None:
    for chunks in cuttings(encode(data, type=" t", id=" i") + encode("next")):
        assert read(chunks) == [event(data, " t", " i"), event("next", id=" i")]


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\r\nb", "a\0b", "\n"])
def test_a_type_or_id_that_would_make_another_field_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="type must not hold"):
        encode("x", type=bad)
    with pytest.raises(ValueError, match="id must not hold"):
        encode("x", id=bad)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        encode("\ud800")


def test_the_last_id_is_that_of_an_event_that_was_complete() -> None:
    decoder = EventDecoder(last_id="3")
    assert decoder.feed(b"data: x\n\n") == [event("x", id="3")]
    decoder.feed(b"id: 4\ndata: cut of")
    # Resuming from 4 would skip the event that was cut off.
    assert decoder.last_id == "3"
    decoder.feed(b"f\n\nid: 5\n\n")
    assert decoder.last_id == "5"


def test_the_bound_of_one_event() -> None:
    lines = b"data: 45678\ndata: 45678"  # held at its end: 6 bytes of data, and a line of 11
    for chunks in cuttings(lines + b"\n\n"):
        decoder = EventDecoder(max_bytes=17)
        assert [one for chunk in chunks for one in decoder.feed(chunk)] == [event("45678\n45678")]
    for chunks in cuttings(lines):
        decoder = EventDecoder(max_bytes=16)
        with pytest.raises(ValueError, match="longer than 16 bytes"):
            [decoder.feed(chunk) for chunk in chunks]


def test_the_bound_is_on_an_event_not_on_the_stream() -> None:
    decoder = EventDecoder(max_bytes=20)
    events = decoder.feed((b"data: 0123456789\n\n" + b": 0123456789\n") * 1000)
    assert len(events) == 1000
    assert all(decoder.feed(b"retry: 1\n: comment\n") == [] for _ in range(100))


def test_a_line_without_end_is_cut_at_the_bound() -> None:
    decoder, chunk = EventDecoder(max_bytes=1 << 20), b"x" * 65536
    assert [decoder.feed(chunk) for _ in range(16)] == [[]] * 16
    with pytest.raises(ValueError, match="longer than"):
        decoder.feed(chunk)


def test_a_long_event_in_small_pieces_is_scanned_once() -> None:
    # Quadratic work would be 2 ** 35 byte steps here.
    decoder = EventDecoder()
    decoder.feed(b"data:")
    for _ in range(1 << 18):
        assert decoder.feed(b"x") == []
    assert decoder.feed(b"\n\n") == [event("x" * (1 << 18))]
