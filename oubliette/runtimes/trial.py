"""Whether a runtime works here is found out by running a program in it, in the way that sessions do."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

import trio
from msgspec import Struct

from oubliette.agents.base import Program
from oubliette.agents.process import run_lines
from oubliette.runtimes import engine
from oubliette.runtimes.base import Kind, Room, Runtime, Settings
from oubliette.runtimes.bubblewrap import BubblewrapRuntime
from oubliette.runtimes.container import ContainerRuntime
from oubliette.runtimes.mends import INSTALL, NO_IMAGE, NO_TOOLS, Lack, of_bubblewrap, of_engine, shortcomings
from oubliette.runtimes.namespace import TOOLS
from oubliette.runtimes.process import ProcessRuntime

# How long a trial may take, in seconds; a container's takes 0.3, and a docker daemon that hangs answers never.
TRIAL: Final = 15.0
_COMMANDS: Final[dict[Kind, str]] = {"bubblewrap": "bwrap", "podman": "podman", "docker": "docker"}
_TRUE: Final = Program(argv=("true",))


class Examined(Struct, frozen=True, kw_only=True):
    """What is known of one kind of runtime on this machine: either the `runtime`, which works, or what it `lacks`."""

    kind: Kind
    runtime: Runtime | None = None
    lacks: Lack | None = None


async def examine(kind: Kind, settings: Settings) -> Examined:
    """Tries a runtime out, within `TRIAL` seconds and a little. Never raises for what is missing here."""
    if kind == "process":
        return Examined(kind=kind, runtime=ProcessRuntime(settings))
    if shutil.which(_COMMANDS[kind]) is None:
        return Examined(kind=kind, lacks=INSTALL[kind])
    if kind == "bubblewrap" and os.geteuid() == 0 and not all(map(shutil.which, TOOLS)):
        return Examined(kind=kind, lacks=NO_TOOLS)
    try:
        if kind == "bubblewrap":
            return await _examine_bubblewrap(settings)
        return await _examine_engine(kind, settings)
    except (OSError, ValueError) as error:
        return Examined(kind=kind, lacks=Lack(why=str(error), mend=""))


async def _examine_bubblewrap(settings: Settings) -> Examined:
    runtime = await trio.to_thread.run_sync(BubblewrapRuntime, settings)
    exit_code, said = await _try_out(runtime)
    if "--disable-userns" in said:
        # Unknown to a bubblewrap older than 0.8.
        runtime = await trio.to_thread.run_sync(partial(BubblewrapRuntime, settings, fence=False))
        exit_code, said = await _try_out(runtime)
    if exit_code != 0:
        return Examined(kind="bubblewrap", lacks=of_bubblewrap(said))
    return Examined(kind="bubblewrap", runtime=runtime)


async def _examine_engine(kind: engine.Name, settings: Settings) -> Examined:
    if not settings.image:
        return Examined(kind=kind, lacks=NO_IMAGE)
    exit_code, said = await _try_out(ContainerRuntime(kind, settings))
    if exit_code != 0:
        return Examined(kind=kind, lacks=of_engine(kind, settings.image, said))
    return Examined(kind=kind, runtime=ContainerRuntime(kind, settings, shortcomings(said)))


async def _try_out(runtime: Runtime) -> tuple[int, str]:
    """Runs `true` in a sandbox of nobody's. Returns its exit code and what was said on stderr."""
    with tempfile.TemporaryDirectory(prefix="oubliette-", ignore_cleanup_errors=True) as folder:
        with trio.move_on_after(TRIAL):
            async with runtime.open(_room(Path(folder))) as sandbox:
                return await run_lines(sandbox, _TRUE, b"", _ignore)
    return 1, f"it did not run a program within {TRIAL:g} s"


def _room(folder: Path) -> Room:
    places = [folder / name for name in ("workspace", "sockets", "home")]
    for place in places:
        place.mkdir(mode=0o700)
    workspace, sockets, home = places
    return Room(session_id="trial", project_id="trial", workspace=workspace, sockets=sockets, home=home)


async def _ignore(line: str) -> None:
    """`true` says nothing; what an image's own wrapper says is nobody's."""
