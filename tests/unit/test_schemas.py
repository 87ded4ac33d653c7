"""A caller's schema is accepted or refused, nothing is fetched for it, and arguments are checked (WIRE 2 and 3).

What has no bounds is in test_schema_bounds.py.
"""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from oubliette.protocol.nesting import MAX_DEPTH
from oubliette.schema_bounds import UnboundedError
from oubliette.schemas import MAX_SCHEMA_BYTES, Schema, SchemaError, ViolationError, _build, compile_schema


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


def nested(depth: int, inner: Any = None) -> Any:
    for _ in range(depth):
        inner = {"a": inner}
    return inner


# What is accepted and refused


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}, "$ref": "#/definitions/a"},
        {"properties": {"x": {"$ref": "#/$defs/a%20b~1c"}}, "$defs": {"a b/c": {"type": "string"}}},
        {"properties": {"x": {"$ref": "#here"}}, "$defs": {"a": {"$anchor": "here"}}},
        {"properties": {"x": {"$ref": "http://example.com/a"}}, "$defs": {"a": {"$id": "http://example.com/a"}}},
        {"$id": "http://example.com/y/z", "$ref": "z#/$defs/a", "$defs": {"a": {}}},
        {"$id": "urn:x:y", "$ref": "#/$defs/a", "$defs": {"a": {}}},
        {"$id": "T0", "properties": {"x": {"items": {"$ref": "T0"}}}},
        {"allOf": [{"type": "object"}], "anyOf": [{"$ref": "#/allOf/0"}]},
        {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}, "type": {"enum": [1, 2]}}},
        {"enum": [{"$ref": "http://example.com/"}], "default": {"$schema": 5}, "x-own": {"$ref": "nowhere"}},
        {"required": ["x"], "dependentRequired": {"x": ["y"]}, "minProperties": 1.0},
        {"maximum": 1e308, "minLength": 2**70},
    ],
)
def test_an_object_schema_is_accepted_and_evaluated(schema: Any) -> None:
    assert compiled(schema).opaque_reason is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b'{"a": NaN}', "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b'{"a": "\\ud800"}', "is not JSON"),
        (b"true", "is not a JSON object"),
        (b"[]", "is not a JSON object"),
        (b'{"type": "array"}', "is not an object schema"),
        (b'{"type": ["object", "null"]}', "is not an object schema"),
        (b'{"type": null}', "is not an object schema"),
        (b'{"type": "object", "type": "object"}', "twice"),
        (b'{"properties": {"x": {"type": "strin"}}}', r"2020-12: inputSchema\.properties\.x\.type: "),
        (b'{"properties": []}', r"2020-12: inputSchema\.properties: "),
        (b'{"properties": {"x": {"items": [{}]}}}', "2020-12"),
        (b'{"properties": {"x": {"minimum": "1"}}}', "2020-12"),
        (b'{"required": [1]}', "2020-12: 'required' must list strings"),
        (b'{"required": ["a", "a"]}', "2020-12"),
        (b'{"dependentRequired": {"x": [[]]}}', "'dependentRequired' must list strings"),
        (b'{"properties": [], "title": "%b"}' % (b"x" * 20_000), "2020-12$"),
        (b'{"$ref": 5}', "2020-12"),
        (b'{"$ref": "#/$defs/x"}', "refers to what is not there"),
        (b'{"$ref": "#/x", "x": "text"}', "refers to what is not there"),
        (b'{"$ref": "#nowhere"}', "refers to what is not there"),
        (b'{"$id": "http://e/", "$ref": "http://["}', "is no URI reference"),
        (b'{"$ref": "%b"}' % (b"x" * 3000), "URI of over 2048"),
    ],
)
def test_a_schema_is_refused_with_the_reason(source: bytes, message: str) -> None:
    with pytest.raises(SchemaError, match=message) as refused:
        compile_schema(source)
    assert len(str(refused.value)) <= 500


@pytest.mark.parametrize("over", [0, 1])
def test_the_size_counts_as_compact_json(over: int) -> None:
    frame = len(b'{"description":""}')
    source = b' \n { "description" : "%b" } ' % (b"x" * (MAX_SCHEMA_BYTES - frame + over))
    if over:
        with pytest.raises(SchemaError, match="over 64 KiB"):
            compile_schema(source)
    else:
        assert len(compile_schema(source).source) == MAX_SCHEMA_BYTES


@pytest.mark.parametrize("over", [0, 1])
def test_the_depth_is_bounded(over: int) -> None:
    source = b'{"not":' * (MAX_DEPTH + over - 1) + b"{}" + b"}" * (MAX_DEPTH + over - 1)
    if over:
        with pytest.raises(SchemaError, match="nested deeper"):
            compile_schema(source)
    else:
        assert compile_schema(source).opaque_reason is not None


def test_schemas_are_equal_by_their_text() -> None:
    assert compile_schema(b'{"type":"object"}') == compile_schema(b' { "type": "object" } ')
    assert compile_schema(b'{"type":"object"}') != compile_schema(b"{}")


# Nothing is fetched (HAZARDS T22)


@pytest.fixture
def canary() -> Iterator[tuple[str, list[str]]]:
    hits: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hits.append(self.path)
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/canary", hits
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda uri: {"$ref": uri},
        lambda uri: {"$ref": f"{uri}#/$defs/a"},
        lambda uri: {"$dynamicRef": f"{uri}#a"},
        lambda uri: {"$recursiveRef": uri},
        lambda uri: {"$schema": uri},
        lambda uri: {"$id": uri, "$ref": "other"},
        lambda uri: {"$defs": {"unused": {"$ref": uri}}},
        lambda uri: {"properties": {"x": {"$id": "http://example.com/", "$schema": uri}}},
        lambda uri: {"properties": {"x": {"unevaluatedProperties": {"$ref": uri}}}},
    ],
)
def test_a_reference_outside_is_refused_and_never_followed(
    spoil: Any, canary: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, hits = canary
    file = tmp_path / "canary.json"
    file.write_text("{}")
    os.utime(file, (1, 2))  # a read would set the first of the two, even on a file system that is slow to do so
    uris = [address, address.replace("http:", "https:"), file.as_uri(), str(file), "data:application/json,%7B%7D", "x"]
    for uri in uris:
        with pytest.raises(SchemaError, match="refers outside itself"):
            compiled(spoil(uri))
    assert hits == []
    assert file.stat().st_atime == 1


@pytest.mark.parametrize(
    "schema",
    [
        lambda uri: {"$id": uri, "$ref": f"{uri}#/$defs/a", "$defs": {"a": {"required": ["x"]}}},
        lambda uri: {"$vocabulary": {uri: True}, "required": ["x"]},
        lambda uri: {"const": {"x": {"$ref": uri}}},
        lambda uri: {"x-own": {"$ref": uri}, "required": ["x"]},
    ],
)
def test_a_name_that_is_an_address_is_only_a_name(schema: Any, canary: tuple[str, list[str]]) -> None:
    address, hits = canary
    accepted = compiled(schema(address))
    assert not fits(accepted, {})
    assert fits(accepted, {"x": {"$ref": address}})
    assert hits == []


def test_the_engine_itself_is_told_to_fetch_nothing(canary: tuple[str, list[str]]) -> None:
    """Behind the survey stands the engine's own refusal, should the two ever disagree about a reference."""
    address, hits = canary
    for schema in (
        {"$ref": address},
        {"$schema": address},
        {"properties": {"x": {"$id": address, "$schema": address}}},
    ):
        with suppress(UnboundedError):
            _build(schema)
    assert hits == []


# How arguments are read


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "number"}, "1e400"),
        ({"type": "number"}, "-1E+400"),
        ({"type": "integer"}, "9" * 5000),
        ({"type": "integer"}, "1e400"),
        ({"type": "integer"}, "1.0"),
        ({"const": 2**70 + 1}, str(2**70 + 1)),
        ({"const": 1.1}, "1.10"),
        ({"const": 100000}, "1E5"),
        ({"exclusiveMinimum": 0}, "1e-400"),
        ({"multipleOf": 0.01}, "19.99"),
        ({"pattern": "^.$"}, '"\\ud800"'),
        ({"minLength": 1, "maxLength": 1}, '"\\ud83d\\ude00"'),
        ({"properties": {"\u00e9": {"const": 1}}, "required": ["\u00e9"]}, '{"\\u00e9": 1, "\\udc00": 1e999}'),
    ],
)
def test_validation_never_fails_because_of_spelling(schema: Any, text: str) -> None:
    accepted = compiled({**of_x(schema), "required": ["x"]})
    assert fits(accepted, b'{"x": %b}' % text.encode())


@pytest.mark.parametrize("text", [b"", b"{", b'{"x": NaN}', b'{"x": 1e999, }', b'{"x": "\xff"}', b'{"x": 01}'])
def test_what_is_not_json_is_a_violation(text: bytes) -> None:
    with pytest.raises(ViolationError, match="not JSON"):
        compiled({}).check(text)


def test_arguments_that_nest_too_deep_are_a_violation() -> None:
    with pytest.raises(ViolationError, match="nested deeper than 128"):
        compiled({}).check(json.dumps(nested(MAX_DEPTH + 1)).encode())


# What a violation says


def violation(schema: Any, arguments: Any) -> ViolationError:
    with pytest.raises(ViolationError) as caught:
        compiled(schema).check(json.dumps(arguments).encode())
    return caught.value


def test_a_violation_names_the_argument_and_not_its_value() -> None:
    error = violation(of_x({"items": {"properties": {"n": {"type": "integer"}}}}), {"x": [{}, {"n": "secret"}]})
    assert str(error) == 'arguments.x[1].n: the value is not of type "integer"'
    assert error.path == "x[1].n"


def test_a_missing_argument_is_named() -> None:
    error = violation({"required": ["message"]}, {})
    assert (str(error), error.path) == ('arguments: "message" is a required property', "")


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"additionalProperties": {"type": "null"}}, {"k" * 100_000: 1}),
        ({"properties": {}, "additionalProperties": False}, {"k" * 100_000: 1}),
        (of_x({"const": "c" * 60_000}), {"x": "v" * 100_000}),
        (of_x({"enum": ["e" * 20_000, "f" * 20_000]}), {"x": "v" * 100_000}),
    ],
)
def test_a_violation_is_short(schema: Any, arguments: Any) -> None:
    error = violation(schema, arguments)
    assert len(str(error)) <= 500
    assert len(error.path) <= 500
    assert "vvv" not in str(error)


def test_a_violation_that_would_take_too_long_to_explain_is_a_plain_no() -> None:
    """The engine copies the value for each branch: 2 s for these on 10,000 values."""
    error = violation({"anyOf": [{"required": ["y"]}] * 300}, {"x": [1] * 1000})
    assert (str(error), error.path) == ("the arguments do not fit the inputSchema of the tool", "")
