"""What a route can ask of a request, and the ids of streams over several sessions."""

from __future__ import annotations

from typing import Any

import pytest

from oubliette.events import Entry, Journal, RingLimits
from oubliette.http.positions import Positions
from oubliette.http.request import Request
from tests.helpers.records import MemoryRecords


def make(*headers: tuple[bytes, bytes], query: bytes = b"") -> Request:
    never: Any = None
    return Request({"method": "GET", "path": "/", "headers": headers, "query_string": query}, never, never)


def test_lines_of_one_header_count_as_one() -> None:
    """RFC 9110, section 5.3: so of two contradicting lines neither wins."""
    request = make((b"accept", b"a/b"), (b"origin", b"http://localhost"), (b"accept", b"c/d"), (b"accept", b"e/f"))
    assert request.header(b"accept") == "a/b, c/d, e/f"
    assert request.header(b"origin") == "http://localhost"
    assert request.header(b"cookie") == ""


@pytest.mark.parametrize(
    ("accept", "wanted", "does"),
    [
        (b"", "text/event-stream", True),
        (b"*/*", "text/event-stream", True),
        (b"text/*", "text/event-stream", True),
        (b"application/json, text/event-stream", "text/event-stream", True),
        (b"TEXT/Event-Stream;q=0.9", "text/event-stream", True),
        (b"application/json", "text/event-stream", False),
        (b"application/*", "text/event-stream", False),
        (b"text/html", "application/json", False),
    ],
)
def test_what_a_peer_accepts(accept: bytes, wanted: str, does: bool) -> None:
    assert make((b"accept", accept)).accepts(wanted) is does


def test_parameters_of_the_query() -> None:
    request = make(query=b"since_index=5&children=true&since_index=6&empty=&a%20b=%C3%A9&bad=%ff")
    assert request.query() == {"since_index": "6", "children": "true", "empty": "", "a b": "é", "bad": "\ufffd"}


def test_positions_are_read_back_by_the_records_that_wrote_them_alone() -> None:
    journal = Journal(MemoryRecords(), RingLimits(), last_seq=1000)
    positions = Positions("0123456789abcdef", journal)
    id = positions.id_of(Entry(777, "ses_x", 3, "message", b"{}"))
    assert positions.seq_of(id) == 777
    assert Positions("fedcba9876543210", journal).seq_of(id) is None


@pytest.mark.parametrize(
    "id",
    [
        "",
        "5",
        "-",
        "abc",
        "abc-",
        "abc--1",
        "abc-xyz",
        "abc-1 ",
        "abc-FF",
        "abc-" + "0" * 17,
        "abc-3e9",
        "abc-1\n",
        "Abc-1",
    ],
)
def test_unknown_and_malformed_positions_are_none(id: str) -> None:
    """1001 (3e9) is newer than all there is: it was never given out."""
    assert Positions("abc", Journal(MemoryRecords(), RingLimits(), last_seq=1000)).seq_of(id) is None
