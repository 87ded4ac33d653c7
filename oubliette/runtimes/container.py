"""The runtimes `podman` and `docker`: a container of an image for each program that a session starts.

The engine's own `run` is the program that is started here: its pipes are the agent's, SIGTERM goes through it, its exit
code is the agent's. The container is another process's child, and outlives its `run`; so it has a name, and is removed
by it, whatever became of `run`. What a killed daemon left is found by its label.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from oubliette.agents.base import Program, Running
from oubliette.agents.process import Process, started
from oubliette.log import get as get_logger
from oubliette.runtimes import engine, inside
from oubliette.runtimes.asking import TIMED_OUT, ask
from oubliette.runtimes.base import Room, Settings
from oubliette.runtimes.folders import give_to_agent
from oubliette.runtimes.instance import mark
from oubliette.runtimes.strays import end_left

# How long an engine may take over one question, in seconds; podman takes 0.1, and more when many ask at once.
_PATIENCE: Final = 8.0
# How many containers are removed with one command.
_AT_ONCE: Final = 50
# The exit codes of engines and of the launcher where the program is not there or cannot be run.
_NO_PROGRAM: Final = (126, 127)
_KILLED: Final = 128 + signal.SIGKILL
_LAUNCHER_SAYS: Final = "oubliette-launch: "
_PYTHON: Final = "python3"

log = get_logger(__name__)


class ContainerRuntime:
    """Runs agents in containers of podman or docker. Raises `ValueError` for an image's name that cannot be one.

    `warnings` is what the engine itself said that it cannot do here.
    """

    def __init__(self, name: engine.Name, settings: Settings, warnings: tuple[str, ...] = ()) -> None:
        engine.checked_image(settings.image)
        self.name: Final[engine.Name] = name
        self.warnings = warnings
        self.settings = settings
        self.running: set[str] = set()

    @asynccontextmanager
    async def open(self, room: Room) -> AsyncIterator[ContainerSandbox]:
        await trio.to_thread.run_sync(give_to_agent, room)
        yield ContainerSandbox(self, room)

    async def clean(self) -> None:
        await remove_left(self.name, self.settings.data_dir, self.running)

    async def maker(self) -> str:
        """Returns what makes its containers, and the version, as the engine says it."""
        return (await ask(engine.version_command(self.name), _PATIENCE)).text

    async def has_run_out_of_memory(self, name: str) -> bool:
        answer = await ask(engine.oom_command(self.name, name), _PATIENCE)
        return answer.text.strip() == "true"


class ContainerSandbox:
    """One session's programs, each in a container of its own, with the same folders."""

    confined: Final = True

    def __init__(self, runtime: ContainerRuntime, room: Room) -> None:
        self._runtime = runtime
        self._room = room
        place = inside.place(room, runtime.settings, _PYTHON)
        # Where its programs are is the image's to say.
        self.place = inside.without(place, "PATH")

    async def write(self, name: str, data: bytes) -> str:
        return await inside.write(self._room, name, data)

    @asynccontextmanager
    async def start(self, program: Program) -> AsyncIterator[Running]:
        await trio.lowlevel.checkpoint_if_cancelled()
        with ExitStack() as given:
            variables = engine.variables_file({**self.place.variables, **program.environment})
            descriptor = inside.memory_file(variables, given)
            container = _Container(self._runtime, self._room, descriptor, program.argv)
        async with started(container):
            yield container


class _Container(Process):
    """An engine's `run`, and the container that it started."""

    def __init__(self, runtime: ContainerRuntime, room: Room, variables: int, argv: Sequence[str]) -> None:
        self._runtime = runtime
        self._name = f"oubliette-{secrets.token_hex(8)}"
        command = engine.run_command(runtime.name, runtime.settings, room, self._name, variables, argv)
        environment = {**os.environ, **mark(runtime.settings.data_dir)}
        # podman's monitor leaves a file `oom` in the folder that it was started in: it goes with the session's sockets.
        super().__init__(command, folder=room.sockets, environment=environment, pass_fds=[variables])
        runtime.running.add(self._name)

    def ask_to_end(self) -> None:
        """Asks the container: `run` alone passes the signal on, what else it may have started does not."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    async def force_to_end(self) -> None:
        """Removes the container, also one that has ended, or whose `run` was killed."""
        try:
            await remove(self._runtime.name, [self._name])
        finally:
            self._runtime.running.discard(self._name)
            await super().force_to_end()

    async def post_mortem(self, exit_code: int) -> str:
        if exit_code == 0:
            return ""
        memory = inside.readable_size(self._runtime.settings.memory)
        if await self._runtime.has_run_out_of_memory(self._name):
            return f"it ran out of memory: runtime.memory is {memory}"
        if exit_code in _NO_PROGRAM:
            return self._missing()
        how = inside.how_it_ended(exit_code)
        # podman is not told of it on every machine.
        return f"{how}, as is what needs more than runtime.memory, {memory}" if exit_code == _KILLED else how

    def _missing(self) -> str:
        image = self._runtime.settings.image
        if _LAUNCHER_SAYS in self._complaint.text:
            return f"a program must be in the image {image}, or in a folder of runtime.mounts"
        return f"the image {image} needs Python 3.11 or newer as python3" if _PYTHON in self._complaint.text else ""


async def remove_left(name: engine.Name, data_dir: Path, running: Collection[str] = ()) -> None:
    """Removes the containers of a daemon's instance but for those that are `running`, where there is an engine."""
    # What is still about to make one comes first.
    await end_left(data_dir)
    try:
        answer = await ask(engine.list_command(name, data_dir), _PATIENCE)
    except OSError:
        return
    left = [container for container in answer.text.split() if container not in running]
    if left:
        log.warning("removing containers that were left", engine=name, count=len(left))
    for first in range(0, len(left), _AT_ONCE):
        await remove(name, left[first : first + _AT_ONCE])


async def remove(name: engine.Name, containers: Sequence[str]) -> None:
    """Kills and removes containers. What cannot be removed is logged, and the next start tries again."""
    command = engine.remove_command(name, containers)
    try:
        answer = await ask(command, _PATIENCE)
        if answer.exit_code not in (0, TIMED_OUT):
            # podman gives up on one that dies by itself at that moment; the next time it finds it dead.
            answer = await ask(command, _PATIENCE)
        reason = answer.complaint if answer.exit_code else ""
    except OSError as error:
        reason = str(error)
    if reason:
        log.warning("containers cannot be removed", engine=name, containers=containers, reason=reason)
