"""What holds for every input of the `ot` pack (WIRE section 10; HAZARDS T35).

The reference for YAML is PyYAML, its own parser and libyaml's; that for signatures is Python's compiler.
"""

from __future__ import annotations

import ast
import keyword
import re
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ot_pack import flow as module
from ot_pack.flow import MAX_FLOW_LEVELS, Below, Literal, block, document, flow, items, writable
from ot_pack.nearest import MAX_NAME_CHARACTERS, MAX_SHOWN, nearest, not_found
from ot_pack.signatures import args_from_schema, from_schema
from ot_pack.snippets import Param, Snippet
from ot_pack.state import Entry
from ot_pack.topics import Topic, publish
from tests.unit.ot_pack.harness import shown, state

few: Final = settings(deadline=None, database=None, max_examples=100)
many: Final = settings(few, max_examples=200)

# --- Strings that YAML reads as something else, or not at all --------------------------------------------------------

MARKS: Final = " \t\n\r:#-?{}[],&*!|>'\"%@`~=<.+_\\/019xeEoby"
ODD: Final = "\0\x07\x1b\x7f\x85\xa0\u2028\u2029\ud800\udfff\ufeff\ufffe\uffff\U0001f600é漢"
WORDS: Final = (
    *("yes", "No", "ON", "y", "null", "~", "=", "<<", "1e3", "-1e3", "0x1f", "+0x1f", "12:30:45", "-12:30"),
    *("2001-01-01", ".5", "-.5", ".inf", "-.INF", ".nan", ".", "..", "...", "---", "--- a", "- a", "-a", "? a", ": a"),
    *("a: b", "a #b", " a", "a ", "a:", "}, source: local", "!!python/object:os.system", "*a", "&a b", "k" * 1100),
)
TEXT: Final = st.one_of(
    st.text(max_size=20),
    st.text(st.sampled_from(MARKS + ODD), max_size=12),
    st.lists(st.sampled_from([*WORDS, "\n", " ", "a"]), max_size=3).map("".join),
    st.from_regex(module._NOT_A_STRING, fullmatch=True),
)
SCALARS: Final = st.one_of(TEXT, TEXT.map(Literal), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())


def trees(leaves: st.SearchStrategy[Any], most: int = 12) -> st.SearchStrategy[Any]:
    def within(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        mappings = st.dictionaries(TEXT, children, max_size=4)
        return st.lists(children, max_size=4) | mappings | mappings.map(Below)

    return st.recursive(leaves, within, max_leaves=most)


def writable_data(value: Any) -> Any:
    """The same data without lone surrogates, and of the types that a parser makes."""
    if isinstance(value, str):
        return writable(str(value))
    if isinstance(value, dict):
        return {writable_data(name): writable_data(child) for name, child in value.items()}
    return [writable_data(child) for child in value] if isinstance(value, list) else value


def assert_reads_back(text: str, value: Any) -> None:
    """By repr: 1 is True to `==`, and -0.0 is 0.0."""
    text.encode()
    expected = writable_data(value)
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        assert repr(yaml.load(text, loader)) == repr(expected)


@many
@given(st.dictionaries(TEXT, trees(SCALARS), max_size=4))
def test_a_mapping_reads_back(mapping: dict[str, Any]) -> None:
    assert_reads_back(block(mapping) + "\n", mapping)
    assert_reads_back(document(mapping) + "\n", mapping)
    below = {"a": [{"b": {"c": [mapping, 1]}}], "d": 1}
    assert_reads_back(block(below), below)


@many
@given(st.lists(trees(SCALARS), max_size=4))
def test_a_list_reads_back(values: list[Any]) -> None:
    assert_reads_back(items(values) + "\n", values)


@many
@given(trees(SCALARS))
def test_flow_style_is_one_line_that_reads_back_or_a_refusal(value: Any) -> None:
    try:
        text = flow(value)
    except ValueError:
        assert levels(value) > MAX_FLOW_LEVELS
    else:
        assert levels(value) <= MAX_FLOW_LEVELS
        assert text.splitlines() == [text]
        assert_reads_back(text, value)


def levels(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(levels, value.values() if isinstance(value, dict) else value), default=0)
    return 0


@many
@given(TEXT, TEXT)
def test_literals_read_back(one: str, other: str) -> None:
    value = {"one": Literal(one), "below": {"each": [{"other": Literal(other), "more": [[1]]}]}, "last": Literal(one)}
    assert_reads_back(block(value) + "\n", value)


# --- What the functions show -----------------------------------------------------------------------------------------

ENTRIES: Final = st.builds(
    Entry, name=TEXT, signature=TEXT, description=TEXT, source=TEXT, args=st.lists(TEXT, max_size=3).map(tuple)
)


@many
@given(st.lists(ENTRIES, max_size=4))
def test_tools_read_back(entries: list[Entry]) -> None:
    full = state(entries=tuple(entries))
    fields = ("name", "signature", "description", "source")
    assert_reads_back(shown("tools", full), [{name: getattr(entry, name) for name in fields} for entry in entries])
    for entry in full.by_name.values():
        one = yaml.safe_load(shown("tools", full, name=entry.name))
        assert one == writable_data({**entry._asdict(), "args": list(entry.args)})


@few
@given(TEXT, TEXT, TEXT, TEXT)
def test_packs_and_health_read_back(pack: str, text: str, name: str, cwd: str) -> None:
    full = state(cwd=cwd, servers={name: text}, problems={name: text}, packs={pack: "proxy"}, instructions={pack: text})
    read = yaml.safe_load(shown("packs", full, name=pack))
    assert read == writable_data({"name": pack, "source": "proxy", "instructions": text, "tools": []})
    health = yaml.safe_load(shown("health", full))
    assert health["cwd"] == writable(cwd)
    assert health["registry"]["problems"] == health["proxy"]["servers"] == writable_data({name: text})


PARAMS: Final = st.builds(Param, description=TEXT, default=trees(SCALARS, 5), example=TEXT)


@few
@given(TEXT, TEXT, st.dictionaries(TEXT, PARAMS, max_size=3))
def test_the_definition_of_a_snippet_reads_back(name: str, body: str, params: dict[str, Param]) -> None:
    snippet = Snippet(name=name, description=name, params=params, body=body)
    with patch("ot_pack.views._expansion", return_value=""):  # what follows the definition is no YAML
        text = shown("snippets", state(snippets={name: snippet}), name=name)
    definition = text[: text.rindex("\n# Example with defaults:\n") + 1]
    read = yaml.safe_load(definition)
    assert (read["name"], read["description"], read["body"]) == tuple(map(writable, (name, name, body)))
    assert [each["default"] for each in read["params"].values()] == list(
        writable_data({key: param.default for key, param in params.items()}).values()
    )


@settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_messages_read_back(tmp_path: Path, messages: list[str]) -> None:
    file = tmp_path / "all.yaml"
    file.unlink(missing_ok=True)
    for message in messages:
        assert publish([Topic(pattern="*", file="all.yaml")], tmp_path, "a", message, "1").startswith("OK")
    documents = list(yaml.safe_load_all(file.read_bytes()))
    assert [document["message"] for document in documents] == [writable(message) for message in messages]


# --- Signatures ------------------------------------------------------------------------------------------------------

NAMES: Final = st.one_of(
    st.text(max_size=6),
    st.sampled_from([*keyword.kwlist, *keyword.softkwlist, "__debug__", "a-b", "a_b", "a b", "a_b_2", "", "1", "²"]),
    st.sampled_from(
        ["fi", "\N{LATIN SMALL LIGATURE FI}", "\N{FULLWIDTH LATIN SMALL LETTER A}s", "·", "$ref", "_", "__"]
    ),
)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=6,
)
TYPES: Final = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null", "file"])
PROPERTIES: Final = st.recursive(
    st.one_of(
        JSON,
        st.fixed_dictionaries(
            {},
            optional={
                "type": TYPES | st.lists(TYPES, max_size=3) | JSON,
                "default": JSON,
                "description": st.text(max_size=9) | JSON,
                **dict.fromkeys(("enum", "const", "$ref"), JSON),
            },
        ),
    ),
    lambda children: st.fixed_dictionaries(
        {},
        optional={
            "anyOf": st.lists(children, max_size=3) | JSON,
            "oneOf": st.lists(children, max_size=3),
            "type": TYPES,
        },
    ),
    max_leaves=4,
)
SCHEMAS: Final = JSON | st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("object"),
        "properties": st.dictionaries(NAMES, PROPERTIES, max_size=8) | JSON,
        "required": st.lists(NAMES, max_size=6) | JSON,
    },
)


@many
@given(NAMES, NAMES, SCHEMAS)
def test_a_signature_parses_whatever_the_schema(pack: str, tool: str, schema: Any) -> None:
    """WIRE section 10: "`def` + the signature with its first `.` made `_` + `: ...` parses as Python"."""
    signature = from_schema(f"{pack.replace('.', '')}.{tool}", schema)
    source = f"def {signature.replace('.', '_', 1)}: ..."
    assert source.isprintable()
    compile(source, "<signature>", "exec")
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    arguments = args_from_schema(schema)
    assert len(function.args.args) == len(arguments)
    assert all(": " in argument and "\n" not in argument.partition(": ")[2] for argument in arguments)


@few
@given(st.lists(NAMES, unique=True))
def test_identifiers_are_kept_and_all_parameters_are_different(names: list[str]) -> None:
    signature = from_schema("a.b", {"properties": dict.fromkeys(names, True)})
    (function,) = ast.parse(f"def {signature.replace('.', '_', 1)}: ...").body
    assert isinstance(function, ast.FunctionDef)
    written = [argument.arg for argument in function.args.args]
    assert len(set(written)) == len(names)
    plain = [name for name in names if re.fullmatch("[a-z]+", name) and not keyword.iskeyword(name)]
    assert set(plain) <= set(written)


# --- Not found -------------------------------------------------------------------------------------------------------


@few
@given(TEXT, st.lists(TEXT, unique=True, max_size=60))
def test_at_most_twenty_of_the_names_are_shown_and_the_same_one_first(name: str, names: list[str]) -> None:
    shown_names = nearest(name, names)
    assert len(shown_names) == min(MAX_SHOWN, len(names))
    assert set(shown_names) <= set(names)
    if name in names:
        assert shown_names[0][:MAX_NAME_CHARACTERS].casefold() == name[:MAX_NAME_CHARACTERS].casefold()
    assert not_found("tool", name, names).splitlines()[1:] == []
