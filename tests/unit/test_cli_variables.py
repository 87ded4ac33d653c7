"""`env` values on the command line: never in an argument, never in an error."""

from __future__ import annotations

import io

import click
import pytest

from oubliette.cli.variables import collect

CANARY = "s3cr3t-canary"


def file(text: str) -> io.StringIO:
    opened = io.StringIO(text)
    opened.name = "vars.env"
    return opened


def refusal(names: list[str], text: str | None = None) -> str:
    with pytest.raises(click.UsageError) as refused:
        collect(names, None if text is None else file(text))
    assert CANARY not in refused.value.message
    return refused.value.message


def test_a_name_takes_its_value_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", CANARY)
    monkeypatch.setenv("EMPTY", "")
    assert collect(["KEY", "EMPTY"], None) == {"KEY": CANARY, "EMPTY": ""}
    monkeypatch.delenv("KEY")
    assert "KEY" in refusal(["KEY"])


def test_a_value_in_an_argument_is_refused_with_the_reason() -> None:
    said = refusal([f"KEY={CANARY}"])
    assert "'KEY'" in said
    assert "list of processes" in said
    assert "--env-file" in said


def test_a_file_is_taken_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B", "environment")
    text = '# a comment\n\nA="quoted # value"\n B =x=y\r\nC=\nD= ünï \n'
    assert collect([], file(text)) == {"A": '"quoted # value"', "B": "x=y", "C": "", "D": " ünï "}
    assert collect(["B"], file(text))["B"] == "environment"


def test_a_line_that_is_none_is_named_by_its_number() -> None:
    assert refusal([], f"A=x\n{CANARY}\n") == "line 2 of vars.env is not NAME=VALUE"
