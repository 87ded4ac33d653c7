"""The `ot` functions as commands: for `python -m ot_pack` and for `oubliette ot`, which asks a running daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import click

Run: TypeAlias = Callable[[str, dict[str, Any]], str]
"""Takes a function's name and its arguments, those that were given, and returns its text."""
Decorator: TypeAlias = Callable[[click.Command], click.Command]
"""Adds an option to a command, as what `click.option` returns."""


class Command(NamedTuple):
    """A function at the terminal: its options, its flags, and what must be given, by name with their help."""

    name: str
    help: str
    options: Mapping[str, str] = MappingProxyType({})
    flags: Mapping[str, str] = MappingProxyType({})
    arguments: Sequence[str] = ()


_PATTERN: Final = "Only those with this in their name, in whatever case"
COMMANDS: Final = (
    Command(
        "tools",
        "List the tools, or show one.",
        {"pattern": _PATTERN, "name": "This one tool, pack.tool", "pack": "Only those of this pack"},
        {"compact": "Names and descriptions alone"},
    ),
    Command("packs", "List the packs, or show one.", {"pattern": _PATTERN, "name": "This one pack"}),
    Command(
        "aliases", "List the aliases, or show one.", {"pattern": f"{_PATTERN} or target", "name": "This one alias"}
    ),
    Command(
        "snippets",
        "List the snippets, or show one.",
        {"pattern": f"{_PATTERN} or description", "name": "This one snippet"},
    ),
    Command("config", "Show aliases, snippets and servers."),
    Command("health", "Show whether packs are loaded and servers connected."),
    Command("notify", "Note a message in the file of its topic.", arguments=("topic", "message")),
    Command("reload", "Read the configuration again, and say what is wrong with it."),
)


def commands(run: Run, *decorators: Decorator) -> list[click.Command]:
    """Returns a command for each function; it prints what `run` returns and exits with 1 where that is an error.

    `decorators` add options to each, such as `click.option`; `run` gets their values beside the arguments.
    """
    return [_command(command, run, decorators) for command in COMMANDS]


def _command(command: Command, run: Run, decorators: Sequence[Decorator]) -> click.Command:
    def call(**given: Any) -> None:
        text = run(command.name, {name: value for name, value in given.items() if value not in (None, False)})
        failed = text.startswith("Error:")
        click.echo(text, err=failed)
        if failed:
            raise click.exceptions.Exit(1)

    parameters: list[click.Parameter] = [
        *(click.Option([f"--{name}"], help=help) for name, help in command.options.items()),
        *(click.Option([f"--{name}"], help=help, is_flag=True) for name, help in command.flags.items()),
        *(click.Argument([name]) for name in command.arguments),
    ]
    made = click.Command(command.name, params=parameters, callback=call, help=command.help)
    for decorate in decorators:
        decorate(made)
    return made
