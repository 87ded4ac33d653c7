"""`oubliette.protocol.nesting` (WIRE section 1: "nested deeper than 128: -32700"; HAZARDS F23)."""

from __future__ import annotations

import pytest

from oubliette.protocol.nesting import MAX_DEPTH, too_deep


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_the_bound_is_that_of_the_contract() -> None:
    assert MAX_DEPTH == 128


@pytest.mark.parametrize("levels", [0, 1, 64, 65, 127, 128])
def test_depths_that_are_read(levels: int) -> None:
    assert not too_deep(nested(levels))
    assert not too_deep(b'{"a":' * levels + b"1" + b"}" * levels)


@pytest.mark.parametrize("levels", [129, 130, 1000, 1_000_000])
def test_depths_that_are_refused(levels: int) -> None:
    assert too_deep(nested(levels))
    assert too_deep(b'{"a":' * levels + b"1" + b"}" * levels)
    assert too_deep(b'[{"":' * (levels // 2) + b"[1]" + b"}]" * (levels // 2))


# The text, and how deep it is.
DEPTHS: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 0),
    "a scalar": (b"1", 0),
    "siblings": (b"[[],[],{},{}]", 2),
    "brackets in a string": (b'["[[[{{{"]', 1),
    "closing brackets in a string": (b'[["]]]]"],[[]]]', 3),
    "strings side by side": (b'["a","[","b","","]",[""]]', 2),
    "an escaped quote": (rb'["\"[[",[]]', 2),
    "an escaped backslash before the end": (rb'["\\",[["[\\"]]]', 3),
    "three backslashes": (rb'["\\\"[",[]]', 2),
    "four backslashes": (rb'["\\\\",["["]]', 2),
    "keys": (rb'{"[":{"\"{":[]}}', 3),
    "an escape of a bracket": (rb'["\u005b\u005b"]', 1),
    "not UTF-8": (b'["\xff[",[]]', 2),
}


@pytest.mark.parametrize(("text", "depth"), DEPTHS.values(), ids=DEPTHS)
def test_only_brackets_outside_strings_count(text: bytes, depth: int) -> None:
    assert not too_deep(text, depth)
    assert depth == 0 or too_deep(text, depth - 1)


def test_many_shallow_levels_are_not_deep() -> None:
    assert not too_deep(b"[" + b",".join([b'{"[":["]"]}'] * 100_000) + b"]")


@pytest.mark.parametrize(
    "text", [b"]" * 500, b"]" * 500 + b"[" * 500, b'"' * 999 + b"[" * 129, b"[" * 128 + b"\\[" * 9]
)
def test_text_that_is_no_json_gets_an_answer(text: bytes) -> None:
    # What a parser would go through before it meets the error still counts.
    assert too_deep(b"[" * 129 + text)
