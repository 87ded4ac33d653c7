"""Local packs: what a file's functions are as tools, and what is wrong with a file, in words (issue 5)."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from ot_pack.local import (
    MAX_DESCRIPTION,
    MAX_FILES,
    MAX_PARAMETERS,
    MAX_SOURCE_BYTES,
    MAX_TOOLS,
    LocalPack,
    LocalTool,
    PackError,
    load,
    load_all,
)
from ot_pack.state import Entry

HEAD = 'pack = "demo"\n__all__ = ["foo"]\n'


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str | bytes, name: str = "demo.py") -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def tool(text: str) -> LocalTool:
    """The tool `foo` of a file with this text below its head."""
    return load(written(HEAD + text)).tools["foo"]


def refusal(text: str | bytes) -> str:
    with pytest.raises(PackError) as caught:
        load(written(text))
    return str(caught.value)


def modules() -> set[str]:
    return {name for name in sys.modules if name.startswith("_local_pack_")}


# --- a function as a tool ----------------------------------------------------------------------------------------

GREET = '''
def foo(name: str, times: int = 1, *, style: Literal["plain", "loud"] = "plain", tags: list[str] = [], extra=None):
    """Greets somebody, politely.

    More of it.

    Args:
        name: Who is greeted,
            by name
        times: How often
    """
    return (name, times, style, tags, extra)
'''


def test_a_function_as_a_tool() -> None:
    greet = tool("from typing import Literal" + GREET)
    assert greet.entry == Entry(
        name="demo.foo",
        signature="demo.foo(name, times=1, *, style='plain', tags=[], extra=None)",
        description="Greets somebody, politely.",
        source="local",
        args=(
            "name: Who is greeted, by name",
            "times: How often",
            "style: (no description)",
            "tags: (no description)",
            "extra: (no description)",
        ),
    )
    assert greet.description.splitlines()[2] == "More of it."
    assert (greet.name, greet.place, greet.is_async) == ("foo", "demo.py:4", False)
    assert greet.input_schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Who is greeted, by name"},
            "times": {"type": "integer", "description": "How often", "default": 1},
            "style": {"enum": ["loud", "plain"], "default": "plain"},
            "tags": {"type": "array", "items": {"type": "string"}, "default": []},
            "extra": {"default": None},
        },
        "required": ["name"],
        "additionalProperties": False,
    }


def call(found: LocalTool, arguments: Any) -> Any:
    decoded = msgspec.json.decode(msgspec.json.encode(arguments), type=found.arguments)
    return found.function(**msgspec.structs.asdict(decoded))


def test_its_arguments_are_checked_and_passed_by_name() -> None:
    greet = tool("from typing import Literal" + GREET)
    assert call(greet, {"name": "A", "extra": {"b": [1]}}) == ("A", 1, "plain", [], {"b": [1]})
    assert call(greet, {"name": "A", "times": 2, "style": "loud", "tags": ["x"]}) == ("A", 2, "loud", ["x"], None)
    for wrong in (
        {},
        {"name": 5},
        {"name": "A", "other": 1},
        {"name": "A", "style": "soft"},
        {"name": "A", "times": 1.5},
    ):
        with pytest.raises(msgspec.ValidationError):
            call(greet, wrong)


async def test_an_async_function_is_awaited() -> None:
    wait = tool(
        "import trio\nasync def foo(seconds: float) -> str:\n    await trio.sleep(seconds)\n    return 'done'\n"
    )
    assert wait.is_async
    with trio.fail_after(5):
        assert await call(wait, {"seconds": 0}) == "done"


def test_a_default_that_changes_is_new_for_each_call() -> None:
    grow = tool("def foo(items: list[int] = [1]):\n    items.append(2)\n    return items\n")
    assert [call(grow, {}), call(grow, {})] == [[1, 2], [1, 2]]


def test_a_default_that_is_no_json_is_the_function_s_own() -> None:
    found = tool("NOTHING = object()\ndef foo(a: int = NOTHING, b: float = float('nan')):\n    return a is NOTHING\n")
    assert call(found, {}) is True
    assert found.input_schema["properties"] == {"a": {"type": "integer"}, "b": {"type": "number"}}
    assert found.entry.signature == "demo.foo(a='...', b='...')"


def test_none_as_a_default_may_be_given_too() -> None:
    assert call(tool("def foo(a: int = None):\n    return a\n"), {"a": None}) is None


POINT = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated
from msgspec import Meta

pack = "demo"
__all__ = ["foo"]

@dataclass
class Point:
    x: int

def foo(count: Annotated[int, Meta(ge=1)], where: Point) -> int:
    '''Counts.

    :param count: how many
    '''
    return count + where.x
"""


def test_annotations_may_hold_bounds_and_types_of_the_file() -> None:
    found = load(written(POINT)).tools["foo"]
    assert found.input_schema["properties"]["count"] == {"type": "integer", "minimum": 1, "description": "how many"}
    assert found.input_schema["properties"]["where"] == {"$ref": "#/$defs/Point"}
    assert found.input_schema["$defs"]["Point"]["required"] == ["x"]
    assert call(found, {"count": 1, "where": {"x": 2}}) == 3
    with pytest.raises(msgspec.ValidationError):
        call(found, {"count": 0, "where": {"x": 2}})


def test_a_type_called_as_the_function_is_told_apart() -> None:
    found = tool(
        "import msgspec\nclass foo(msgspec.Struct):\n    x: int\nK = foo\ndef foo(a: K) -> int:\n    return a.x\n"
    )
    assert call(found, {"a": {"x": 1}}) == 1
    assert found.input_schema["required"] == ["a"]


def test_a_function_from_elsewhere_may_be_a_tool() -> None:
    found = tool("from textwrap import dedent as foo\n")
    assert (found.place, found.entry.signature) == ("demo.py:3", "demo.foo(text)")


# --- the example -------------------------------------------------------------------------------------------------


async def test_the_example_works(autojump_clock: trio.testing.MockClock) -> None:
    example = load(Path(__file__).parents[3] / "examples" / "packs" / "demo.py")
    assert list(example.tools) == ["diff", "wait"]
    assert all(" (no description)" not in arg for found in example.tools.values() for arg in found.entry.args)
    assert "+new" in call(example.tools["diff"], {"before": "old", "after": "new"})
    assert await call(example.tools["wait"], {"seconds": 2, "reminder": "go on"}) == {
        "waited_seconds": 2,
        "reminder": "go on",
    }


# --- what is wrong with a file -----------------------------------------------------------------------------------

NAMED = "cannot be given by name, as a tool's parameters are"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = (\n", "demo.py:2: is not Python: '(' was never closed"),
        (b"x = '\xff'\n", None),
        ("x = '\0'\n", None),
        ("(" * 5000, None),
        ("x = " + "-" * 100_000 + "1\n", None),
        ("", 'demo.py:1: names no pack: write pack = "demo"'),
        ("x = 1\npack = 5\n__all__ = []\n", None),
        ("pack = 'a b'\n", "demo.py:1: pack must be a name of 1 to 32 letters, digits, '_' and '-', not 'a b'"),
        (f"pack = '{'a' * 33}'\n", None),
        ("pack = 'é'\n", None),
        ("pack = 'demo'\n", "demo.py:1: has no __all__: it names the functions that are tools"),
        ("pack = 'demo'\n__all__ = 'foo'\n", "demo.py:2: __all__ must be a list of names"),
        ("pack = 'demo'\n__all__ = [5]\n", "demo.py:2: __all__ must be a list of names"),
        (HEAD, "demo.py:2: __all__ names 'foo', which is not there"),
        (HEAD + "foo = 5\n", "demo.py:3: foo is no function"),
        (HEAD + "class foo: ...\n", "demo.py:3: foo is no function"),
        (HEAD + "from functools import partial\nfoo = partial(print)\n", "demo.py:4: foo is no function"),
        (HEAD + "def foo(): yield 1\n", "demo.py:3: foo is a generator: a tool returns its result"),
        (HEAD + "async def foo(): yield 1\n", "demo.py:3: foo is a generator: a tool returns its result"),
        ("pack = 'demo'\n__all__ = ['foo', 'foo']\ndef foo(): ...\n", "demo.py:2: __all__ names foo twice"),
        ("pack = 'demo'\n__all__ = ['é']\ndef é(): ...\n", None),
        (f"pack = 'demo'\n__all__ = ['{'f' * 60}']\ndef {'f' * 60}(): ...\n", None),
        (f"pack = 'demo'\n__all__ = [f'f{{n}}' for n in range({MAX_TOOLS + 1})]\n", None),
        (HEAD + "def foo(*args): ...\n", f"demo.py:3: foo: *args {NAMED}"),
        (HEAD + "def foo(**more): ...\n", f"demo.py:3: foo: **more {NAMED}"),
        (HEAD + "def foo(a, /): ...\n", f"demo.py:3: foo: a {NAMED}"),
        (HEAD + "def foo(__a): ...\n", "demo.py:3: foo: __a begins with __, which Python keeps for itself"),
        (
            HEAD + "def foo(a: 'Gone'): ...\n",
            "demo.py:3: foo: an annotation cannot be read: name 'Gone' is not defined",
        ),
        (HEAD + "def foo(a: '1 +'): ...\n", None),
        (HEAD + "class C: ...\ndef foo(a: C): ...\n", None),
        (HEAD + "def foo(a: 5 = None): ...\n", None),
        (HEAD + "def foo(a: int | list | tuple): ...\n", None),
        (f"{HEAD}def foo({', '.join(f'a{n}' for n in range(MAX_PARAMETERS + 1))}): ...\n", None),
        (f"{HEAD}def foo():\n    '''{'x' * (MAX_DESCRIPTION + 1)}'''\n", None),
        (f"{HEAD}from typing import Literal\ndef foo(a: Literal['{'x' * 70_000}']): ...\n", None),
        (
            "import nothing_of_this_name\n",
            "demo.py:1: raises ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        ("def f():\n    1 / 0\n\nf()\n", "demo.py:2: raises ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')\n", None),
        ("import sys\nsys.exit('enough')\n", "demo.py:2: raises SystemExit: enough"),
        ("raise SystemExit\n", "demo.py:1: raises SystemExit: no message"),
        ("raise BaseException('a\\nb')\n", "demo.py:1: raises BaseException: a b"),
        ("def f(): f()\nf()\n", None),
        ("class E(Exception):\n    def __str__(self): raise OSError\nraise E\n", None),
    ],
)
def test_a_broken_file_is_told_in_words_with_file_and_line(text: str | bytes, message: str | None) -> None:
    before = modules()
    said = refusal(text)
    assert said.startswith("demo.py:")
    assert "\n" not in said
    assert message is None or said == message
    assert modules() == before


def test_a_file_that_is_not_there_or_too_large_is_told() -> None:
    assert refusal(b"#" * (MAX_SOURCE_BYTES + 1)) == f"demo.py: is larger than {MAX_SOURCE_BYTES} bytes"
    Path("demo.py").unlink()
    with pytest.raises(PackError, match=r"^demo\.py: cannot be read: No such file or directory$"):
        load(Path("demo.py"))
    os.mkfifo("demo.py")  # nobody writes to it, and nobody waits for them
    with pytest.raises(PackError, match=r"^demo\.py:1: names no pack"):
        load(Path("demo.py"))


def test_what_a_file_prints_is_no_output_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    load(written("print('hello')\n" + HEAD + "def foo(): ...\n"))
    assert tuple(capsys.readouterr()) == ("", "hello\n")


def test_the_operator_can_interrupt_a_load() -> None:
    with pytest.raises(KeyboardInterrupt):
        load(written("raise KeyboardInterrupt"))
    assert modules() == set()


# --- loading again -----------------------------------------------------------------------------------------------


def test_a_reload_sees_an_edit_however_soon_it_follows() -> None:
    path = written(HEAD + "def foo(): return 1\n")
    first = load(path)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    written(HEAD + "def foo(): return 2\n")
    os.utime(path, ns=times)  # as an edit within the file system's granularity, of the same size
    second = load(path)
    assert (first.tools["foo"].function(), second.tools["foo"].function()) == (1, 2)
    assert list(Path().glob("**/*.pyc")) == []


def test_a_module_lives_as_long_as_its_pack() -> None:
    before = modules()
    pack: LocalPack | None = load(written(HEAD + "def foo(): return __name__\n"))
    assert pack is not None
    assert pack.tools["foo"].function() in modules() - before
    pack = None
    gc.collect()
    assert modules() == before


# --- all of them -------------------------------------------------------------------------------------------------


def source(pack: str) -> str:
    return f'pack = "{pack}"\n__all__ = ["foo"]\ndef foo(): ...\n'


def test_a_broken_file_does_not_stop_the_rest() -> None:
    written(source("a"), "packs/a.py")
    written("(", "packs/b.py")
    written(source("c"), "c.py")
    packs, problems = load_all(["packs/*.py", "gone.py", "nothing/*.py", "c.py", "packs/a.py"], Path())
    assert list(packs) == ["a", "c"]
    assert problems == {
        "packs/b.py": "packs/b.py:1: is not Python: '(' was never closed",
        "gone.py": "gone.py: cannot be read: No such file or directory",
    }


def test_of_two_files_with_one_pack_neither_is_taken() -> None:
    for name in ("a.py", "b.py"):
        written("\n" + source("same"), name)
    packs, problems = load_all(["*.py"], Path())
    assert packs == {}
    assert problems == {
        "a.py": "a.py:2: several files have the pack same: a.py:2, b.py:2",
        "b.py": "b.py:2: several files have the pack same: a.py:2, b.py:2",
    }


def test_a_file_that_several_patterns_name_is_loaded_once() -> None:
    written(source("a"), "packs/a.py")
    Path("link.py").symlink_to("packs/a.py")
    packs, problems = load_all(["packs/a.py", "packs/*.py", "./packs/../packs/a.py", "link.py"], Path())
    assert (list(packs), problems) == (["a"], {})


def test_more_files_than_anybody_needs_are_left_out() -> None:
    for number in range(MAX_FILES + 1):
        written(source(f"p{number}"), f"p{number:03}.py")
    packs, problems = load_all(["*.py"], Path())
    assert len(packs) == MAX_FILES
    assert problems == {"*.py": f"*.py: more than {MAX_FILES} files of local packs: the rest is left out"}
