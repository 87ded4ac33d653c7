"""Signatures and argument lists, from a JSON Schema (proxied tools) and from a Python function (local ones).

Of whatever schema: "`def` + the signature with its first `.` made `_` + `: ...` parses as Python" (WIRE section 10). A
signature is for reading; what a call is checked against is the schema.
"""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ot_pack.snippets import MISSING

if TYPE_CHECKING:
    from docstring_parser import Docstring

# A default that takes longer to write is '...' too, so that a line can be read whatever a server sends. It also keeps
# the brackets of a nested default below the 200 at which Python's parser gives up.
MAX_DEFAULT_CHARACTERS: Final = 200
# How deep unions within unions are followed.
MAX_UNION_DEPTH: Final = 8

_ELSE: Final = "'...'"
_ANY: Final = "Any"
# WIRE section 10: "string, integer, number, boolean, array, object, null are …".
_TYPES: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}


class _Property(NamedTuple):
    name: str
    schema: object
    required: bool


class _Written:
    """A default whose repr is what is to be written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def from_schema(name: str, schema: object) -> str:
    """Returns the signature of the tool `name` (`pack.tool`) with the `inputSchema` `schema`, whatever that is.

    Required parameters come first, then optional ones with their default or `'...'`, each in the schema's order. What
    is required without being described is there too, as a call without it fails.
    """
    properties = _properties(schema)
    written = zip(_identifiers([property.name for property in properties]), properties, strict=True)
    return f"{_callable(name)}({', '.join(_parameter(word, property) for word, property in written)})"


def args_from_schema(schema: object) -> tuple[str, ...]:
    """Returns `"name: description"` for each property of an `inputSchema`, in the order of its signature."""
    return tuple(argument(name, _member(schema, "description")) for name, schema, _ in _properties(schema))


def from_function(name: str, function: Callable[..., object]) -> str:
    """Returns the signature of `function` as the tool `name`: names and defaults, no annotations.

    A default is written by its repr, and where that is no Python literal as `'...'`. Raises what `inspect.signature`
    raises for what has no signature: `TypeError` or `ValueError`.
    """
    import inspect

    empty = inspect.Parameter.empty
    parameters = [
        parameter.replace(
            annotation=empty, default=empty if parameter.default is empty else _Written(_default(parameter.default))
        )
        for parameter in inspect.signature(function).parameters.values()
    ]
    return f"{_callable(name)}{inspect.Signature(parameters)}"


def args_from_function(function: Callable[..., object]) -> tuple[str, ...]:
    """Returns `"name: description"` for each parameter, as the docstring (Google, NumPy, reST) has it.

    Raises as `from_function`.
    """
    import inspect

    described = _described_parameters(_docstring(function))
    parameters = inspect.signature(function).parameters.values()
    return tuple(argument(_starred(parameter), described.get(parameter.name)) for parameter in parameters)


def summary(function: Callable[..., object]) -> str:
    """Returns the first paragraph of the docstring in one line, empty where there is none."""
    docstring = _docstring(function)
    first = docstring.short_description or ""
    if docstring.blank_after_short_description:
        return _in_one_line(first)
    # The parser takes the first line for the short description, and the rest of its paragraph for the long one.
    rest = (docstring.long_description or "").partition("\n\n")[0]
    return _in_one_line(f"{first} {rest}")


def from_parameters(name: str, parameters: Iterable[tuple[str, object]]) -> str:
    """Returns the signature of the tool `name` with these parameters and defaults, `MISSING` where one is required."""
    written = [word if default is MISSING else f"{word}={_default(default)}" for word, default in parameters]
    return f"{_callable(name)}({', '.join(written)})"


def argument(name: str, description: object) -> str:
    """Returns `"name: description"`, the description in one line; `(no description)` where it is none."""
    return f"{name}: {_in_one_line(description) or '(no description)'}"


# --- JSON Schema -----------------------------------------------------------------------------------------------------


def _properties(schema: object) -> list[_Property]:
    """The properties in the order of a signature: "required parameters first, then optional, each in schema order"."""
    found, listed = _member(schema, "properties"), _member(schema, "required")
    described = {name: value for name, value in found.items() if _is_text(name)} if isinstance(found, Mapping) else {}
    required = dict.fromkeys(filter(_is_text, listed)) if isinstance(listed, list) else {}
    return [
        *(_Property(name, value, True) for name, value in described.items() if name in required),
        *(_Property(name, None, True) for name in required if name not in described),
        *(_Property(name, value, False) for name, value in described.items() if name not in required),
    ]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _member(schema: object, name: str, default: object = None) -> Any:
    return schema.get(name, default) if isinstance(schema, Mapping) else default


def _parameter(word: str, property: _Property) -> str:
    annotated = f"{word}: {' | '.join(dict.fromkeys(_types(property.schema, MAX_UNION_DEPTH)))}"
    if property.required:
        return annotated
    default = _member(property.schema, "default", MISSING)
    return f"{annotated} = {_ELSE if default is MISSING else _default(default)}"


def _types(schema: object, depth: int) -> Iterator[str]:
    """The members of a union; WIRE section 10: "unions with `|`, anything else `Any`"."""
    kind = _member(schema, "type")
    members = _member(schema, "anyOf") or _member(schema, "oneOf")
    if kind and isinstance(kind, str | list):
        for one in [kind] if isinstance(kind, str) else kind:
            yield _TYPES.get(one, _ANY) if isinstance(one, str) else _ANY
    elif members and isinstance(members, list) and depth:
        for member in members:
            yield from _types(member, depth - 1)
    else:
        yield _ANY


# --- Identifiers -----------------------------------------------------------------------------------------------------


def _callable(name: str) -> str:
    """`pack.tool` as a signature begins: the dot between them is the only character that no identifier has."""
    pack, dot, tool = name.partition(".")
    if not dot:
        return _identifier(name)
    pack = _without_others(pack)
    return f"{'_' if pack and not pack.isidentifier() else ''}{pack}.{_without_others(tool)}"


def _identifiers(names: Sequence[str]) -> list[str]:
    """Each of the names as an identifier that no other has. A name that is one keeps it."""
    taken: dict[str, int] = {}
    written = {name: _unused(_identifier(name), taken) for name in sorted(names, key=lambda name: not _is_usable(name))}
    return [written[name] for name in names]


def _unused(word: str, taken: dict[str, int]) -> str:
    base, unused = _as_python_reads(word), word
    while _as_python_reads(unused) in taken:
        taken[base] += 1
        unused = f"{word}_{taken[base]}"
    taken[_as_python_reads(unused)] = 1
    return unused


def _identifier(name: str) -> str:
    """WIRE section 10: "a property that is no identifier is written with `_`"."""
    word = _without_others(name)
    if not word.isidentifier():  # nothing at all, or a digit first
        word = f"_{word}"
    return word if _is_usable(word) else f"{word}_"


def _without_others(text: str) -> str:
    return "".join(character if f"_{character}".isidentifier() else "_" for character in text)


def _is_usable(name: str) -> bool:
    read = _as_python_reads(name)
    return name.isidentifier() and not keyword.iskeyword(read) and read != "__debug__"


def _as_python_reads(word: str) -> str:
    # "All identifiers are converted into the normal form NFKC while parsing" (Python's reference, section 2.3).
    return unicodedata.normalize("NFKC", word)


# --- Functions -------------------------------------------------------------------------------------------------------


def _default(value: object) -> str:
    """A default by its repr, where that is a Python literal and short. The repr of a local default is anybody's code,
    and that of a deep one raises `RecursionError`.
    """
    with suppress(Exception):
        text = repr(value)
        if len(text) <= MAX_DEFAULT_CHARACTERS and _is_literal(value, text):
            return text
    return _ELSE


def _is_literal(value: object, text: str) -> bool:
    if type(value) in (str, int, bool, type(None)):
        return True
    import ast

    # The repr of another class could read as a literal and hold a comment.
    ast.literal_eval(text)
    return type(value).__module__ == "builtins"


def _starred(parameter: Any) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + str(parameter.name)


def _docstring(function: Callable[..., object]) -> Docstring:
    import inspect

    import docstring_parser

    try:
        return docstring_parser.parse(inspect.getdoc(function) or "")
    except docstring_parser.ParseError:
        return docstring_parser.Docstring()


def _described_parameters(docstring: Docstring) -> dict[str, str | None]:
    """NumPy's style describes `x, y` together, and `*args` may be written with its stars."""
    return {
        name.strip(" *\\"): parameter.description
        for parameter in docstring.params
        for name in parameter.arg_name.split(",")
    }


def _in_one_line(text: object) -> str:
    return " ".join(text.split()) if isinstance(text, str) else ""
