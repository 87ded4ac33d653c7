"""What a caller may declare, and what is refused with the field named (WIRE section 2; REQ-CTR-002; HAZARDS T27)."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import pytest

from oubliette.declarations import (
    MAX_DESCRIPTION_BYTES,
    MAX_TOOLS,
    Declaration,
    DeclarationLimits,
    parse_declaration,
)
from oubliette.errors import InvalidParams
from oubliette.protocol.nesting import MAX_DEPTH

LIMITS: Final = DeclarationLimits(
    default_timeout=60.0, max_timeout=3600.0, reserved=frozenset({"oubliette", "project", "caller_tool", "my_server"})
)
TOOL: Final = {"name": "send_notification", "description": "Send notification"}


def as_json(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def parsed(context: Any, limits: DeclarationLimits = LIMITS) -> Declaration | None:
    return parse_declaration(as_json(context), limits)


def declared(context: Any, limits: DeclarationLimits = LIMITS) -> Declaration:
    declaration = parsed(context, limits)
    assert declaration is not None
    return declaration


def with_tool(tool: Any) -> bytes:
    return b'{"caller_id": "myapp", "caller_tools": [%b]}' % as_json(tool)


def refusal(context: Any, limits: DeclarationLimits = LIMITS) -> tuple[str | None, str]:
    with pytest.raises(InvalidParams) as refused:
        parsed(context, limits)
    return refused.value.field, refused.value.message


# What is declared


def test_a_tool_is_declared_as_the_requirement_says() -> None:
    declaration = declared({"caller_id": "myapp", "caller_tools": [TOOL]})
    assert declaration.caller_id == "myapp"
    assert declaration.warnings == ()
    tool = declaration.tools["send_notification"]
    assert json.loads(bytes(tool.source)) == {**TOOL, "timeout_seconds": 60}
    assert tool.timeout_seconds == 60
    assert tool.schema.opaque_reason is None


@pytest.mark.parametrize(
    "context", [None, {}, {"caller_id": None}, {"caller_tools": None, "caller_id": None}, {"unknown": 1}, b" null "]
)
def test_nothing_is_declared(context: Any) -> None:
    assert parsed(context) is None


@pytest.mark.parametrize(
    "context", [{"caller_id": "a"}, {"caller_id": "a", "caller_tools": None}, {"caller_id": "a", "caller_tools": []}]
)
def test_a_caller_without_tools_is_an_empty_declaration(context: Any) -> None:
    assert declared(context) == Declaration("a", {}, b'{"caller_id":"a","caller_tools":[]}', ())


@pytest.mark.parametrize("caller_id", ["a", "Z9", "a-b-", "x" * 32, "projects", "Oubliette"])
def test_a_caller_id_is_accepted(caller_id: str) -> None:
    assert declared({"caller_id": caller_id}).caller_id == caller_id


def test_a_declaration_may_come_as_raw_json() -> None:
    assert parse_declaration(msgspec.Raw(b'{"caller_id":"a"}'), LIMITS) == declared({"caller_id": "a"})


def test_tools_keep_their_order() -> None:
    names = ["b", "a.x", "c-", "A", "0"]
    assert list(declared({"caller_id": "a", "caller_tools": [{"name": n} for n in names]}).tools) == names


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b'{"name": "a"}', b'{"name":"a","timeout_seconds":60}'),
        (b'{"timeout_seconds": null, "name": "a"}', b'{"timeout_seconds":60,"name":"a"}'),
        (b'{"timeout_seconds": 3e1,\n "name": "a"}', b'{"timeout_seconds":3e1,"name":"a"}'),
        (
            b'{"x-own": [1.10, 1e400], "name": "\\u0061", "title": null}',
            b'{"x-own":[1.10,1e400],"name":"\\u0061","title":null,"timeout_seconds":60}',
        ),
        ('{"é\\"\\n": "é", "name": "a"}'.encode(), '{"é\\"\\n":"é","name":"a","timeout_seconds":60}'.encode()),
    ],
)
def test_a_tool_is_kept_as_given_with_its_effective_timeout(given: bytes, kept: bytes) -> None:
    tool = declared(with_tool(given)).tools["a"]
    assert bytes(tool.source) == kept


@pytest.mark.parametrize(("default", "spelled"), [(60.0, b"60"), (0.5, b"0.5"), (60, b"60")])
def test_the_default_timeout_is_written_out(default: float, spelled: bytes) -> None:
    limits = DeclarationLimits(default, 3600.0, frozenset())
    tool = declared(with_tool(TOOL), limits).tools["send_notification"]
    assert bytes(tool.source).endswith(b'"timeout_seconds":%b}' % spelled)
    assert tool.timeout_seconds == default


@pytest.mark.parametrize(("text", "seconds"), [(b"0.1", 0.1), (b"3600", 3600.0), (b"36e2", 3600.0), (b"1.50", 1.5)])
def test_a_tool_sets_its_own_timeout(text: bytes, seconds: float) -> None:
    declaration = declared(with_tool(b'{"name": "a", "timeout_seconds": %b}' % text))
    assert declaration.tools["a"].timeout_seconds == seconds
    assert bytes(declaration.tools["a"].source) == b'{"name":"a","timeout_seconds":%b}' % text


def test_an_mcp_tool_as_an_sdk_dumps_it_can_be_declared() -> None:
    dumped = {
        "name": "a",
        "title": None,
        "description": None,
        "inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {}},
        "outputSchema": None,
        "icons": None,
        "annotations": {"readOnlyHint": True},
        "_meta": None,
        "execution": {"taskSupport": "forbidden"},
    }
    declaration = declared(with_tool(dumped))
    assert json.loads(bytes(declaration.tools["a"].source)) == {**dumped, "timeout_seconds": 60}


def test_a_schema_without_bounds_is_accepted_with_a_warning() -> None:
    declaration = declared(with_tool({"name": "a", "inputSchema": {"unevaluatedProperties": False}}))
    assert declaration.warnings == (
        "caller tool 'a': arguments are not checked against its inputSchema: it uses 'unevaluatedProperties'",
    )


def test_what_is_persisted_restores_an_equal_declaration() -> None:
    tools = [TOOL, {"name": "b.c", "timeout_seconds": 5, "inputSchema": {"$recursiveRef": "#"}}]
    declaration = declared({"caller_id": "a", "caller_tools": tools})
    other_defaults = DeclarationLimits(default_timeout=1.0, max_timeout=3600.0, reserved=frozenset())
    assert declared(declaration.source, other_defaults) == declaration


# What is refused


@pytest.mark.parametrize("context", [[], "text", 1, b"", b"{", b'{"caller_id": NaN}', b'"\xff"', b'{"a": 1} {}'])
def test_a_context_that_is_no_object_is_refused(context: Any) -> None:
    assert refusal(context)[0] == "context"


def test_half_a_character_is_refused() -> None:
    field, message = refusal(with_tool(b'{"name": "a", "description": "\\ud800"}'))
    assert field == "context"
    assert "half a surrogate pair" in message


def test_a_context_that_nests_too_deep_is_refused() -> None:
    deep = b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}"
    assert refusal(deep) == ("context", "the context is nested deeper than 128 levels")


@pytest.mark.parametrize("tools", [[], [TOOL], 5])
def test_tools_without_a_caller_id_are_refused(tools: Any) -> None:
    assert refusal({"caller_tools": tools}) == ("context.caller_id", "caller_tools need a caller_id")


@pytest.mark.parametrize(
    "caller_id", ["", "-a", "a_b", "a.b", "a b", "é", "a\n", "x" * 33, "oubliette", "project", 5, True, ["a"], {}]
)
def test_a_caller_id_is_refused(caller_id: Any) -> None:
    field, message = refusal({"caller_id": caller_id, "caller_tools": [TOOL]})
    assert field == "context.caller_id"
    assert "caller_id" in message


@pytest.mark.parametrize("tools", [{}, "text", 5, True])
def test_caller_tools_must_be_a_list(tools: Any) -> None:
    context = {"caller_id": "a", "caller_tools": tools}
    assert refusal(context) == ("context.caller_tools", "caller_tools must be a list")


@pytest.mark.parametrize(
    ("tool", "member", "message"),
    [
        (5, "", "must be a JSON object"),
        (None, "", "must be a JSON object"),
        ([], "", "must be a JSON object"),
        (b'{"name": "a", "n\\u0061me": "b"}', "", "has the key 'name' twice"),
        ({}, ".name", "has no name"),
        ({"name": None}, ".name", "has no name"),
        ({"name": 5}, ".name", "name must be a string"),
        ({"name": ""}, ".name", "1 to 64"),
        ({"name": "a b"}, ".name", "'a b' must be"),
        ({"name": "a\n"}, ".name", "1 to 64"),
        ({"name": "x" * 65}, ".name", "1 to 64"),
        ({"name": "x" * 59}, ".name", "longer than 64 characters"),
        ({"name": "a", "description": 5}, ".description", "description must be a string"),
        ({"name": "a", "title": ["x"]}, ".title", "title must be a string"),
        ({"name": "a", "inputSchema": True}, ".inputSchema", "inputSchema of caller tool 'a' must be an object"),
        ({"name": "a", "outputSchema": []}, ".outputSchema", "outputSchema of caller tool 'a' must be an object"),
        ({"name": "a", "annotations": "x"}, ".annotations", "annotations of caller tool 'a' must be an object"),
        ({"name": "a", "timeout_seconds": True}, ".timeout_seconds", "'a' must be a number"),
        ({"name": "a", "timeout_seconds": "60"}, ".timeout_seconds", "'a' must be a number"),
        ({"name": "a", "timeout_seconds": [60]}, ".timeout_seconds", "'a' must be a number"),
        ({"name": "a", "timeout_seconds": 0.099}, ".timeout_seconds", "from 0.1 to 3600"),
        ({"name": "a", "timeout_seconds": -1}, ".timeout_seconds", "from 0.1 to 3600"),
        (b'{"name": "a", "timeout_seconds": 3600.001}', ".timeout_seconds", "from 0.1 to 3600"),
        (b'{"name": "a", "timeout_seconds": 1e400}', ".timeout_seconds", "from 0.1 to 3600"),
        ({"name": "a", "inputSchema": {"type": "string"}}, ".inputSchema", "'a' is not an object schema"),
        ({"name": "a", "inputSchema": {"required": 1}}, ".inputSchema", "'a' is not valid JSON Schema 2020-12"),
        ({"name": "a", "inputSchema": {"$ref": "http://e/"}}, ".inputSchema", "'a' refers outside itself"),
        ({"name": "a", "inputSchema": {"title": "x" * 2**16}}, ".inputSchema", "'a' is over 64 KiB"),
        (b'{"name": "a", "inputSchema": {"a": 1, "a": 2}}', ".inputSchema", "stands twice"),
    ],
)
def test_a_tool_is_refused_with_its_field(tool: Any, member: str, message: str) -> None:
    field, said = refusal(b'{"caller_id": "myapp", "caller_tools": [{"name": "ok"}, %b]}' % as_json(tool))
    assert field == f"context.caller_tools[1]{member}"
    assert message in said
    assert len(said) < 700


def test_the_prefixed_name_may_have_64_characters() -> None:
    assert "x" * 58 in declared(with_tool({"name": "x" * 58})).tools


@pytest.mark.parametrize("over", [0, 1])
def test_a_description_is_measured_in_bytes(over: int) -> None:
    context = with_tool({"name": "a", "description": "é" * (MAX_DESCRIPTION_BYTES // 2) + "x" * over})
    if over:
        said = "the description of caller tool 'a' is over 16 KiB"
        assert refusal(context) == ("context.caller_tools[0].description", said)
    else:
        assert "a" in declared(context).tools


@pytest.mark.parametrize("over", [0, 1])
def test_the_number_of_tools_is_bounded(over: int) -> None:
    context = {"caller_id": "a", "caller_tools": [{"name": f"t{i}"} for i in range(MAX_TOOLS + over)]}
    if over:
        assert refusal(context) == ("context.caller_tools", "there are 129 caller tools, more than 128")
    else:
        assert len(declared(context).tools) == MAX_TOOLS


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c")])
def test_two_tools_of_one_name_are_refused(first: str, second: str) -> None:
    field, message = refusal({"caller_id": "a", "caller_tools": [{"name": "x"}, {"name": first}, {"name": second}]})
    assert field == "context.caller_tools[2].name"
    assert repr(first) in message
    assert repr(second) in message


@pytest.mark.parametrize(("caller_id", "name"), [("caller", "tool_response"), ("my", "server.x"), ("my", "server_x")])
def test_a_name_that_shadows_another_pack_is_refused(caller_id: str, name: str) -> None:
    field, message = refusal({"caller_id": caller_id, "caller_tools": [{"name": name}]})
    assert field == "context.caller_tools[0].name"
    assert "would be taken for a tool of" in message


def test_a_declaration_is_refused_as_a_whole() -> None:
    tools = [TOOL, {"name": "bad name"}]
    assert refusal({"caller_id": "a", "caller_tools": tools})[0] == "context.caller_tools[1].name"
