"""YAML in flow style: objects in one line, lists of objects one item a line (tool-ot-spec, "YAML Flow Style Output").

What is written parses back to the same data with a YAML 1.1 reader, such as `yaml.safe_load`, whatever the strings
hold: a description that ends in `}, source: local` is a description still (HAZARDS T35). One thing cannot be written at
all, a lone surrogate: it has no UTF-8. U+FFFD, the replacement character, stands in its place.

Data is what JSON has: mappings with strings as keys, lists, strings, numbers, booleans, None. Its flow style never
nests more than `MAX_FLOW_LEVELS`; what is deeper is in block style, down to `MAX_DEPTH`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

# tool-ot-spec: "nested structures SHALL not exceed 2 levels of flow style".
MAX_FLOW_LEVELS: Final = 2
# Of mappings and lists in block style. Twice what a configuration may nest, and far from what a parser's stack holds.
MAX_DEPTH: Final = 32

# A key that is longer is no "simple key" to a parser, which looks 1024 characters ahead for its colon. The rest is for
# what may stand before it.
_MAX_SIMPLE_KEY: Final = 1000

# WIRE section 10: "In flow context a string is plain only if it matches … and YAML 1.1 reads it back as that string".
_PLAIN_IN_FLOW: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*").fullmatch

# YAML 1.1's booleans and nulls (yaml.org/type), each as it is, capitalized and in capitals; `y` and `n` are among them,
# though not every reader knows it.
_WORDS: Final = ("y", "yes", "n", "no", "true", "false", "on", "off", "null")
_RESERVED: Final = frozenset({form for word in _WORDS for form in (word, word.capitalize(), word.upper())})

# Not printable to YAML 1.1, or a line break to it, or a mark that a reader may take away, or no character at all.
_UNWRITABLE: Final = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff"
_ESCAPED: Final = re.compile(rf'["\\\t\n{_UNWRITABLE}]').sub
_ESCAPES: Final = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}

# The patterns from here on are compiled when they are first used: a third of what `import ot_pack` may take is regular
# expressions otherwise.

# WIRE section 10: "In block context it is plain wherever YAML allows and it does not begin with a digit".
_PLAIN_START: Final = r"""[^ 0-9?:,\[\]{}#&*!|>'"%@`-]|[?:-][^ ]"""
_NOT_PLAIN: Final = rf":(?: |\Z)| (?:#|\Z)|\A(?:---|\.\.\.)|[\t\n{_UNWRITABLE}]"
# What YAML 1.1 (or 1.2) reads as a number although it does not begin with a digit, and its other words without letters.
_NOT_A_STRING: Final = (
    r"[+-](?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*(?::[0-9]+)*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9]+)?)"
    r"|[+-]?\.[0-9_]*(?:[eE][+-]?[0-9]+)?"
    r"|[+-]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    r"|~|=|<<"
)
# A block literal keeps all other characters as they are.
_NOT_LITERAL: Final = f"[{_UNWRITABLE}]"


class Literal(str):
    """A text for people, such as a body: in block style a block literal (`|`), wherever that reads back the same."""

    __slots__ = ()


class Below(dict[str, Any]):
    """A mapping that in block style stands below its key, with a key a line, also where one line would hold it."""

    __slots__ = ()


def string(text: str) -> str:
    """Returns a string in flow context."""
    if _PLAIN_IN_FLOW(text) and text not in _RESERVED:
        return text
    return _quoted(text)


def flow(value: Any) -> str:
    """Returns `value` in flow style.

    Raises `ValueError` where it nests more than `MAX_FLOW_LEVELS`, `TypeError` where it is no data.
    """
    if not _fits(value, MAX_FLOW_LEVELS):
        raise ValueError(f"flow style has at most {MAX_FLOW_LEVELS} levels")
    return str(_flow(value))


def items(values: Sequence[Any]) -> str:
    """Returns a list as a block sequence with an item a line, however long; an empty one as `[]`. Raises as `block`."""
    return "\n".join(_sequence(values, MAX_DEPTH - 1)) if values else "[]"


def block(mapping: Mapping[str, Any]) -> str:
    """Returns a mapping as block keys with flow values; an empty one as `{}`.

    A value that flow style does not hold, and a list of objects, goes below its key. The line break after the last line
    is left to who writes the text somewhere.

    Raises `ValueError` where it nests more than `MAX_DEPTH`, `TypeError` where it is no data.
    """
    return "\n".join(_mapping(mapping, MAX_DEPTH - 1)) if mapping else "{}"


def document(mapping: Mapping[str, Any]) -> str:
    """Returns a mapping as WIRE section 10 has it: "a mapping whose values are all scalars or empty is one flow line;
    else block keys with flow values". Raises as `block`.
    """
    return _flow(mapping) if not any(map(_is_full, mapping.values())) else block(mapping)


def writable(text: str) -> str:
    """Returns `text` with U+FFFD in place of every lone surrogate, so that it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return re.sub(r"[\ud800-\udfff]", "\ufffd", text)
    return text


def _quoted(text: str) -> str:
    return f'"{_ESCAPED(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    """The escape of one character, which JSON has too."""
    character = match[0]
    return _ESCAPES.get(character) or rf"\u{ord(writable(character)):04x}"


def _is_collection(value: Any) -> bool:
    # Strings are most of what there is, and the answer for a mapping that is no dictionary is slow.
    return not isinstance(value, str) and isinstance(value, (dict, list, tuple, Mapping))


def _is_full(value: Any) -> bool:
    return _is_collection(value) and bool(value)


def _children(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, Mapping) else value


def _fits(value: Any, levels: int) -> bool:
    if not _is_collection(value):
        return True
    return levels > 0 and all(_fits(child, levels - 1) for child in _children(value))


def _flow(value: Any) -> str:
    if isinstance(value, str):
        return string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join([f"{_flow_key(key)} {_flow(child)}" for key, child in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _number(value)


def _flow_key(name: str) -> str:
    written = string(name)
    return f"{written}:" if len(written) <= _MAX_SIMPLE_KEY else f"? {written} :"


def _number(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _float(float.__repr__(value))
    raise TypeError(f"{type(value).__name__} is no data that YAML is written from")


def _float(text: str) -> str:
    if text.endswith(("inf", "nan")):
        return text.replace("inf", ".inf").replace("nan", ".nan")
    # YAML 1.1 reads 1e+16 as a string: its floats have a point.
    return text if "." in text else text.replace("e", ".0e")


def _is_inline(value: Any) -> bool:
    """Says whether a value stands behind its key or dash: not what flow style does not hold, and no list of objects,
    which tool-ot-spec wants as a "block sequence with flow items".
    """
    if isinstance(value, Below):
        return not value
    if isinstance(value, list | tuple) and any(map(_is_full, value)):
        return False
    return _fits(value, MAX_FLOW_LEVELS)


def _mapping(mapping: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name, value in mapping.items():
        *above, key = _block_key(name)
        yield from above
        yield from _pair(key, value, depth)


def _block_key(name: str) -> list[str]:
    written = _scalar(name)
    return [f"{written}:"] if len(written) <= _MAX_SIMPLE_KEY else [f"? {written}", ":"]


def _pair(key: str, value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, Literal) and _is_literal(value):
        yield f"{key} {_literal_header(value)}"
        yield from _indented(_literal_lines(value))
    elif _is_inline(value):
        yield f"{key} {_inline(value)}"
    else:
        yield key
        yield from _indented(_below(value, depth))


def _sequence(values: Sequence[Any], depth: int) -> Iterator[str]:
    for value in values:
        if _is_inline(value):
            yield f"- {_inline(value)}"
        else:
            first, *others = _below(value, depth)
            yield f"- {first}"
            yield from _indented(others)


def _below(value: Any, depth: int) -> Iterator[str]:
    if depth == 0:
        raise ValueError(f"data is nested deeper than {MAX_DEPTH} levels")
    return _mapping(value, depth - 1) if isinstance(value, Mapping) else _sequence(value, depth - 1)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" if line else "" for line in lines)


def _inline(value: Any) -> str:
    return _scalar(value) if isinstance(value, str) else _flow(value)


def _scalar(text: str) -> str:
    """A string in block context."""
    return text if _is_plain(text) and text not in _RESERVED else _quoted(text)


def _is_plain(text: str) -> bool:
    if not re.match(_PLAIN_START, text) or re.search(_NOT_PLAIN, text):
        return False
    return not re.fullmatch(_NOT_A_STRING, text)


def _is_literal(text: str) -> bool:
    # Of nothing but white space, a reader cannot tell what is indentation.
    return bool(text.strip()) and not re.search(_NOT_LITERAL, text)


def _literal_header(text: str) -> str:
    # Without a digit, the white space that the text begins with would count as indentation.
    indentation = "2" if text[0] in " \t\n" else ""
    breaks = len(text) - len(text.rstrip("\n"))
    return "|" + indentation + ("-", "", "+")[min(breaks, 2)]


def _literal_lines(text: str) -> list[str]:
    # The last line break is that of the last line.
    return text.removesuffix("\n").split("\n")
