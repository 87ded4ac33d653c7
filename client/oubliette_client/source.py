"""JSON as source text: arrays and scalars, beside the objects of `oubliette.protocol.members`.

Values travel through the client as the text that they were written in (WIRE section 1: "Payloads … pass through").
Every function here takes text that is known to be JSON, such as a value out of `members`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final

from oubliette.protocol.members import members

_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Only where a value ends is asked: hooks that build no number accept any length of digits.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)
OBJECT: Final = '{"type":"object"}'
_EXCERPT_CHARACTERS: Final = 64


def items(array: str) -> list[str]:
    """Returns the source text of each item. Raises `ValueError` where `array` is no array."""
    position = _skip(array, 0)
    if not array.startswith("[", position):
        raise ValueError("not an array")
    found = []
    position = _skip(array, position + 1)
    while array[position] != "]":
        _, end = _DECODER.raw_decode(array, position)
        found.append(array[position:end])
        position = _skip(array, end)
        if array[position] == ",":
            position = _skip(array, position + 1)
    return found


def string(value: str | None) -> str | None:
    """Returns the string that `value` is, None where it is absent or anything else."""
    if value is None or not value.startswith('"'):
        return None
    text: str = json.loads(value)
    return text


def number(value: str | None) -> float | None:
    """Returns the finite number that `value` is, None where it is absent or anything else."""
    if value is None or value[0] not in "-0123456789":
        return None
    found = float(value)
    return found if math.isfinite(found) else None


def fields(value: str | None) -> dict[str, str]:
    """Returns the members of the object that `value` is, its nulls left out; none where it is no sound object."""
    try:
        return present(members(value or "{}"))
    except ValueError:
        return {}


def present(found: dict[str, str]) -> dict[str, str]:
    """Returns `found` without its nulls: WIRE section 2, "null counts as absent"."""
    return {key: value for key, value in found.items() if value != "null"}


def quote(text: str) -> str:
    """Returns `text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def beginning(text: str) -> str:
    """Returns the beginning of a peer's text for an error: enough to recognise it, never megabytes."""
    return text[:_EXCERPT_CHARACTERS]


def excerpt(text: str) -> str:
    """Returns the beginning of a peer's text for the message of an error, in quotation marks."""
    return repr(beginning(text))


def join(found: dict[str, str]) -> str:
    """Returns the object whose members are `found`."""
    return "{" + ",".join(f"{quote(key)}:{value}" for key, value in found.items()) + "}"


def object_schema(schema: str) -> str | None:
    """Returns `schema` with `"type":"object"` where it has no type, None where its type is another one.

    MCP demands the type at the root, and the official TypeScript client refuses a whole list for one tool without it.
    Raises `ValueError` where `schema` is no sound object.
    """
    found = members(schema)
    if "type" in found:
        return schema if string(found["type"]) == "object" else None
    return schema.replace("{", '{"type":"object",', 1) if found else OBJECT


def encode(text: str) -> bytes:
    """Returns the line that carries `text`. What came through `members` has no half of a surrogate pair to fail on."""
    return text.encode() + b"\n"


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
