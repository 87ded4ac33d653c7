"""Every subschema of a caller's JSON Schema, and where evaluation goes from it (WIRE section 2; HAZARDS T22 to T25).

The survey resolves each reference by itself, among what the schema holds: one that names anything else is refused
before an engine sees it, so nothing is ever asked for. It tolerates wrong shapes; whether the schema is valid JSON
Schema is asked afterwards, of the meta-schema.

What is found that no bound can be given for is kept as a reason to accept the schema without evaluating it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

import jsonschema_rs

JSONSchema: TypeAlias = dict[str, Any] | bool

# Nanoseconds, measured with jsonschema-rs 0.60.3 on one core of two, the worst case of each rounded up.
SUBSCHEMA_COST: Final = 150
KEYWORD_COST: Final = 100
NAME_COST: Final = 70
CONTAINER_COST: Final = 400
NUMBER_COST: Final = 9_000
# One byte of a string, for each byte that a compiled pattern takes: `[ab]*a[ab]{500}` defeats the lazy automaton.
PATTERN_BYTE_COST: Final = 0.3

# A pattern is built with the first of these sizes (bytes) that it fits in. Most fit in the first.
PATTERN_SIZES: Final = (2**11, 2**14, 2**17)
MAX_PATTERN_LENGTH: Final = 1024
# What translating and building all patterns of one schema may take, by `_building_cost`: jsonschema-rs re-reads the
# whole pattern for each \d, \s and \w in it, so that 20 KB of `\W` took 111 s.
PATTERN_BUDGET: Final = 4_000_000

# Joining a reference to its base reads both; a longer one has no honest use.
MAX_URI_LENGTH: Final = 2048
# What a message quotes of a schema, and what it says at most (characters).
_MAX_QUOTED: Final = 200
_MAX_MESSAGE: Final = 500

_DIALECT: Final = re.compile(r"https?://json-schema\.org/(?:draft-0[0-9]/|draft/20[0-9-]{5}/)?schema#?\Z")
_OUR_DIALECT: Final = re.compile(r"https?://json-schema\.org/draft/2020-12/schema#?\Z")
# A URI that has one spelling only: no case, escape, dot segment or default port for anyone to normalize.
_PLAIN_URI: Final = re.compile(
    r"(?!json-schema:|.*/\.\.?(?:/|\Z))[a-z][a-z0-9+.-]*:"
    r"(?://[a-z0-9.-]+(?::(?!(?:80|443)\b)[1-9][0-9]*)?(?:[/?][\w/~:@!$&'()*+,;=?.-]*)?|\w[\w/~:@!$&'()*+,;=?.-]*)\Z",
    re.ASCII,
)
_SHORTHAND: Final = re.compile(r"\\[dDsSwW]")
_PROPERTY: Final = re.compile(r"\\[pP]")


class SchemaError(ValueError):
    """A schema that is refused. The message goes on from the words "the inputSchema of caller tool 'x' …"."""

    def __init__(self, message: str) -> None:
        super().__init__(message[:_MAX_MESSAGE])


# Which values a subschema is tried on, seen from the value that the schema around it is tried on: the same; one member
# of an object, or item of an array, each of which meets only one of the subschemas on this route; every member or item;
# none, unless a reference leads there.
Route: TypeAlias = Literal["same", "member", "members", "item", "items", "nowhere"]
_Shape: TypeAlias = Literal["one", "list", "map"]
_SUBSCHEMAS: Final[dict[str, tuple[_Shape, Route]]] = {
    "allOf": ("list", "same"),
    "anyOf": ("list", "same"),
    "oneOf": ("list", "same"),
    "not": ("one", "same"),
    "if": ("one", "same"),
    "then": ("one", "same"),
    "else": ("one", "same"),
    "dependentSchemas": ("map", "same"),
    "dependencies": ("map", "same"),  # of earlier drafts, but jsonschema-rs evaluates it
    "properties": ("map", "member"),
    "additionalProperties": ("one", "member"),
    "patternProperties": ("map", "members"),
    "propertyNames": ("one", "members"),
    "prefixItems": ("list", "item"),
    "items": ("one", "item"),
    "contains": ("one", "items"),
    "$defs": ("map", "nowhere"),
    "definitions": ("map", "nowhere"),
    "contentSchema": ("one", "nowhere"),
    "unevaluatedItems": ("one", "nowhere"),
    "unevaluatedProperties": ("one", "nowhere"),
}
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
# ARCHITECTURE, traps: "with `unevaluated*`, `$dynamicRef` … the schema is passed on but not evaluated".
_UNBOUNDED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"})
_BRANCHES: Final = frozenset({"anyOf", "oneOf"})


@dataclass(slots=True)
class Place:
    """One subschema: what one value costs there (ns), each byte of a string (ns), and where evaluation goes on."""

    value_cost: float = SUBSCHEMA_COST
    byte_cost: float = 0.0
    unique_items: float = 0.0
    routes: dict[Route, list[int]] = field(default_factory=dict)

    def lead(self, route: Route, numbers: list[int]) -> None:
        """Notes the places that `route` leads to, if there are any."""
        if numbers:
            self.routes.setdefault(route, []).extend(numbers)


class Survey:
    """The places of one schema; the first is the schema itself.

    `opaque_reasons` says why the schema cannot be evaluated within bounds, as far as the survey alone can tell;
    `has_branches`, whether there is an `anyOf` or `oneOf`.
    Raises `SchemaError` for a reference that leads outside the schema or to nothing.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self.places: list[Place] = []
        self.opaque_reasons: list[str] = []
        self.has_branches = False
        self._numbers: dict[int, int] = {}
        self._referring: list[tuple[int, dict[str, Any], str]] = []
        self._named: dict[str, dict[str, Any]] = {"": schema}
        self._pattern_sizes: dict[str, int] = {}
        self._pattern_cost = 0.0
        self._add(schema, "")
        self._check_identifiers(schema)
        for number, subschema, base in self._referring:
            self._link(number, subschema, base)

    def _add(self, schema: JSONSchema, base: str) -> int:
        known = self._numbers.get(id(schema))  # true and false are the same wherever they stand
        if known is not None:
            return known
        number = self._numbers[id(schema)] = len(self.places)
        self.places.append(Place())
        if isinstance(schema, dict):
            self._enter(number, schema, self._name(schema, base))
        return number

    def _enter(self, number: int, schema: dict[str, Any], base: str) -> None:
        place = self.places[number]
        if not _REFERENCES.isdisjoint(schema):
            self._referring.append((number, schema, base))
        if "$schema" in schema:
            self._check_dialect(schema["$schema"], is_root=number == 0)
        self._weigh(place, schema)
        for keyword, value in schema.items():
            if keyword in _SUBSCHEMAS:
                shape, route = _SUBSCHEMAS[keyword]
                place.lead(route, [self._add(subschema, base) for subschema in _subschemas(shape, value)])

    # --- names and references -----------------------------------------------------------------------------------------

    def _name(self, schema: dict[str, Any], base: str) -> str:
        """Notes the names that `schema` gives itself; returns the base URI of what it holds."""
        if isinstance(schema.get("$id"), str):
            base, _ = _join(base, schema["$id"])
            self._note(base, schema)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._note(f"{base}#{schema[keyword]}", schema)
        return base

    def _note(self, uri: str, schema: dict[str, Any]) -> None:
        if self._named.setdefault(uri, schema) is not schema:
            self.opaque_reasons.append(f"two subschemas are named {_quote(uri)}")

    def _check_identifiers(self, schema: dict[str, Any]) -> None:
        """Whatever the engine may take for another name of something else, it would follow there: not as counted."""
        identifiers = [uri for uri in self._named if uri and "#" not in uri]
        has_parts = any(self._named[uri] is not schema for uri in identifiers)
        if has_parts and not all(_PLAIN_URI.match(uri) for uri in identifiers):
            self.opaque_reasons.append("the '$id' of a part can be spelled in other ways")
        if any("json-schema.org/" in uri.lower() for uri in identifiers):
            self.opaque_reasons.append("it has the '$id' of a standard")

    def _check_dialect(self, dialect: Any, *, is_root: bool) -> None:
        if not isinstance(dialect, str) or not _DIALECT.match(dialect):
            raise SchemaError(f"refers outside itself: '$schema' is {_quote(dialect)}")
        # SDKs write draft-07 on schemas that mean the same in 2020-12; a part in another dialect is another matter.
        if not is_root and not _OUR_DIALECT.match(dialect):
            self.opaque_reasons.append(f"a part of it is written in {_quote(dialect)}")

    def _link(self, number: int, schema: dict[str, Any], base: str) -> None:
        for keyword in sorted(_REFERENCES & schema.keys()):
            if isinstance(schema[keyword], str):
                target = self._resolve(keyword, schema[keyword], base)
                self.places[number].lead("same", [] if target is None else [target])

    def _resolve(self, keyword: str, reference: str, base: str) -> int | None:
        """Returns the place that `reference` names, None for an object where no subschema belongs."""
        uri, fragment = _join(base, reference)
        if uri not in self._named:
            raise SchemaError(f"refers outside itself: {keyword!r} is {_quote(reference)}")
        if fragment == "" or fragment.startswith("/"):
            target = _follow(self._named[uri], unquote(fragment))
        else:
            target = self._named.get(f"{uri}#{unquote(fragment)}")
        if not isinstance(target, (dict, bool)):
            raise SchemaError(f"refers to what is not there: {keyword!r} is {_quote(reference)}")
        if id(target) not in self._numbers:
            self.opaque_reasons.append(f"{keyword!r} names a place that no subschema belongs in: {_quote(reference)}")
        return self._numbers.get(id(target))

    # --- costs --------------------------------------------------------------------------------------------------------

    def _weigh(self, place: Place, schema: dict[str, Any]) -> None:
        for keyword, value in schema.items():
            place.value_cost += _COSTS[keyword](keyword, value) if keyword in _COSTS else KEYWORD_COST
        place.unique_items = float(schema.get("uniqueItems") is True)
        self.has_branches = self.has_branches or not _BRANCHES.isdisjoint(schema)
        self.opaque_reasons += [f"it uses {keyword!r}" for keyword in sorted(_UNBOUNDED & schema.keys())]
        if isinstance(schema.get("pattern"), str):
            place.byte_cost = self._pattern_byte_cost(schema["pattern"])
        if isinstance(schema.get("patternProperties"), dict):
            place.lead("members", [self._add_pattern(pattern) for pattern in schema["patternProperties"]])

    def _add_pattern(self, pattern: str) -> int:
        """Adds the place where a member's name is tried on a pattern."""
        self.places.append(Place(byte_cost=self._pattern_byte_cost(pattern)))
        return len(self.places) - 1

    def _pattern_byte_cost(self, pattern: str) -> float:
        if pattern not in self._pattern_sizes:
            self._pattern_cost += _building_cost(pattern)
            self._pattern_sizes[pattern] = self._pattern_size(pattern)
        return self._pattern_sizes[pattern] * PATTERN_BYTE_COST

    def _pattern_size(self, pattern: str) -> int:
        if len(pattern) > MAX_PATTERN_LENGTH or self._pattern_cost > PATTERN_BUDGET:
            self.opaque_reasons.append("its patterns are too long, or too many")
            return 0
        for size in PATTERN_SIZES:
            if _builds(pattern, size):
                return size
        self.opaque_reasons.append(f"the linear-time engine does not take its pattern {_quote(pattern)}")
        return 0


def pattern_options(size: int = PATTERN_SIZES[-1]) -> jsonschema_rs.RegexOptions:
    """Returns the options of the linear-time engine, for patterns of at most `size` bytes when built."""
    return jsonschema_rs.RegexOptions(size_limit=size)


def _builds(pattern: str, size: int) -> bool:
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, offline=True, pattern_options=pattern_options(size))
    except ValueError:  # a ValidationError, or a string that is no Unicode
        return False
    return True


def _building_cost(pattern: str) -> float:
    """Returns an upper bound (ns) of what building `pattern` once takes."""
    shorthands = len(_SHORTHAND.findall(pattern))
    rereading = shorthands * (len(pattern) + 60 * shorthands) * 80
    # A Unicode property is a table of some 600 ranges, folded for each (?i).
    return 60_000 + 400 * len(pattern) + rereading + 400_000 * len(_PROPERTY.findall(pattern))


def _number_cost(_keyword: str, _value: Any) -> float:
    return NUMBER_COST


def _comparison_cost(_keyword: str, value: Any) -> float:
    """Returns what it costs to compare a value with each part of `value`. Numbers are compared as exact decimals."""
    if isinstance(value, (list, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return CONTAINER_COST + sum(_comparison_cost("", part) for part in parts)
    return NUMBER_COST if isinstance(value, (int, float)) else KEYWORD_COST


def _members_cost(_keyword: str, value: Any) -> float:
    return KEYWORD_COST + NAME_COST * len(value if isinstance(value, dict) else ())


def _names_cost(keyword: str, value: Any) -> float:
    """Raises `SchemaError` unless only strings are listed.

    The meta-schema asks that names be unique. On 3,000 huge integers that took it 3.8 s, so no such list gets to it.
    """
    names = value if isinstance(value, list) else ()
    if not all(isinstance(name, str) for name in names):
        raise SchemaError(f"is not valid JSON Schema 2020-12: {keyword!r} must list strings")
    return KEYWORD_COST + NAME_COST * len(names)


def _names_by_member_cost(keyword: str, value: Any) -> float:
    return sum(_names_cost(keyword, names) for names in (value.values() if isinstance(value, dict) else ()))


# Keywords that cost more than KEYWORD_COST for each value.
_COSTS: Final[dict[str, Callable[[str, Any], float]]] = {
    "enum": _comparison_cost,
    "const": _comparison_cost,
    "properties": _members_cost,
    "type": _names_cost,
    "required": _names_cost,
    "dependentRequired": _names_by_member_cost,
    "dependencies": _names_by_member_cost,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _number_cost),
}


def _subschemas(shape: _Shape, value: Any) -> Iterator[JSONSchema]:
    found: Iterable[Any] = (value,)
    if shape == "list":
        found = value if isinstance(value, list) else ()
    elif shape == "map":
        found = value.values() if isinstance(value, dict) else ()
    return (subschema for subschema in found if isinstance(subschema, (dict, bool)))


def _join(base: str, reference: str) -> tuple[str, str]:
    """Returns what `reference` means within `base`: a URI and a fragment."""
    if reference.startswith("#"):  # urljoin knows no `urn:` base
        return base, reference[1:]
    try:
        uri, fragment = urldefrag(urljoin(base, reference[: MAX_URI_LENGTH + 1]))
    except ValueError:
        raise SchemaError(f"is not valid JSON Schema 2020-12: {_quote(reference)} is no URI reference") from None
    if len(uri) > MAX_URI_LENGTH:
        raise SchemaError(f"has a URI of over {MAX_URI_LENGTH} characters: {_quote(reference)}")
    return uri, fragment


def _follow(value: Any, pointer: str) -> Any:
    """Returns what the JSON pointer names within `value`, None where there is nothing."""
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            is_index = name.isdecimal() and len(name) < 6 and int(name) < len(value)
            value = value[int(name)] if is_index else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def _quote(value: Any) -> str:
    return repr(value)[:_MAX_QUOTED]
