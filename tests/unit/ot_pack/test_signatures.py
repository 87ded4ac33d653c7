"""Signatures and argument lists (WIRE section 10, "Signatures")."""

from __future__ import annotations

import ast
import enum
import inspect
import math
from typing import Any

import pytest

from ot_pack.signatures import (
    MAX_DEFAULT_CHARACTERS,
    args_from_function,
    args_from_schema,
    argument,
    from_function,
    from_parameters,
    from_schema,
    summary,
)
from ot_pack.snippets import MISSING


def parameters(schema: object) -> str:
    """What stands in the brackets; that it parses is asserted as WIRE section 10 says it."""
    signature = from_schema("pack.tool", schema)
    function = parsed(signature)
    assert function.name == "pack_tool"
    assert len(function.args.args) == len(args_from_schema(schema))
    return signature.removeprefix("pack.tool(").removesuffix(")")


def parsed(signature: str) -> ast.FunctionDef:
    source = f"def {signature.replace('.', '_', 1)}: ..."
    compile(source, "<signature>", "exec")  # finds also what only the compiler refuses, such as a name twice
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return function


def of(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties}


# --- JSON Schema -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "annotation"),
    [
        ({"type": "string"}, "str"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "array", "items": {"type": "string"}}, "list"),
        ({"type": "object", "properties": {}}, "dict"),
        ({"type": "null"}, "None"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"type": ["integer", "number", "integer"]}, "int | float"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "str | None"),
        ({"oneOf": [{"type": "string"}, {"anyOf": [{"type": "null"}, {"type": "array"}]}]}, "str | None | list"),
        ({"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}, "Any | None"),
        ({"type": "string", "anyOf": [{"minLength": 1}, {"maxLength": 1}]}, "str"),
        *(({"enum": ["a"]}, "Any"), ({"const": 1}, "Any"), ({"$ref": "#/$defs/x"}, "Any"), ({"allOf": [{}]}, "Any")),
        *(({}, "Any"), (True, "Any"), (False, "Any"), (None, "Any"), ([], "Any"), ({"type": "file"}, "Any")),
        *(({"type": []}, "Any"), ({"type": {}}, "Any"), ({"type": [{}]}, "Any"), ({"anyOf": []}, "Any")),
        *(({"anyOf": {}}, "Any"), ({"oneOf": [7]}, "Any")),
    ],
)
def test_types(schema: object, annotation: str) -> None:
    assert parameters({**of(x=schema), "required": ["x"]}) == f"x: {annotation}"


def test_unions_are_followed_a_few_levels() -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(5000):
        schema = {"anyOf": [schema]}
    assert parameters({**of(x=schema), "required": ["x"]}) == "x: Any"


def test_required_parameters_come_first() -> None:
    """WIRE section 10: "required parameters first, then optional, each in schema order"."""
    schema = {**of(a={}, b={"type": "string"}, c={"default": 1}, d={}), "required": ["d", "b"]}
    assert parameters(schema) == "b: str, d: Any, a: Any = '...', c: Any = 1"
    assert args_from_schema(schema) == tuple(f"{name}: (no description)" for name in "bdac")


def test_a_required_parameter_has_no_default() -> None:
    """tool-ot-spec: "required parameters SHALL appear without defaults"."""
    assert parameters({**of(a={"type": "string", "default": "x"}), "required": ["a"]}) == "a: str"


def test_what_is_required_and_not_described_is_there() -> None:
    assert parameters({**of(b={}), "required": ["a", "a", 7]}) == "a: Any, b: Any = '...'"


@pytest.mark.parametrize(
    ("default", "written"),
    [
        *(("a'b", '"a\'b"'), ("a\nb", r"'a\nb'"), ("é\u2028", r"'é\u2028'"), ("\ud800", r"'\ud800'"), (10, "10")),
        *((1.5, "1.5"), (True, "True"), (None, "None"), ([1, "a"], "[1, 'a']"), ({"a": [None]}, "{'a': [None]}")),
        *((math.inf, "'...'"), ([math.nan], "'...'"), ("x" * MAX_DEFAULT_CHARACTERS, "'...'")),
    ],
)
def test_a_default_is_its_repr(default: object, written: str) -> None:
    assert parameters(of(a={"type": "string", "default": default})) == f"a: str = {written}"


def test_a_default_without_a_repr_is_not_written() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert parameters(of(a={"default": deep}, b={"default": 10**5000})) == "a: Any = '...', b: Any = '...'"
    assert parameters(of(a={"default": [[[[[[[[]]]]]]]]})) == "a: Any = [[[[[[[[]]]]]]]]"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        *(("per-page", "per_page"), ("$filter", "_filter"), ("a.b", "a_b"), ("2fa", "_2fa"), ("", "_"), ("a b", "a_b")),
        *(("class", "class_"), ("None", "None_"), ("__debug__", "__debug___"), ("match", "match"), ("naïve", "naïve")),
        *(("a\n", "a_"), ("日本", "日本"), ("a)", "a_"), ("\N{FULLWIDTH LATIN SMALL LETTER A}s", "ａs_"), ("a²", "a_")),
    ],
)
def test_a_property_that_is_no_identifier_is_written_with_underscores(name: str, written: str) -> None:
    """WIRE section 10: "… and kept as it is in `args`"."""
    schema = {"properties": {name: {"description": "It"}}, "required": [name]}
    assert parameters(schema) == f"{written}: Any"
    assert args_from_schema(schema) == (f"{name}: It",)


def test_no_two_parameters_have_one_name() -> None:
    schema = of(**{"a-": {}, "a.": {}, "a_": {}, "a_2": {}, "fi": {}, "\N{LATIN SMALL LIGATURE FI}": {}})
    names = [argument.arg for argument in parsed(from_schema("pack.tool", schema)).args.args]
    assert names[2:4] == ["a_", "a_2"], "what is an identifier keeps its name"
    assert len(set(names)) == 6


def test_a_schema_with_thousands_of_odd_names() -> None:
    schema = of(**{"-" * number: {} for number in range(1, 300)}, **{f"a{'-' * number}": {} for number in range(300)})
    assert parameters(schema).count(": Any") == 599
    many = of(
        **{f"{number}\0": {} for number in range(3000)}, **{"é" + chr(0x2190 + number): {} for number in range(99)}
    )
    assert parameters(many).count(": Any") == 3099


@pytest.mark.parametrize(
    ("name", "written"),
    [
        *(
            ("my-server.get-sum", "my_server.get_sum"),
            ("3d.print", "_3d.print"),
            ("a.b.c", "a.b_c"),
            ("a.2fa", "a.2fa"),
        ),
        *(("import.class", "import.class"), ("a.", "a."), (".a", ".a"), ("a.b(c\n", "a.b_c_"), ("·.x", "_·.x")),
    ],
)
def test_pack_and_tool_are_written_with_underscores(name: str, written: str) -> None:
    signature = from_schema(name, of(x={}))
    assert signature == f"{written}(x: Any = '...')"
    parsed(signature)


@pytest.mark.parametrize(
    "schema",
    [None, True, False, [], "", 7, {}, {"properties": []}, {"properties": {}, "required": {}}, {"required": "abc"}],
)
def test_a_schema_that_says_nothing_gives_no_parameters(schema: object) -> None:
    assert parameters(schema) == ""
    assert args_from_schema(schema) == ()


@pytest.mark.parametrize(
    ("description", "written"),
    [
        ("The query", "The query"),
        (" The\n  query\t.", "The query ."),
        *((absent, "(no description)") for absent in (None, "", " \n", 7, ["a"])),
    ],
)
def test_args_have_their_description_in_one_line(description: object, written: str) -> None:
    assert argument("x", description) == f"x: {written}"
    assert args_from_schema(of(x={"description": description})) == (f"x: {written}",)


# --- Functions -------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Commented(int):
    """Its repr reads as a literal and would swallow what follows."""

    def __repr__(self) -> str:
        return "1 # one"


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


def plain(text: str) -> str:
    return text


def web_search(query: str, count: int = 10) -> list[str]:
    return [query] * count


def of_all_kinds(a: int, /, b: str, *args: int, c: float, d: int = 1, **options: str) -> None: ...


def keywords_only(*, a: int, b: str | None = None) -> None: ...


async def waiting(seconds: float = 1.5) -> None: ...


def with_defaults(
    a: object = Colour.RED,
    b: object = math.inf,
    c: object = Commented(1),
    d: object = Broken(),  # its repr is what matters
    e: object = (1, b"x", {"k": {2}}),
    f: object = inspect,
    g: object = "x" * 500,
    h: object = ...,
) -> None: ...


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (plain, "demo.foo(text)"),
        (web_search, "demo.foo(query, count=10)"),
        (of_all_kinds, "demo.foo(a, /, b, *args, c, d=1, **options)"),
        (keywords_only, "demo.foo(*, a, b=None)"),
        (waiting, "demo.foo(seconds=1.5)"),
        (
            with_defaults,
            "demo.foo(a='...', b='...', c='...', d='...', e=(1, b'x', {'k': {2}}), f='...', g='...', h='...')",
        ),
    ],
)
def test_a_local_signature_has_names_and_defaults(function: Any, written: str) -> None:
    signature = from_function("demo.foo", function)
    assert signature == written
    parsed(signature)


def test_the_signature_of_a_list_of_parameters() -> None:
    written = from_parameters("project.create", [("name", MISSING), ("env", None), ("odd", math.nan)])
    assert written == "project.create(name, env=None, odd='...')"
    parsed(written)


def google(query: str, count: int = 10, *rest: str, **options: str) -> None:
    """Search the
    web.

    With care.

    Args:
        query (str): What to look for,
            in words
        count: How many
        *rest: More
        **options: Others
        gone: Is no parameter
    """


def numpy_style(x: int, y: int, z: int = 0) -> None:
    """Add.

    Parameters
    ----------
    x, y : int
        The summands
    z : int, optional
        One more
    """


def rest_style(x: int, y: int) -> None:
    """Add.

    :param x: One
    :param int y: The other
    :returns: Nothing
    """


def undocumented(x: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "first"),
    [
        (
            google,
            ("query: What to look for, in words", "count: How many", "*rest: More", "**options: Others"),
            "Search the web.",
        ),
        (numpy_style, ("x: The summands", "y: The summands", "z: One more"), "Add."),
        (rest_style, ("x: One", "y: The other"), "Add."),
        (undocumented, ("x: (no description)",), ""),
    ],
)
def test_docstrings_of_three_styles(function: Any, args: tuple[str, ...], first: str) -> None:
    assert args_from_function(function) == args
    assert summary(function) == first


def test_a_docstring_that_cannot_be_parsed_describes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import docstring_parser

    def fail(text: str) -> None:
        raise docstring_parser.ParseError

    monkeypatch.setattr(docstring_parser, "parse", fail)
    assert args_from_function(google)[0] == "query: (no description)"
    assert summary(google) == ""


def test_what_has_no_signature_raises() -> None:
    with pytest.raises((TypeError, ValueError)):
        from_function("demo.foo", type)
