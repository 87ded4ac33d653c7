"""HAZARDS T26: what a reader cannot see is not there."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.upstreams.text import clean, clean_line

INVISIBLE = "\u200b\u200d\u2060\ufeff\u00ad\u034f\u3164\ufe0f\U000e0041\U000e0100"
DIRECTIONS = "\u202a\u202e\u2066\u2069\u200e\u061c"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain, with é and 漢字 and 🙂\n\tindented", "plain, with é and 漢字 and 🙂\n\tindented"),
        ("one\r\ntwo\rthree\u2028four\u2029five\x85six", "one\ntwo\nthree\nfour\nfive\nsix"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;without an end", "0;without an end"),
        ("\x1bPq\x1b\\text\x1bc", "text"),
        ("a\x00b\x07c\x08d\x7fe\x80f", "abcdef"),
        (f"a{INVISIBLE}b{DIRECTIONS}c", "abc"),
        ("half \ud800 a pair \udc00", "half  a pair "),
    ],
)
def test_what_cannot_be_seen_is_taken_out(text: str, seen: str) -> None:
    assert clean(text, 1000) == seen


@given(st.text(), st.integers(min_value=4, max_value=50))
def test_a_clean_text_is_bounded_visible_and_stays_as_it_is(text: str, most: int) -> None:
    seen = clean(text, most)
    assert len(seen.encode()) <= most
    assert not any(unicodedata.category(each) in ("Cc", "Cs") for each in seen if each not in "\n\t")
    assert clean(seen, most) == seen


def test_a_long_text_is_cut_with_a_mark() -> None:
    assert clean("é" * 100, 100) == "é" * 48 + "…"
    assert clean("x" * 100, 100) == "x" * 100
    assert clean("\u200b" * 1000 + "x", 100) == "…"


def test_a_line_is_one_line() -> None:
    assert clean_line(" one\n\n two\t", 100) == "one two"


@pytest.mark.parametrize("part", ["\x1b]", "\x1b[", "\x1b[0", "\x1b", "\x9d", "a"])
def test_a_megabyte_of_anything_costs_little(part: str) -> None:
    started = time.perf_counter()
    clean(part * (1_000_000 // len(part)), 16 * 1024)
    assert time.perf_counter() - started < 0.5
