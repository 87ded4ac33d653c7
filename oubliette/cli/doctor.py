"""`oubliette doctor`: what is missing on this machine, with the mend (WIRE section 8)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import trio

from ot_pack.document import ConfigError
from oubliette import bundle, config, log
from oubliette.cli.places import default_data_dir
from oubliette.cli.show import visible
from oubliette.config import Config
from oubliette.errors import OublietteError
from oubliette.runtimes.base import Kind, Settings
from oubliette.runtimes.bubblewrap import BubblewrapRuntime
from oubliette.runtimes.choose import STRENGTH, examine_all
from oubliette.runtimes.configured import BUNDLES, commands, settings_of
from oubliette.runtimes.container import ContainerRuntime
from oubliette.runtimes.mends import NO_GROUP, Lack, of_runc
from oubliette.runtimes.trial import Examined

_PACKAGES: Final = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "codex": "npm install -g @openai/codex",
    "opencode": "npm install -g opencode-ai",
}
_CANNOT_RUN: Final = 1


@click.command("doctor")
@click.option("--config", "config_path", type=click.Path(path_type=Path, dir_okay=False), help="Configuration file")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where records and workspaces lie")
def doctor_command(config_path: Path | None, data_dir: Path | None) -> None:
    """Say what is missing on this machine, and how to mend it.

    The exit code is 0 where agents can be run as the configuration says.
    """
    try:
        settings = config.load(config_path, environ=os.environ, overrides={})
        log.setup("error", settings.log.format)
        with _bundle(data_dir or default_data_dir()) as (folder, made):
            found, notes = trio.run(_look, settings_of(settings, folder, made))
    except (ConfigError, OublietteError) as error:
        raise click.ClickException(str(error)) from None
    for line in report(settings, found, notes):
        click.echo(visible(line))
    if not _works(settings, found):
        raise SystemExit(_CANNOT_RUN)


async def _look(settings: Settings) -> tuple[list[Examined], dict[Kind, Lack]]:
    """Returns what is known of each kind of runtime, and what is to be said of some that work."""
    found = await examine_all(STRENGTH, settings)
    notes: dict[Kind, Lack] = {}
    for one in found:
        note = of_runc(await one.runtime.maker()) if isinstance(one.runtime, ContainerRuntime) else None
        if isinstance(one.runtime, BubblewrapRuntime) and one.runtime.groups.missing:
            note = NO_GROUP
        if note is not None:
            notes[one.kind] = note
    return found, notes


@contextmanager
def _bundle(data_dir: Path) -> Iterator[tuple[Path, Path]]:
    """The data directory and the daemon's bundle in it; where there is no daemon yet, of neither more than a shadow."""
    if data_dir.is_dir():
        yield data_dir, bundle.ensure(data_dir / BUNDLES)
        return
    with tempfile.TemporaryDirectory(prefix="oubliette-") as folder:
        yield Path(folder), bundle.ensure(Path(folder, BUNDLES))


def report(settings: Config, found: list[Examined], notes: Mapping[Kind, Lack]) -> Iterator[str]:
    """Yields the lines of what was found."""
    yield f"configuration: {settings.source or 'the defaults'}"
    yield f"runtime.kind: {settings.runtime.kind}{_taken(settings, found)}"
    for one in found:
        yield from _of_runtime(one, notes.get(one.kind))
    yield from _of_network(settings)
    yield from _of_agents(settings, found)


def _of_runtime(one: Examined, note: Lack | None) -> Iterator[str]:
    if one.lacks is not None:
        yield f"  {one.kind}: does not work: {one.lacks.why}"
        if one.lacks.mend:
            yield f"    mend: {one.lacks.mend}"
    if one.runtime is not None:
        yield f"  {one.kind}: works"
        for warning in one.runtime.warnings:
            yield f"    but {warning}"
        if note is not None:
            yield f"    but {note.why}"
            yield f"    mend: {note.mend}"


def _of_network(settings: Config) -> Iterator[str]:
    runtime = settings.runtime
    yield f"runtime.network: {runtime.network}"
    if runtime.network == "model" and not runtime.model_hosts:
        yield "  runtime.model_hosts is empty: agents reach no model"
        yield "    mend: name the model's HOST:PORT there, such as api.anthropic.com:443"


def _of_agents(settings: Config, found: list[Examined]) -> Iterator[str]:
    used = _used(settings, found)
    yield f"agents (agents.default: {settings.agents.default})"
    for name, command in commands(settings).items():
        yield from _of_agent(name, command[0] if command else "", used)


def _of_agent(name: str, program: str, used: Examined | None) -> Iterator[str]:
    if used is not None and used.kind in ("podman", "docker"):
        yield f"  {name}: {program} is looked for in the image"
    elif shutil.which(program) is None:
        yield f"  {name}: {program} is not on PATH"
        if program in _PACKAGES:
            yield f"    mend: {_PACKAGES[program]}"
    elif complaint := _unseen(program, used):
        yield f"  {name}: {complaint}"
    else:
        yield f"  {name}: {program} is there"


def _unseen(program: str, used: Examined | None) -> str:
    """Returns why a program that is there cannot be seen where agents run."""
    try:
        if used is not None and isinstance(used.runtime, BubblewrapRuntime):
            used.runtime.visible.program(program)
    except OSError as error:
        return str(error)
    return ""


def _used(settings: Config, found: list[Examined]) -> Examined | None:
    kinds = STRENGTH if settings.runtime.kind == "auto" else (settings.runtime.kind,)
    return next((one for one in found if one.kind in kinds and one.runtime is not None), None)


def _works(settings: Config, found: list[Examined]) -> bool:
    return _used(settings, found) is not None


def _taken(settings: Config, found: list[Examined]) -> str:
    used = _used(settings, found)
    if used is None:
        return ", which does not work here"
    return f", which takes {used.kind}" if settings.runtime.kind == "auto" else ""
