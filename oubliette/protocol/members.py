"""The exact source text of an object's members.

WIRE section 1: payloads pass through "with their number spelling, key order and Unicode kept". Python's `json` turns
1.10 into 1.1 and 1e400 into Infinity, so values are passed on as the text they were written in. The parser only says
where each value ends.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Final, NoReturn

_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Text in which every escaped surrogate has its other half.
_WHOLE_SURROGATES: Final = re.compile(
    r"(?:[^\\]++|\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|u(?![dD][89a-fA-F])|[^u]))*+", re.DOTALL
)


class NotJSONError(ValueError):
    """The text is not JSON."""


class NotAnObjectError(ValueError):
    """The text is JSON, but not an object."""


class DuplicateKeyError(ValueError):
    """A key stands twice in one object; its parsers would disagree about which one counts."""


def _refuse(constant: str) -> NoReturn:
    raise NotJSONError(f"{constant} is not JSON")


# The values are thrown away: hooks that build no number accept any length of digits.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)


def members(text: str) -> dict[str, str]:
    """Returns the source text of each member of the object `text`, in the order written.

    `text` must not be nested deeper than `nesting.MAX_DEPTH` (ask `too_deep` first). Raises `NotJSONError`,
    `NotAnObjectError` or `DuplicateKeyError`.
    """
    # `json` reads half a surrogate pair, msgspec refuses it, and UTF-8 cannot carry it: it is nobody's JSON here.
    if ("\\ud" in text or "\\uD" in text) and not _WHOLE_SURROGATES.fullmatch(text):
        raise NotJSONError("half a surrogate pair")
    try:
        return _members(text)
    except (IndexError, StopIteration, json.JSONDecodeError, RecursionError) as error:
        raise NotJSONError("not JSON") from error


def _members(text: str) -> dict[str, str]:
    position = _skip(text, 0)
    if text[position] != "{":
        _, end = _DECODER.raw_decode(text, position)
        _expect_end(text, end)
        raise NotAnObjectError("not an object")
    found: dict[str, str] = {}
    position = _skip(text, position + 1)
    if text[position] != "}":
        position = _scan_members(text, position, found)
    _expect_end(text, position + 1)
    return found


def _scan_members(text: str, position: int, found: dict[str, str]) -> int:
    """Scans members from the first key on; returns the position of the closing brace."""
    while True:
        if text[position] != '"':
            raise NotJSONError("a key must be a string")
        key, position = scanstring(text, position + 1, True)
        position = _skip(text, position)
        if text[position] != ":":
            raise NotJSONError("a colon is missing")
        start = _skip(text, position + 1)
        _, end = _DECODER.raw_decode(text, start)
        if key in found:
            raise DuplicateKeyError(key)
        found[key] = text[start:end]
        position = _skip(text, end)
        if text[position] == "}":
            return position
        if text[position] != ",":
            raise NotJSONError("a comma is missing")
        position = _skip(text, position + 1)


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _expect_end(text: str, position: int) -> None:
    if _skip(text, position) != len(text):
        raise NotJSONError("something follows the value")
