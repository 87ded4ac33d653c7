"""What may be offered of a hostile list (HAZARDS T26, T27)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.protocol.names import is_tool_name, mcp_name
from oubliette.upstreams.tools import (
    MAX_DESCRIPTION,
    MAX_LIST_BYTES,
    MAX_META_BYTES,
    MAX_PROBLEMS,
    MAX_SCHEMA_BYTES,
    MAX_TOOLS,
    Listing,
    Sieve,
    fingerprint,
)

OBJECT = {"type": "object"}


def sift(*tools: Any, server: str = "one") -> Listing:
    sieve = Sieve(server)
    for each in tools:
        sieve.add(each)
    return sieve.result()


def tool(name: Any = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": OBJECT, **more}


def nested(depth: int) -> dict[str, Any]:
    """An object schema whose JSON is nested so deep."""
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return {**schema, "type": "object"}


def names(listing: Listing) -> list[str]:
    return [each.name for each in listing.tools]


def test_a_good_tool_is_offered_as_it_is() -> None:
    whole = {
        "name": "get.weather-now_1",
        "title": "Weather",
        "description": "Tells the weather.\n\nOf a place.",
        "inputSchema": {"type": "object", "properties": {"place": {"type": "string", "description": "Where"}}},
        "outputSchema": {"type": "object", "properties": {"degrees": {"type": "number"}}},
        "annotations": {"title": "Weather", "readOnlyHint": True},
        "_meta": {"example.org/page": "ui://weather"},
    }
    listing = sift(whole)
    assert listing.problems == {}
    assert listing.tools[0].entry == whole
    assert listing.tools[0].fingerprint == fingerprint(whole)


def test_what_is_null_or_unknown_is_left_out() -> None:
    listing = sift(tool(description=None, title=None, outputSchema=None, annotations=None, icons=[{}], execution={}))
    assert (listing.tools[0].entry, listing.problems) == (tool(), {})


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "a\n", "x" * 65, "a\u200bb", "\x1b[31m", None, 7, ["a"], {}])
def test_a_name_that_agents_break_on_is_left_out_and_told(name: Any) -> None:
    listing = sift(tool(name), tool("good"))
    assert names(listing) == ["good"]
    [(label, why)] = listing.problems.items()
    assert why.startswith("left out: its name must be")
    assert label.isprintable()


@pytest.mark.parametrize("raw", [None, "a", 1, [], [tool()], {}, {"inputSchema": OBJECT}])
def test_what_is_no_tool_is_left_out_and_told(raw: Any) -> None:
    listing = sift(tool("good"), raw)
    assert names(listing) == ["good"]
    assert list(listing.problems) == ["number 2"]


def test_a_name_that_is_too_long_with_its_server_s_is_left_out() -> None:
    longest = "x" * (64 - len("server_"))
    listing = sift(tool(longest), tool(longest + "x"), server="server")
    assert names(listing) == [longest]
    assert "more than 64 characters" in listing.problems[longest + "x"]


def test_of_names_that_collide_none_is_offered() -> None:
    """HAZARDS T27: "collision refused for all, not last-wins"."""
    listing = sift(tool("a.b"), tool("c"), tool("a_b"), tool("d"), tool("d"))
    assert names(listing) == ["c"]
    assert set(listing.problems) == {"a.b", "a_b", "d"}
    assert listing.problems["a.b"] == "left out: another tool's name is 'one_a_b' too"


def test_a_tool_cannot_get_a_name_by_making_its_rival_unfit() -> None:
    listing = sift(tool("a", inputSchema={"type": "string"}), tool("a"))
    assert names(listing) == []


def test_a_megabyte_of_description_is_cut() -> None:
    [found] = sift(tool(description="x" * 1_000_000)).tools
    assert len(found.entry["description"].encode()) == MAX_DESCRIPTION
    assert found.entry["description"].endswith("x…")


def test_texts_for_readers_are_clean_wherever_they_stand() -> None:
    hidden = "a\u202eb\x1b[31mc\u200b"
    schema = {
        "type": "object",
        "title": hidden,
        "properties": {
            "default": {"description": hidden, "enum": [hidden], "const": {"description": hidden}},
            "description": {"anyOf": [{"description": hidden}, True]},
        },
        "$defs": {"enum": {"description": hidden}},
        "default": {"title": hidden},
    }
    annotations = {"title": hidden, "readOnlyHint": "yes", "other": hidden}
    [found] = sift(tool(title=hidden, description=hidden, inputSchema=schema, annotations=annotations)).tools
    cleaned = found.entry["inputSchema"]
    assert (found.entry["title"], found.entry["description"], cleaned["title"]) == ("abc", "abc", "abc")
    assert found.entry["annotations"] == {"title": "abc"}
    assert cleaned["properties"]["default"]["description"] == "abc"
    assert cleaned["properties"]["description"]["anyOf"] == [{"description": "abc"}, True]
    assert cleaned["$defs"]["enum"]["description"] == "abc"
    # Data is compared with what an agent sends: it stays.
    assert cleaned["properties"]["default"]["enum"] == [hidden]
    assert cleaned["properties"]["default"]["const"] == {"description": hidden}
    assert cleaned["default"] == {"title": hidden}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (None, "is not an object schema"),
        (True, "is not an object schema"),
        ([], "is not an object schema"),
        ({"type": "string"}, "is not an object schema"),
        ({"type": ["object", "null"]}, "is not an object schema"),
        ({"type": None}, "is not an object schema"),
        ({"description": "x" * MAX_SCHEMA_BYTES}, "is over 64 KiB"),
        (nested(129), "is nested deeper than 128 levels"),
        (nested(5000), "is nested deeper than 128 levels"),
        ({"const": float("nan")}, "holds what JSON cannot say"),
        ({"properties": {"\ud800": {}}}, "holds what JSON cannot say"),
    ],
)
def test_a_schema_that_is_none_costs_the_tool_but_no_other(schema: Any, why: str) -> None:
    listing = sift(tool("bad", inputSchema=schema), tool("good"))
    assert names(listing) == ["good"]
    assert listing.problems == {"bad": f"left out: its inputSchema {why}"}


@pytest.mark.parametrize("schema", [{}, {"properties": {}}, nested(128)])
def test_a_schema_without_a_type_is_an_object_s(schema: dict[str, Any]) -> None:
    [found] = sift(tool(inputSchema=schema)).tools
    assert found.entry["inputSchema"] == {**schema, "type": "object"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"outputSchema": {"type": "string"}}, "its outputSchema is not an object schema"),
        ({"outputSchema": nested(129)}, "its outputSchema is nested deeper than 128 levels"),
        ({"_meta": {"a": "x" * MAX_META_BYTES}}, "its _meta is over 4 KiB"),
        ({"_meta": "a"}, "its _meta is no object"),
        ({"annotations": [1]}, "its annotations are no object"),
    ],
)
def test_a_part_that_is_unfit_is_left_out_and_the_tool_offered(more: dict[str, Any], why: str) -> None:
    listing = sift(tool(**more))
    assert listing.tools[0].entry == tool()
    assert listing.problems == {"a": f"offered without a part of it: {why}"}


def test_a_list_without_end_is_bounded_and_told() -> None:
    sieve = Sieve("one")
    full = []
    for number in range(MAX_TOOLS + 2):
        sieve.add(tool(f"t{number}"))
        full.append(sieve.is_full)
    assert full == [False] * MAX_TOOLS + [True, True]
    assert len(sieve.result().tools) == MAX_TOOLS
    assert sieve.result().problems.keys() == {f"t{MAX_TOOLS}"}


def test_a_heavy_list_is_bounded_and_told() -> None:
    heavy = {"properties": {"a": {"const": "x" * (MAX_SCHEMA_BYTES - 1000)}}}
    listing = sift(*(tool(f"t{number}", inputSchema=heavy) for number in range(200)))
    assert sum(len(json.dumps(each.entry)) for each in listing.tools) <= MAX_LIST_BYTES
    assert 100 < len(listing.tools) < 200
    assert "the server lists more than" in listing.problems[f"t{len(listing.tools)}"]


def test_of_many_faults_the_first_are_told_and_the_rest_counted() -> None:
    listing = sift(*(tool(f"bad {number}") for number in range(MAX_PROBLEMS + 7)))
    assert len(listing.problems) == MAX_PROBLEMS + 1
    assert listing.problems["…"] == "7 more tools have faults"


def test_a_fingerprint_is_of_the_whole_tool_and_not_of_its_order() -> None:
    assert fingerprint({"name": "a", "x": 1}) == fingerprint({"x": 1, "name": "a"})
    assert fingerprint(tool(description="a\u200b")) != fingerprint(tool(description="a"))
    assert fingerprint({"a": "\ud800"}) != fingerprint({"a": "\ud801"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=10,
)
members = st.sampled_from(["name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta", "x"])
schemas = st.dictionaries(st.sampled_from(["type", "properties", "description", "enum"]), json_values)
tools = st.dictionaries(members, st.sampled_from(["a", "b.c", "b_c", "object"]) | schemas | json_values, max_size=8)


@given(st.lists(tools | json_values, max_size=8))
def test_whatever_a_server_lists_what_is_offered_is_sound(listed: list[Any]) -> None:
    listing = sift(*listed)
    for each in listing.tools:
        assert each.entry["name"] == each.name
        assert is_tool_name(each.name)
        assert each.entry["inputSchema"]["type"] == "object"
        msgspec.json.encode({**each.entry, "inputSchema": {}, "outputSchema": {}, "_meta": {}})
        assert json.loads(json.dumps(each.entry, allow_nan=False)) == each.entry
    offered = [mcp_name("one", each.name) for each in listing.tools]
    assert len(set(offered)) == len(offered)
    # Nothing disappears without a word.
    assert len(listing.tools) + len(listing.problems) >= len({json.dumps(each) for each in listed if each == {}})
    assert all(what.isprintable() for what in listing.problems)
