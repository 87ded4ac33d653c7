"""JSON as source text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oubliette_client import source

TEXT = st.text(max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(values=st.lists(JSON, max_size=5), indent=st.none() | st.integers(0, 2))
def test_items_are_the_texts_of_the_values(values: list[Any], indent: int | None) -> None:
    found = source.items(json.dumps(values, indent=indent))
    assert [json.loads(item) for item in found] == values


def test_items_keep_their_spelling() -> None:
    assert source.items(' [ 1.10 ,"\\u0061", { "a" : 1e400 } ] ') == ["1.10", '"\\u0061"', '{ "a" : 1e400 }']


@pytest.mark.parametrize("value", ["{}", '"x"', "5", "null"])
def test_only_an_array_has_items(value: str) -> None:
    with pytest.raises(ValueError, match="not an array"):
        source.items(value)


@pytest.mark.parametrize(
    ("value", "text"), [('"a\\u0062"', "ab"), ('""', ""), ("5", None), ("null", None), (None, None)]
)
def test_a_string_is_its_text(value: str | None, text: str | None) -> None:
    assert source.string(value) == text


@pytest.mark.parametrize(
    ("value", "number"),
    [("5", 5), ("-1.5e1", -15), ("1e400", None), ("9" * 5000, None), ('"5"', None), ("true", None), (None, None)],
)
def test_a_number_is_a_finite_one(value: str | None, number: float | None) -> None:
    assert source.number(value) == number


@pytest.mark.parametrize("value", [None, "[]", "5", '{"a":1,"a":2}', "null"])
def test_what_is_no_sound_object_has_no_fields(value: str | None) -> None:
    assert source.fields(value) == {}


def test_a_null_field_is_absent() -> None:
    assert source.fields('{"a":null,"b":0}') == {"b": "0"}


@settings(deadline=None)
@given(found=st.dictionaries(TEXT, JSON, max_size=5))
def test_join_makes_the_object_of_its_members(found: dict[str, Any]) -> None:
    joined = source.join({key: json.dumps(value) for key, value in found.items()})
    assert json.loads(joined) == found
