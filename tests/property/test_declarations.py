"""What holds for every declaration and every schema in it (WIRE section 2; HAZARDS T22, T24, T25, T29).

Declarations that are valid are kept; anything else is refused with a field; and no schema makes the engine fail, or
evaluate more than was counted beforehand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from oubliette.declarations import DeclarationLimits, parse_declaration
from oubliette.errors import InvalidParams
from oubliette.protocol.names import mcp_name
from oubliette.schema_bounds import UnboundedError, bounds_of, measure
from oubliette.schema_survey import SUBSCHEMA_COST, Survey
from oubliette.schemas import SchemaError, ViolationError, compile_schema
from tests.property.odd_json import VALUES, mutated, parsed

# Examples are not kept between runs, and a busy machine is no failure.
few: Final = settings(deadline=None, database=None, max_examples=150)
many: Final = settings(few, max_examples=300)

LIMITS: Final = DeclarationLimits(60.0, 3600.0, frozenset({"oubliette", "project", "caller_tool"}))

# Schemas, most of them valid, grown from random bytes: Hypothesis draws and shrinks those quickly.

_LEAVES: Final[list[Any]] = [
    *(True, False, {}, {"type": "string"}, {"type": ["integer", "null"]}, {"required": ["a"]}, {"maxItems": 3}),
    *({"minimum": 1.5}, {"maximum": 2**70}, {"multipleOf": 0.1}, {"const": 1}, {"enum": [1, "a", [{"b": 2.5}]]}),
    *({"pattern": "^(a+)+$"}, {"pattern": "("}, {"uniqueItems": True}, {"type": 5}),
]
_ONE: Final = ("not", "if", "then", "else", "items", "contains", "propertyNames", "additionalProperties", "x-own")
_SEVERAL: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED: Final = ("properties", "dependentSchemas", "dependencies", "patternProperties", "$defs")
_TEXTS: Final[dict[str, list[str]]] = {
    "$ref": [*["#/$defs/a", "#/$defs/b"] * 6, "#", "#/properties/a", "#/allOf/0", "#x", "", "a.json", "http://e/x"],
    "$id": ["http://e/", "a.json", "urn:x:y", "::"],
    "$anchor": ["x", "y"],
}
_SCALARS: Final = [None, True, 0, 1.0, 2.5, 2**70, 1e300, "a", "aaa!", "é, []{}"]


class _Grower:
    """Takes each decision from the next byte of `seed`; past its end the first option."""

    def __init__(self, seed: bytes) -> None:
        self._decisions = iter(seed)

    def pick(self, options: Sequence[Any]) -> Any:
        return options[next(self._decisions, 0) % len(options)]

    def schema(self, depth: int = 4) -> Any:
        if depth == 0 or self.pick([True, False, False]):
            return self.pick(_LEAVES)
        return dict(self.keyword(depth - 1) for _ in range(self.pick([1, 2, 3])))

    def keyword(self, depth: int) -> tuple[str, Any]:
        keyword = self.pick([*_ONE * 2, *_SEVERAL * 2, *_NAMED * 2, *_TEXTS, "$ref", "unevaluatedItems"])
        if keyword in _SEVERAL:
            return keyword, [self.schema(depth) for _ in range(self.pick([1, 2]))]
        if keyword in _NAMED:
            return keyword, {self.pick(["a", "b"]): self.schema(depth) for _ in range(self.pick([1, 2]))}
        return keyword, self.pick(_TEXTS[keyword]) if keyword in _TEXTS else self.schema(depth)

    def object_schema(self) -> dict[str, Any]:
        schema = self.schema()
        definitions = {"a": self.schema(), "b": self.schema()}
        return {"$defs": definitions, **(schema if isinstance(schema, dict) else {}), "type": "object"}

    def value(self, depth: int = 5) -> Any:
        kind = self.pick([None, list, dict]) if depth else None
        if kind is None:
            return self.pick(_SCALARS)
        inner = [self.value(depth - 1) for _ in range(self.pick([0, 1, 2, 3]))]
        return inner if kind is list else {self.pick(["a", "b", "x"]): value for value in inner}

    def arguments(self) -> dict[str, Any]:
        return {name: self.value() for name in self.pick(["a", "ab", "xb", ""])}


SEEDS: Final = st.binary(max_size=100)
OBJECT_SCHEMAS: Final = SEEDS.map(lambda seed: _Grower(seed).object_schema())
ARGUMENTS: Final = SEEDS.map(lambda seed: _Grower(seed).arguments())

# Declarations, all of them valid.

_LETTERS: Final = "aZ09-"
NAMES: Final = st.text(f"{_LETTERS}_.", min_size=1, max_size=30)
CALLER_IDS: Final = st.tuples(st.sampled_from("aZ09"), st.text(_LETTERS, max_size=31)).map("".join)
TOOLS: Final = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "title": st.none() | st.text(max_size=5),
        "description": st.none() | st.text(max_size=20),
        "inputSchema": st.sampled_from([None, {}, {"properties": {"a": {"type": "string"}}}, {"$dynamicRef": "#"}]),
        "outputSchema": st.sampled_from([None, {}, {"type": "object"}]),
        "annotations": st.sampled_from([None, {"readOnlyHint": True}]),
        "timeout_seconds": st.none() | st.floats(0.1, 3600) | st.integers(1, 3600),
        "own": st.text(max_size=3) | st.floats(allow_nan=False, allow_infinity=False),
    },
)


@st.composite
def contexts(draw: st.DrawFn) -> dict[str, Any]:
    caller_id = draw(CALLER_IDS)
    tools = draw(st.lists(TOOLS, max_size=4, unique_by=lambda tool: mcp_name(caller_id, str(tool["name"]))))
    return {"caller_id": caller_id, "caller_tools": tools, "other": draw(st.none() | st.integers())}


@few
@given(contexts(), st.booleans())
def test_a_valid_declaration_is_kept_and_restored(context: dict[str, Any], ascii_only: bool) -> None:
    declaration = parse_declaration(json.dumps(context, ensure_ascii=ascii_only).encode(), LIMITS)
    assert declaration is not None
    assert declaration.caller_id == context["caller_id"]
    assert list(declaration.tools) == [tool["name"] for tool in context["caller_tools"]]
    assert parse_declaration(declaration.source, LIMITS) == declaration


@few
@given(contexts())
def test_each_tool_is_the_given_one_with_its_timeout(context: dict[str, Any]) -> None:
    declaration = parse_declaration(json.dumps(context).encode(), LIMITS)
    assert declaration is not None
    for given_tool, tool in zip(context["caller_tools"], declaration.tools.values(), strict=True):
        timeout = 60 if given_tool.get("timeout_seconds") is None else given_tool["timeout_seconds"]
        kept = json.loads(bytes(tool.source))
        assert kept == {**given_tool, "timeout_seconds": timeout}
        assert list(kept)[: len(given_tool)] == list(given_tool)
        assert tool.timeout_seconds == timeout


def field_refused(context: bytes) -> str | None:
    """The field of the refusal, "context" where there is none. Nothing but `InvalidParams` may be raised."""
    try:
        parse_declaration(context, LIMITS)
    except InvalidParams as error:
        return error.field
    return "context"


_FIELD: Final = re.compile(r"context(\.caller_id|\.caller_tools(\[\d+\](\.[a-zA-Z_]+)?)?)?")


_SLOTS: Final = st.sampled_from(
    [
        *('{"caller_id": %s, "caller_tools": [{"name": "a"}]}', '{"caller_id": "a", "caller_tools": %s}'),
        *('{"caller_id": "a", "caller_tools": [%s]}', '{"caller_id": "a", "caller_tools": [{"name": %s}]}'),
        '{"caller_id": "a", "caller_tools": [{"name": "a", "timeout_seconds": %s}]}',
        '{"caller_id": "a", "caller_tools": [{"name": "a", "description": %s}]}',
        '{"caller_id": "a", "caller_tools": [{"name": "a", "inputSchema": %s}]}',
        '{"caller_id": "a", "caller_tools": [{"name": "a", "inputSchema": {"properties": %s}}]}',
    ]
)


@many
@given(st.binary(max_size=60) | mutated(VALUES) | VALUES.map(str.encode))
@example(b'{"caller_id":"\\ud800"}')
@example(b'{"caller_id":"a","caller_tools":[{"name":"a","\\ud800":1}]}')
def test_any_context_is_parsed_or_refused(context: bytes) -> None:
    assert _FIELD.fullmatch(field_refused(context) or "")


@many
@given(_SLOTS, VALUES)
def test_any_value_anywhere_is_parsed_or_refused(slot: str, value: str) -> None:
    assert _FIELD.fullmatch(field_refused((slot % value).encode()) or "")


@many
@given(OBJECT_SCHEMAS, ARGUMENTS)
def test_no_schema_and_no_arguments_make_the_engine_fail(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Nothing but these two errors may be raised, and each says something short."""
    message = "fits"
    try:
        compile_schema(json.dumps(schema).encode()).check(json.dumps(arguments).encode())
    except (SchemaError, ViolationError) as error:
        message = str(error)
    assert 0 < len(message) <= 500


def _values(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _values(inner)


@many
@given(VALUES)
def test_a_text_is_measured_as_no_less_than_it_is(text: str) -> None:
    measured = measure(text.encode())
    assert measured is not None
    assert measured.value_count >= len(list(_values(parsed(text))))


def _evaluations(schema: Any, value: Any) -> int:
    """How many subschemas are tried if none is skipped: the slow and obvious way, without references."""
    if not isinstance(schema, dict):
        return 1
    several = [inner for keyword in ("allOf", "anyOf", "oneOf") for inner in schema.get(keyword, [])]
    several += [schema[keyword] for keyword in ("not", "if", "then", "else") if keyword in schema]
    several += [inner for keyword in ("dependentSchemas", "dependencies") for inner in schema.get(keyword, {}).values()]
    below = list(_below(schema, value))
    return 1 + sum(_evaluations(inner, value) for inner in several) + sum(_evaluations(*pair) for pair in below)


def _below(schema: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ((schema["propertyNames"], name),) if "propertyNames" in schema else ()
            yield from ((pattern, inner) for pattern in schema.get("patternProperties", {}).values())
            member = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            yield from () if member is None else ((member, inner),)
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from ((schema["contains"], inner),) if "contains" in schema else ()
            item = [*schema.get("prefixItems", []), *[schema.get("items")] * len(value)][index]
            yield from () if item is None else ((item, inner),)


def _without_references(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_references(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: _without_references(inner) for k, inner in schema.items() if k not in ("$ref", "$id", "$anchor")}


@many
@given(OBJECT_SCHEMAS.map(_without_references), ARGUMENTS)
def test_no_less_is_estimated_than_is_evaluated(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    measured = measure(json.dumps(arguments).encode())
    assert measured is not None
    try:
        root, *below = bounds_of(Survey(schema), 1).values
    except (UnboundedError, SchemaError):
        return
    evaluation = root + measured.value_count * max(below, default=0)
    assert evaluation >= SUBSCHEMA_COST * _evaluations(schema, arguments)
