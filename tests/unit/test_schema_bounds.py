"""What has no bounds is opaque, and a call beyond them is not evaluated (WIRE section 2; ARCHITECTURE, traps).

The hostile pack (HAZARDS T24, T25) asserts decisions and estimates, never the clock.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from oubliette.protocol.nesting import MAX_DEPTH
from oubliette.schema_bounds import MAX_CHAIN, MAX_CHECK_COST, MAX_IN_PLACE, bounds_of, measure
from oubliette.schema_survey import SUBSCHEMA_COST, Survey
from oubliette.schemas import Schema, SchemaError, ViolationError, compile_schema

EVIL: Final = "^(a+)+$"
VICTIM: Final = "a" * 28 + "!"


def compiled(schema: Any) -> Schema:
    return compile_schema(json.dumps(schema).encode())


def of_x(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}}


def fits(schema: Schema, arguments: Any) -> bool:
    text = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
    assert schema.opaque_reason is None
    assert schema.evaluates(text)
    try:
        schema.check(text)
    except ViolationError:
        return False
    return True


def chain(length: int, link: Any, end: Any) -> dict[str, Any]:
    """A schema that leads through `length` definitions; `link` makes one of the reference to the next."""
    links = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": end}}


def nested(depth: int, inner: Any = None) -> Any:
    for _ in range(depth):
        inner = {"a": inner}
    return inner


# What is opaque (ARCHITECTURE, traps; HAZARDS T24, T25)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        (of_x({"unevaluatedItems": {"unevaluatedItems": False}}), "unevaluatedItems"),
        ({"$dynamicRef": "#here", "$defs": {"a": {"$dynamicAnchor": "here"}}}, "dynamicRef"),
        (of_x({"$recursiveRef": "#"}), "recursiveRef"),
        (of_x({"pattern": "(?=a)b"}), "linear-time engine"),
        (of_x({"pattern": r"(a)\1"}), "linear-time engine"),
        (of_x({"pattern": "("}), "linear-time engine"),
        (of_x({"pattern": "((a{100}){100}){100}"}), "linear-time engine"),
        ({"patternProperties": {"(?!a)": {}}}, "linear-time engine"),
        (of_x({"pattern": r"\S" * 10_000}), "patterns are too long"),
        (of_x({"pattern": r"\S" * 500}), "patterns are too long"),
        ({"properties": {f"x{i}": {"pattern": f"^{i}[a-z]+$"} for i in range(1000)}}, "too many"),
        (chain(16, lambda ref: {"allOf": [ref, ref]}, {}), "more than 10000 subschemas in place"),
        (of_x({"not": {"$id": "http://e/", **chain(16, lambda ref: {"anyOf": [ref, ref]}, {})}}), "10000 subschemas"),
        ({"allOf": [True] * (MAX_IN_PLACE + 1)}, "more than 10000 subschemas in place"),
        ({"allOf": [{}] * (MAX_IN_PLACE + 1)}, "more than 10000 subschemas"),
        (chain(1500, lambda ref: ref, {}), "nested deeper than 64 in place"),
        ({"$ref": "#"}, "refers to itself in place"),
        (chain(2, lambda ref: ref, {"anyOf": [{"$ref": "#/$defs/d0"}]}), "refers to itself in place"),
        ({"enum": [i + 0.5 for i in range(6000)]}, "takes too long"),
        ({"x-own": {"type": "string"}, "$ref": "#/x-own"}, "no subschema belongs"),
        ({"$defs": {"a": {"$anchor": "n"}, "b": {"$anchor": "n"}}}, "two subschemas are named"),
        ({"$defs": {"a": {"$id": "HTTP://h/a"}}}, "spelled in other ways"),
        ({"$id": "https://json-schema.org/draft/2020-12/schema"}, "of a standard"),
        (of_x({"$id": "http://e/", "$schema": "http://json-schema.org/draft-04/schema#"}), "draft-04"),
        ({"$id": "::::"}, "cannot build it"),
    ],
)
def test_what_has_no_bounds_is_accepted_and_not_evaluated(schema: Any, reason: str) -> None:
    opaque = compiled(schema)
    assert opaque.opaque_reason is not None
    assert reason in opaque.opaque_reason
    assert not opaque.evaluates(b"{}")
    opaque.check(b'{"x": [1, 1]}')


def test_a_refusal_goes_over_a_reason_to_be_opaque() -> None:
    with pytest.raises(SchemaError, match="outside"):
        compiled({"unevaluatedProperties": False, "properties": {"x": {"$ref": "http://example.com/"}}})
    with pytest.raises(SchemaError, match="2020-12"):
        compiled({"unevaluatedProperties": False, "required": "x"})


def test_the_bound_on_subschemas_in_place_is_exact() -> None:
    assert compiled({"allOf": [True] * (MAX_IN_PLACE - 1)}).opaque_reason is None
    assert compiled({"allOf": [True] * MAX_IN_PLACE}).opaque_reason is not None


def test_the_deepest_chain_meets_the_deepest_arguments() -> None:
    """Both bounds at once must fit on the stack: beyond them the process would end, not the test."""
    step = {"properties": {"a": {"$ref": "#"}}}
    recursive = compiled(chain(MAX_CHAIN - 3, lambda ref: ref, step))
    assert fits(recursive, nested(MAX_DEPTH - 1, {}))
    assert not fits(recursive, nested(MAX_DEPTH, "no object"))
    assert compiled(chain(MAX_CHAIN - 2, lambda ref: ref, step)).opaque_reason is not None


# What is evaluated, and within which bounds (WIRE section 3, step 1; HAZARDS T24, T25)


def estimate(schema: Any, arguments: bytes) -> float:
    measured = measure(arguments)
    assert measured is not None
    return bounds_of(Survey(schema), 1).cost(measured)


JSON_VALUE: Final = {
    "$defs": {
        "json": {
            "anyOf": [
                {"type": ["string", "number", "boolean", "null"]},
                {"type": "array", "items": {"$ref": "#/$defs/json"}},
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/json"}},
            ]
        }
    },
    **of_x({"$ref": "#/$defs/json"}),
}
DOUBLING: Final = {
    "$defs": {"n": {"allOf": [{"properties": {"a": {"$ref": "#/$defs/n"}}}] * 2}},
    "$ref": "#/$defs/n",
}
LIST: Final = {
    "$defs": {"node": {"properties": {"value": {"type": "integer"}, "a": {"$ref": "#/$defs/node"}}}},
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (of_x({"pattern": EVIL}), {"x": "aa"}, {"x": VICTIM}),
        ({"patternProperties": {EVIL: {"type": "string"}}}, {VICTIM: 1}, {"aa": 1}),
        ({"propertyNames": {"pattern": EVIL}}, {"aa": 1}, {VICTIM: 1}),
        (of_x({"uniqueItems": True}), {"x": [1, "1", [1]]}, {"x": [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]}),
        (of_x({"enum": ["a", 1, None]}), {"x": 1.0}, {"x": True}),
        (of_x({"contains": {"const": 5}, "minContains": 2}), {"x": [5, 1, 5]}, {"x": [5]}),
        ({"dependencies": {"x": ["y"]}}, {"x": 1, "y": 1}, {"x": 1}),
        (LIST, nested(100, {"value": 1}), nested(100, {"value": "1"})),
        (JSON_VALUE, {"x": nested(100, [1])}, []),
        (chain(8, lambda ref: {"allOf": [ref, ref]}, {"required": ["x"]}), {"x": 1}, {}),
        ({"properties": {"x": True}, "additionalProperties": False}, {"x": 1}, {"y": 1}),
        ({}, {}, []),
        ({}, {"x": None}, "text"),
    ],
)
def test_arguments_are_checked(schema: Any, good: Any, bad: Any) -> None:
    accepted = compiled(schema)
    assert fits(accepted, good)
    assert not fits(accepted, bad)


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (of_x({"pattern": "[ab]*a[ab]{500}c"}), {"x": "ab" * 32_000}),  # 10 µs a byte
        (of_x({"uniqueItems": True}), {"x": [{"a": i} for i in range(3000)]}),
        (of_x({"uniqueItems": True}), {"x": list(range(2**63, 2**63 + 3000))}),  # all hash alike: 5 s
        (of_x({"items": {"enum": [[i] for i in range(2000)]}}), {"x": [[1999]] * 3000}),
        (of_x({"items": {"allOf": [{"anyOf": [True]}] * 100}}), {"x": [1] * 10_000}),
        (of_x({"items": {"multipleOf": 1e-300}}), {"x": [1.5e300] * 1000}),
        (of_x({"items": {"multipleOf": 0.5}}), {"x": [5e-324] * 1000}),
        ({"patternProperties": {f"k[0-9]*{i}$": True for i in range(30)}}, {f"x{i}": i for i in range(3000)}),
        (chain(40, lambda ref: {"allOf": [{"properties": {"a": ref}}] * 2}, {}), nested(40)),
        (
            {"$defs": {"n": {"allOf": [{"properties": {"a": {"$ref": "#/$defs/n"}}}] * 2}}, "$ref": "#/$defs/n"},
            nested(40),
        ),
        ({"properties": {f"k{i}": {"$ref": "#"} for i in range(2500)}}, nested(100)),
        ({}, {"x": [[]] * 1_000_000}),
        ({}, {"x": "a" * 2**21}),
    ],
)
def test_a_call_that_would_take_too_long_is_not_evaluated(schema: Any, arguments: Any) -> None:
    accepted = compiled(schema)
    assert accepted.opaque_reason is None
    assert not accepted.evaluates(json.dumps(arguments).encode())
    accepted.check(json.dumps(arguments).encode())


def test_ordinary_calls_are_far_within_bounds() -> None:
    ordinary = of_x({"anyOf": [{"type": "string", "pattern": "^[a-z ,]+$"}, {"type": "null"}], "description": "text"})
    assert estimate(ordinary, b'{"x": "hello"}') < MAX_CHECK_COST / 1000
    assert estimate(ordinary, b'{"x": "%b"}' % (b"hello, " * 5000)) < MAX_CHECK_COST


def test_commas_and_brackets_in_strings_are_no_values() -> None:
    accepted = compiled({"required": ["x"], "properties": {"tags": {"uniqueItems": True}}})
    assert not fits(accepted, {"text": '[{"a", \\", ' * 5000})


@pytest.mark.parametrize(
    "keyword", ["not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"]
)
def test_what_is_tried_on_the_same_value_counts_for_it(keyword: str) -> None:
    assert added_cost(keyword) == [100 * SUBSCHEMA_COST, 0]


@pytest.mark.parametrize(
    "keyword",
    [
        *("properties", "additionalProperties", "patternProperties", "propertyNames"),
        *("items", "prefixItems", "contains"),
    ],
)
def test_what_is_tried_on_members_or_items_counts_one_deeper(keyword: str) -> None:
    assert added_cost(keyword) == [0, 100 * SUBSCHEMA_COST]


@pytest.mark.parametrize("keyword", ["$defs", "definitions", "contentSchema"])
def test_what_is_tried_on_nothing_does_not_count(keyword: str) -> None:
    assert added_cost(keyword) == [0, 0]


def added_cost(keyword: str) -> list[float]:
    """What 100 subschemas more under `keyword` add for a value, and for one a level deeper."""
    light, heavy = (costs({keyword: under(keyword, {"anyOf": [True] * count})}) for count in (1, 101))
    return [more - less for more, less in zip(heavy, light, strict=True)]


def under(keyword: str, schema: Any) -> Any:
    if keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        return [schema]
    names = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
    return {"a": schema} if keyword in names else schema


def costs(schema: dict[str, Any]) -> list[float]:
    return [*bounds_of(Survey(schema), 1).values, 0.0][:2]


def test_the_bounds_follow_the_depth_of_the_arguments() -> None:
    """A recursive schema that could double 128 times is evaluated where the arguments do not let it."""
    assert fits(compiled(DOUBLING), nested(4))
    assert estimate(DOUBLING, json.dumps(nested(4)).encode()) <= MAX_CHECK_COST
    assert estimate(DOUBLING, json.dumps(nested(40)).encode()) > MAX_CHECK_COST * 2**20
