"""The set of tools that both configs make (WIRE section 1; HAZARDS T27; FIELD section 2, defect 12)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from oubliette_client.tools import ToolSet

from oubliette.protocol.revisions import BY_NAME, NEWEST
from tests.unit.client.harness import beside_own


def _take_caller(tools: ToolSet, *declared: Any, caller_id: Any = "ant") -> list[str]:
    return tools.take("caller_tools_config", json.dumps({"caller_id": caller_id, "tools": declared}))


def _take_packs(tools: ToolSet, *offered: Any) -> list[str]:
    return tools.take("pack_tools_config", json.dumps({"tools": offered}))


def _entries(tools: ToolSet) -> dict[str, Any]:
    return beside_own(json.loads(tools.listing(NEWEST)))


def test_a_set_is_complete_when_both_configs_are_in() -> None:
    tools = ToolSet()
    heard = [tools.complete]
    _take_packs(tools)
    heard.append(tools.complete)
    _take_caller(tools)
    heard.append(tools.complete)
    assert heard == [False, False, True]


def test_a_new_config_replaces_its_own_kind_alone() -> None:
    tools = ToolSet()
    _take_caller(tools, {"name": "send"})
    _take_packs(tools, {"pack": "ot", "name": "tools"})
    _take_caller(tools, {"name": "get"})
    assert list(_entries(tools)) == ["ant_get", "ot_tools"]


def test_a_dot_in_a_name_becomes_an_underscore_for_the_agent_alone() -> None:
    tools = ToolSet()
    _take_caller(tools, {"name": "mail.send"})
    _take_packs(tools, {"pack": "github", "name": "issues.list"})
    assert tools.by_name["ant_mail_send"].params("{}") == '{"tool":"mail.send","arguments":{}}'
    assert tools.by_name["github_issues_list"].params("{}") == '{"name":"github.issues.list","arguments":{}}'


@pytest.mark.parametrize(
    ("declared", "offered"),
    [
        ([{"name": "a.b"}, {"name": "a_b"}], []),
        ([{"name": "send"}, {"name": "send"}, {"name": "send"}], []),
        ([{"name": "b_c"}], [{"pack": "ant_b", "name": "c"}]),
        ([], [{"pack": "ant", "name": "b_c"}, {"pack": "ant_b", "name": "c"}]),
    ],
)
def test_of_tools_that_share_a_name_none_is_shown(declared: list[Any], offered: list[Any]) -> None:
    tools = ToolSet()
    problems = _take_caller(tools, *declared, {"name": "other"}) + _take_packs(tools, *offered)
    assert list(_entries(tools)) == ["ant_other"]
    [problem] = problems
    assert problem.startswith("more than one tool is called ant_")


def test_a_clash_that_ends_shows_the_tool_and_a_clash_that_lasts_is_told_once() -> None:
    tools = ToolSet()
    clash = {"pack": "ant_b", "name": "c"}
    _take_caller(tools, {"name": "b_c"})
    assert len(_take_packs(tools, clash)) == 1
    assert _take_packs(tools, clash) == []
    assert _take_packs(tools) == []
    assert list(_entries(tools)) == ["ant_b_c"]
    assert len(_take_packs(tools, clash)) == 1


@pytest.mark.parametrize(
    "declaration",
    [
        *("x", 5, None, []),
        *({}, {"name": 5}, {"name": ""}, {"name": "a b"}, {"name": "a" * 61}, {"name": "ü"}),
        *({"name": "x", "inputSchema": "x"}, {"name": "x", "inputSchema": 5}, {"name": "x", "inputSchema": []}),
    ],
)
def test_a_tool_that_agents_choke_on_is_left_out_and_said(declaration: Any) -> None:
    tools = ToolSet()
    [problem] = _take_caller(tools, declaration, {"name": "b" * 60})
    assert "left out" in problem
    assert list(_entries(tools)) == ["ant_" + "b" * 60]


def test_tools_without_a_caller_id_are_left_out() -> None:
    tools = ToolSet()
    assert _take_caller(tools, {"name": "x"}, caller_id=None) != []
    assert _take_caller(tools, caller_id=None) == []
    assert _entries(tools) == {}


@pytest.mark.parametrize("params", ["[]", "5", '{"tools":5}', '{"tools":{"a":1}}'])
def test_a_config_of_another_shape_offers_nothing(params: str) -> None:
    tools = ToolSet()
    tools.take("pack_tools_config", params)
    assert _entries(tools) == {}


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ({}, {"type": "object"}),
        ({"inputSchema": None}, {"type": "object"}),
        ({"inputSchema": {}}, {"type": "object"}),
        ({"inputSchema": {"required": ["a"]}}, {"type": "object", "required": ["a"]}),
        ({"inputSchema": {"type": "object", "x": 1}}, {"type": "object", "x": 1}),
        ({"inputSchema": {"type": "array"}}, {"type": "object"}),
        ({"inputSchema": {"type": ["object", "null"]}}, {"type": "object"}),
    ],
)
def test_an_input_schema_is_always_an_object_schema(declared: dict[str, Any], shown: dict[str, Any]) -> None:
    tools = ToolSet()
    _take_caller(tools, {"name": "send", **declared})
    assert _entries(tools)["ant_send"]["inputSchema"] == shown


@pytest.mark.parametrize(
    ("key", "declared", "shown"),
    [
        ("outputSchema", {"type": "object"}, {"type": "object"}),
        ("outputSchema", {"properties": {}}, {"type": "object", "properties": {}}),
        ("outputSchema", {"type": "array"}, None),
        ("outputSchema", None, None),
        ("title", "Send", "Send"),
        ("title", 5, None),
        ("title", None, None),
        ("annotations", {"readOnlyHint": True}, {"readOnlyHint": True}),
        ("annotations", "safe", None),
        ("annotations", None, None),
        ("timeout_seconds", 60, None),
    ],
)
def test_what_a_tool_declares_is_shown_where_agents_take_it(key: str, declared: Any, shown: Any) -> None:
    tools = ToolSet()
    assert _take_caller(tools, {"name": "send", key: declared}) == []
    assert _entries(tools)["ant_send"].get(key) == shown


def test_a_description_is_always_there() -> None:
    tools = ToolSet()
    _take_caller(tools, {"name": "a", "description": None}, {"name": "b", "description": "Does\nb \u2028"})
    assert [tool["description"] for tool in _entries(tools).values()] == ["", "Does\nb \u2028"]


def test_schemas_are_shown_as_they_were_written() -> None:
    tools = ToolSet()
    schema = '{ "properties":{"n":{"maximum":1.10,"minimum":-0,"const":1e400}},"title":"\\u00e9"}'
    tools.take("caller_tools_config", f'{{"caller_id":"ant","tools":[{{"name":"a","inputSchema":{schema}}}]}}')
    for revision in BY_NAME.values():
        assert f'"inputSchema":{{"type":"object",{schema[1:]}' in tools.listing(revision)


def test_notifications_of_another_kind_change_nothing() -> None:
    tools = ToolSet()
    assert tools.take("later_config", '{"tools":[{"name":"x"}]}') == []
    assert _entries(tools) == {}
