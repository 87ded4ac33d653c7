"""The runtime `process`: the host as it is. Nothing confines an agent; what it leaves behind is found and ended."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from oubliette.agents.base import Place, Program, Running
from oubliette.agents.environment import agent_environment
from oubliette.agents.process import Process, started
from oubliette.log import get as get_logger
from oubliette.runtimes.base import RELAY_SOCKET, Room, Settings
from oubliette.runtimes.folders import write_below
from oubliette.runtimes.priority import step_back
from oubliette.runtimes.strays import Environ, end_strays

_CLIENT: Final = (sys.executable, "-m", "oubliette_client")

log = get_logger(__name__)


class ProcessRuntime:
    """Runs agents as processes of the daemon's own user."""

    name: Final = "process"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: set[bytes] = set()

    @property
    def warnings(self) -> tuple[str, ...]:
        limits = (
            "the runtime `process` limits neither memory nor processors nor processes, and confines to no folder",
        )
        if self._settings.network == "host":
            return limits
        return (f"the runtime `process` cannot restrict the network to `{self._settings.network}`", *limits)

    @asynccontextmanager
    async def open(self, room: Room) -> AsyncIterator[ProcessSandbox]:
        name = os.fsencode(room.session_id)
        self._open.add(name)
        try:
            yield ProcessSandbox(room)
        finally:
            self._open.discard(name)
            await end_strays(partial(_is_of_session, os.fsencode(room.sockets / RELAY_SOCKET), name))

    async def clean(self) -> None:
        ended = await end_strays(self._is_left)
        if ended:
            log.warning("ended processes that agents had left behind", count=ended)

    def _is_left(self, environ: Environ) -> bool:
        socket, session = environ.get(b"OUBLIETTE_SOCKET"), environ.get(b"OUBLIETTE_SESSION_ID")
        if socket is None or session is None or session in self._open:
            return False
        return Path(os.fsdecode(socket)).is_relative_to(self._settings.data_dir.absolute())


def _is_of_session(socket: bytes, session: bytes, environ: Environ) -> bool:
    return environ.get(b"OUBLIETTE_SOCKET") == socket and environ.get(b"OUBLIETTE_SESSION_ID") == session


class ProcessSandbox:
    """One session's programs, which start in its workspace."""

    confined: Final = False

    def __init__(self, room: Room) -> None:
        self._room = room
        socket = room.sockets / RELAY_SOCKET
        self.place = Place(
            workspace=str(room.workspace),
            home=str(room.home),
            socket=str(socket),
            client=_CLIENT,
            variables=agent_environment(
                session_id=room.session_id, project_id=room.project_id, folder=room.workspace, socket=socket
            ),
        )

    async def write(self, name: str, data: bytes) -> str:
        await trio.to_thread.run_sync(write_below, self._room.home, name, data, os.geteuid())
        return str(self._room.home / name)

    @asynccontextmanager
    async def start(self, program: Program) -> AsyncIterator[Running]:
        await trio.lowlevel.checkpoint_if_cancelled()
        environment = {**self.place.variables, **program.environment}
        process = Process(program.argv, folder=self._room.workspace, environment=environment)
        step_back(process.pid)
        async with started(process):
            yield process
