"""JSON text, spelled as oddly as it may be, grown from random bytes: Hypothesis draws and shrinks those quickly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

_T = TypeVar("_T")

_SPACES: Final = ["", "", "", " ", "\n", "\r\n", "\t", " \r "]
_LITERALS: Final = ["0", "null", "true", "false", "1.10", "1e400", "-0", "-0.0", "1.0", '""', '"1"']
_INTEGERS: Final = ["0", "7", "10", "123456789012345678901234567890"]
_FRACTIONS: Final = ["", ".0", ".10", ".0123456789"]
_EXPONENTS: Final = ["", "e5", "E+05", "e-400", "E400"]
_RAW: Final = ["a", " ", "/", "id", "é", "😀", "\u2028", "\x85", "\x7f", "\ufeff", "[", "}", ":", ",", "'"]
_ESCAPED: Final = [
    *(rf"\{c}" for c in '"\\/bfnrt'),
    r"\u0000",
    r"\u0061",
    r"\u00E9",
    r"\ud83d\uDE00",
    r"\u2028",
    r"\\ud800",
]
_CHARACTERS: Final = [*_RAW, *_ESCAPED]
_ENVELOPE: Final = ["method", "id", "params", "result", "error", "jsonrpc", "type", "ID", "method\0"]
_BLOCK: Final = ['"type"', '"text"', '"data"', '"mimeType"', '"uri"', '"name"']
_TOKEN: Final = re.compile(r'[ \t\r\n]*("(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:," \t\r\n]+)[ \t\r\n]*', re.DOTALL)


class _Grower:
    """Takes each decision from the next byte of `seed`; past its end the first option, which is the shortest."""

    def __init__(self, seed: bytes) -> None:
        self._decisions = iter(seed)

    def pick(self, options: Sequence[_T]) -> _T:
        return options[next(self._decisions, 0) % len(options)]

    def several(self, grow: Callable[[], _T], most: int = 4) -> list[_T]:
        return [grow() for _ in range(self.pick(range(most + 1)))]

    def one_of(self, *growers: Callable[[], str]) -> str:
        return self.pick(growers)()

    def value(self, depth: int = 4) -> str:
        if depth == 0:
            return self.one_of(self.literal, self.number, self.string)
        array, object = partial(self.array, depth), partial(self.object, depth)
        return self.one_of(self.literal, self.number, self.string, array, object)

    def literal(self) -> str:
        return self.pick(_LITERALS)

    def number(self) -> str:
        return self.pick(["", "-"]) + self.pick(_INTEGERS) + self.pick(_FRACTIONS) + self.pick(_EXPONENTS)

    def string(self) -> str:
        return f'"{"".join(self.several(lambda: self.pick(_CHARACTERS)))}"'

    def id(self) -> str:
        return self.one_of(self.number, self.string, lambda: "null")

    def array(self, depth: int = 4) -> str:
        return self.listed("[", self.several(lambda: self.value(depth - 1)), "]")

    def object(self, depth: int = 4, key: Callable[[], str] | None = None) -> str:
        pairs = self.several(lambda: ((key or self.string)(), self.value(depth - 1)))
        unique = {json.loads(key): (key, value) for key, value in pairs}
        return self.listed("{", [self.member(*pair) for pair in unique.values()], "}")

    def envelope(self) -> str:
        """An object of the keys of an envelope, some of them twice."""
        pairs = self.several(lambda: (self.key(), self.one_of(lambda: '"m"', self.id, self.value)), 6)
        return self.listed("{", [self.member(*pair) for pair in pairs], "}")

    def message(self) -> str:
        pairs = [('"jsonrpc"', '"2.0"'), ('"id"', self.id()), ('"method"', '"m"'), ('"params"', self.object())]
        return self.listed("{", [self.member(*pair) for pair in pairs], "}")

    def result(self) -> str:
        """What looks like a `CallToolResult`."""
        odd = partial(self.object, 1, lambda: self.pick(_BLOCK))
        blocks = self.several(lambda: self.one_of(lambda: '{"type":"text","text":"1"}', odd))
        pairs = [
            ('"content"', self.listed("[", blocks, "]")),
            (self.pick(['"isError"', '"structuredContent"']), self.value(1)),
        ]
        return self.listed("{", [self.member(*pair) for pair in pairs], "}")

    def key(self) -> str:
        name = self.pick(_ENVELOPE)
        return json.dumps(name) if self.pick([True, False]) else f'"\\u{ord(name[0]):04x}{json.dumps(name)[2:]}'

    def member(self, key: str, value: str) -> str:
        return f"{key}{self.pick(_SPACES)}:{self.pick(_SPACES)}{value}"

    def listed(self, opening: str, items: list[str], closing: str) -> str:
        spaced = [f"{self.pick(_SPACES)}{item}{self.pick(_SPACES)}" for item in items]
        return f"{opening}{','.join(spaced) or self.pick(_SPACES)}{closing}"


def _grown(grow: Callable[[_Grower], str]) -> st.SearchStrategy[str]:
    return st.binary(max_size=120).map(lambda seed: grow(_Grower(seed)))


VALUES: Final = _grown(_Grower.value)
OBJECTS: Final = _grown(_Grower.object)
IDS: Final = _grown(_Grower.id)
ENVELOPES: Final = _grown(_Grower.envelope)
MESSAGES: Final = _grown(_Grower.message)
RESULTS: Final = _grown(_Grower.result)


@st.composite
def mutated(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> bytes:
    """The bytes of a text, some of them changed, taken out, doubled or put in."""
    data = bytearray(draw(texts).encode())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 8)))
        put = [
            b"",
            b'"',
            b"\\",
            b"{",
            b"}",
            b"]",
            b",",
            b"0",
            b"\\ud800",
            b"\xff",
            b"\0",
            b"\n",
            bytes(data[start:end]) * 2,
        ]
        data[start:end] = draw(st.sampled_from(put))
    return bytes(data)


def parsed(text: str) -> Any:
    """The reference: `json` without its NaN, with any number of digits, and half a surrogate pair refused.

    Raises `ValueError` for what is not JSON.
    """
    value = json.loads(text, parse_int=float, parse_constant=_refuse)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def is_json(text: bytes) -> bool:
    """Says whether `text` is JSON in UTF-8, as the reference sees it."""
    try:
        parsed(text.decode())
    except ValueError:
        return False
    return True


def tokens(text: str) -> list[str]:
    """Returns the tokens of JSON text, each as it is spelled."""
    found = list(_TOKEN.finditer(text))
    assert sum(len(match[0]) for match in found) == len(text)
    return [match[1] for match in found]


def _refuse(constant: str) -> float:
    raise ValueError(constant)
