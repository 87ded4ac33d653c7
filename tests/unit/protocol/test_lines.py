"""`oubliette.protocol.lines` (WIRE section 1, "Framing"; HAZARDS F22)."""

from __future__ import annotations

import pytest

from oubliette.protocol.lines import CLOSED, NEED_DATA, OVERSIZED, LineReader, Signal
from tests.unit.protocol.cuttings import cuttings

MAX_BYTES = 8
EXACT = b"12345678"
Event = bytes | Signal


def take(reader: LineReader) -> list[Event]:
    """Returns the events up to the one that says to wait or to stop, which is left out."""
    events: list[Event] = []
    while (event := reader.next_event()) not in (NEED_DATA, CLOSED):
        events.append(event)
    return events


def read(reader: LineReader, chunks: list[bytes]) -> list[Event]:
    events = []
    for chunk in chunks:
        reader.receive_data(chunk)
        events += take(reader)
    return events


# What arrives, what it says, and what the end of the stream adds to that.
CASES: dict[str, tuple[bytes, list[Event], list[Event]]] = {
    "nothing": (b"", [], []),
    "one line": (b"abc\n", [b"abc"], []),
    "two lines": (b"a\nb\n", [b"a", b"b"], []),
    "a last line without newline": (b"a\nb", [b"a"], [b"b"]),
    "blank lines": (b"\n\n  \n\t\r\na\n\r\n", [b"a"], []),
    "a last line of blanks": (b"a\n  ", [b"a"], []),
    "a carriage return is white space, not an end": (b"a\rb\r\nc\n", [b"a\rb\r", b"c"], []),
    "other line ends are text": (b"\xc2\x85\xe2\x80\xa8\x0bx\n", [b"\xc2\x85\xe2\x80\xa8\x0bx"], []),
    "N-1 bytes": (EXACT[1:] + b"\n", [EXACT[1:]], []),
    "N bytes": (EXACT + b"\n", [EXACT], []),
    "N bytes without newline": (EXACT, [], [EXACT]),
    "N+1 bytes": (EXACT + b"9\n", [OVERSIZED], []),
    "N+1 bytes without newline": (EXACT + b"9", [OVERSIZED], []),
    "N+1 blanks": (b" " * 9 + b"\n", [OVERSIZED], []),
    "oversized, then a good line": (EXACT * 9 + b"\nok\n", [OVERSIZED, b"ok"], []),
    "oversized, then a last line": (EXACT * 9 + b"\nok", [OVERSIZED], [b"ok"]),
    "a good line, then oversized": (b"ok\n" + EXACT * 9, [b"ok", OVERSIZED], []),
    "oversized twice": (EXACT * 2 + b"\n" + EXACT * 2 + b"\nok\n", [OVERSIZED, OVERSIZED, b"ok"], []),
    "oversized and blank lines": (b"\n" + EXACT * 2 + b"\n\n\nok\n", [OVERSIZED, b"ok"], []),
}


@pytest.mark.parametrize(("data", "events", "at_end"), CASES.values(), ids=CASES)
def test_events_do_not_depend_on_where_the_transport_cuts(
    data: bytes, events: list[Event], at_end: list[Event]
) -> None:
    for chunks in cuttings(data):
        reader = LineReader(MAX_BYTES)
        assert read(reader, chunks) == events
        assert reader.next_event() is NEED_DATA
        assert read(reader, [b""]) == at_end
        assert reader.next_event() is CLOSED


@pytest.mark.parametrize(("data", "events"), [case[:2] for case in CASES.values() if case[0].endswith(b"\n")])
@pytest.mark.parametrize("trailing", [b"x", b"next\n", b"next\nx"])
def test_trailing_bytes_change_nothing_before_them(data: bytes, events: list[Event], trailing: bytes) -> None:
    following: list[Event] = [b"next"] if b"\n" in trailing else []
    for chunks in cuttings(data + trailing):
        assert read(LineReader(MAX_BYTES), chunks) == events + following


def test_an_oversized_line_is_told_as_soon_as_it_is_one() -> None:
    reader = LineReader(MAX_BYTES)
    assert read(reader, [EXACT]) == []
    assert read(reader, [b"9"]) == [OVERSIZED]
    assert read(reader, [EXACT, EXACT, b"\n"]) == []


def test_the_end_may_come_before_an_oversized_line_is_looked_at() -> None:
    reader = LineReader(MAX_BYTES)
    reader.receive_data(b"ok\n" + EXACT * 2)
    reader.receive_data(b"")
    assert [reader.next_event() for _ in range(3)] == [b"ok", OVERSIZED, CLOSED]


def test_the_end_may_come_before_the_rest_of_an_oversized_line_is_looked_at() -> None:
    reader = LineReader(MAX_BYTES)
    assert read(reader, [EXACT * 2]) == [OVERSIZED]
    reader.receive_data(b"rest")
    reader.receive_data(b"")
    assert reader.next_event() is CLOSED


def test_a_closed_reader_stays_closed() -> None:
    reader = LineReader(MAX_BYTES)
    assert read(reader, [b"last", b""]) == [b"last"]
    assert [reader.next_event(), reader.next_event()] == [CLOSED, CLOSED]


def test_memory_is_bounded_while_a_line_never_ends() -> None:
    # HAZARDS F22: "1 GiB without newline … cut at limit; RSS flat". 64 MiB show it: nothing is kept per chunk.
    max_bytes, chunk = 256 * 1024, b"x" * 65536
    reader = LineReader(max_bytes)
    events: list[Event] = []
    for _ in range(1024):
        reader.receive_data(chunk)
        assert len(reader._buffer) <= max_bytes + len(chunk)
        events += take(reader)
    assert events == [OVERSIZED]
    assert len(reader._buffer) == 0
    assert read(reader, [b"\nstill usable\n"]) == [b"still usable"]


def test_memory_is_bounded_over_many_lines() -> None:
    reader = LineReader(MAX_BYTES)
    chunk = b"123456\n" * 512 + b"12"
    first = read(reader, [chunk])
    for _ in range(16):
        reader.receive_data(chunk)
        assert len(reader._buffer) == len(b"12" + chunk)
        assert take(reader) == [b"12123456", *first[1:]]


def test_a_long_line_in_small_pieces_is_scanned_once() -> None:
    # Quadratic work would be 2 ** 35 byte steps here.
    reader = LineReader(1 << 18)
    for length in range(1, (1 << 18) + 1):
        reader.receive_data(b"x")
        assert reader.next_event() is NEED_DATA
        assert reader._scanned == length
    assert read(reader, [b"\n"]) == [b"x" * (1 << 18)]


def test_blank_lines_may_be_part_of_a_text() -> None:
    reader = LineReader(100, keeps_blank=True)
    reader.receive_data(b"one\n\n  \ntwo\n\n")
    reader.receive_data(b"")
    assert [reader.next_event() for _ in range(6)] == [b"one", b"", b"  ", b"two", b"", CLOSED]
