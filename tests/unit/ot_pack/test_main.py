"""`python -m ot_pack` (WIRE section 8)."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import ot_pack
from ot_pack import standalone
from ot_pack.__main__ import main
from ot_pack.commands import COMMANDS, commands

CONFIG = """
packs: [demo.py]
aliases: {f: demo.foo}
snippets: {s: {description: A snippet, body: text}}
topics: [{pattern: "n*", file: notes.yaml}]
"""


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUBLIETTE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("OUBLIETTE_CONFIG", raising=False)
    Path("demo.py").write_text('pack = "demo"\n__all__ = ["foo"]\ndef foo(text):\n    """Foo a text."""\n')
    Path("other.yaml").write_text(CONFIG)
    Path("oubliette.yaml").write_text(CONFIG.replace("f:", "here:"))
    yield
    standalone.use(None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tools", "--name", "demo.foo"], "name: demo.foo\nsignature: demo.foo(text)\ndescription: Foo a text.\n"),
        (["tools", "--pattern", "FOO", "--compact"], '- {name: demo.foo, description: "Foo a text."}\n'),
        (["tools", "--pack", "demo"], "- {name: demo.foo, signature: "),
        (["packs"], "- {name: ot, source: local, tool_count: 8}\n- {name: demo, source: local, tool_count: 1}\n"),
        (["packs", "--name", "demo"], "name: demo\nsource: local\n"),
        (["packs", "--pattern", "dem"], "- {name: demo, source: local, tool_count: 1}\n"),
        (["aliases"], "{here: demo.foo}\n"),
        (["aliases", "--name", "here"], "here -> demo.foo\n"),
        (["--config", "other.yaml", "aliases", "--pattern", "demo"], "{f: demo.foo}\n"),
        (["snippets"], '- {name: s, description: "A snippet"}\n'),
        (["snippets", "--name", "s"], "name: s\n"),
        (["snippets", "--pattern", "zzz"], "[]\n"),
        (["config"], "aliases: {here: demo.foo}\n"),
        (["health"], "version: "),
        (["notify", "notes", "Hello"], "OK: notes -> notes.yaml\n"),
        (["notify", "other", "Hello"], "SKIP: no matching topic\n"),
        (["reload"], "OK: Configuration reloaded\n"),
    ],
)
def test_each_command_prints_what_its_function_returns(arguments: list[str], expected: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tools", "--name", "demo.fo"], "Error: tool 'demo.fo' not found. Available: demo.foo"),
        (["packs", "--name", "demos"], "Error: pack 'demos' not found. Available: demo"),
        (["--config", "gone.yaml", "config"], "Error: gone.yaml: cannot be read: No such file or directory"),
        (["--config", "demo.py", "reload"], "Error: demo.py:"),
    ],
)
def test_an_error_is_said_on_stderr_with_exit_code_1(arguments: list[str], expected: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(expected)


@pytest.mark.parametrize("arguments", [["tool"], ["tools", "--names", "x"], ["notify", "x"], ["config", "x"]])
def test_a_wrong_command_is_explained(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert "Usage: " in done.stderr


def test_there_is_a_command_for_each_function_with_its_arguments() -> None:
    assert sorted(command.name for command in COMMANDS) == sorted(ot_pack.__all__)
    for command in COMMANDS:
        parameters = inspect.signature(getattr(ot_pack, command.name)).parameters
        assert {*command.options, *command.flags, *command.arguments} == set(parameters)


def test_only_what_was_given_is_passed_on() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def answer(function: str, arguments: dict[str, Any]) -> str:
        asked.append((function, arguments))
        return "Error: no" if function == "reload" else "yes"

    group = click.Group("ot", {command.name: command for command in commands(answer) if command.name})
    lines = ["tools", "tools --compact --pack a", "notify t m", "reload"]
    codes = [CliRunner().invoke(group, line.split()).exit_code for line in lines]
    assert codes == [0, 0, 0, 1]
    assert asked == [
        ("tools", {}),
        ("tools", {"pack": "a", "compact": True}),
        ("notify", {"topic": "t", "message": "m"}),
        ("reload", {}),
    ]


def test_as_a_process_it_needs_nothing_of_oubliette() -> None:
    script = (
        "import sys, runpy\n"
        "sys.argv = ['ot_pack', 'packs']\n"
        "try: runpy.run_module('ot_pack', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('oubliette', 'trio', 'mcp')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"
