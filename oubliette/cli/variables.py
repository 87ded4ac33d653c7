"""The `env` of a project or a workspace, as the command line takes it.

A value never stands on a command line: whatever does can be read by every user of the machine (`ps`), and stays in the
shell's history.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

import click


def env_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--env NAME` and `--env-file FILE`; the command gets them as `names` and `env_file`, for `collect`."""
    named = click.option(
        "--env",
        "names",
        multiple=True,
        metavar="NAME",
        help="A variable of its agents, with the value that it has in your own environment; may be repeated. Values "
        "are not taken from the command line, where other users of this machine could read them",
    )
    filed = click.option(
        "--env-file",
        type=click.File(),
        metavar="FILE",
        help="Variables of its agents, NAME=VALUE a line, - for stdin; a value is taken as it stands, quotes included",
    )
    return named(filed(command))


def collect(names: Iterable[str], env_file: TextIO | None) -> dict[str, str]:
    """Returns the variables; `--env` goes over the file. Raises `click.UsageError` that never shows a value."""
    return {**dict(_read(env_file) if env_file else ()), **{name: _value_of(name) for name in names}}


def _value_of(name: str) -> str:
    if "=" in name:
        raise click.UsageError(
            f"--env takes a name alone: others could read the value of {name.partition('=')[0]!r} in the list of "
            "processes; put it into your environment, or use --env-file"
        )
    if name not in os.environ:
        raise click.UsageError(f"--env {name}: your environment has no such variable")
    return os.environ[name]


def _read(file: TextIO) -> Iterator[tuple[str, str]]:
    try:
        for number, line in enumerate(file, start=1):
            text = line.rstrip("\r\n")
            name, separator, value = text.partition("=")
            if text.strip() and not text.lstrip().startswith("#"):
                if not separator:
                    raise click.UsageError(f"line {number} of {file.name} is not NAME=VALUE")
                yield name.strip(), value
    except UnicodeDecodeError:
        raise click.UsageError(f"{file.name} is not UTF-8") from None
