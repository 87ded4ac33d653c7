"""A sandbox that is this host as it is, for tests of agents without a runtime."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from oubliette.agents.base import Place, Program, Report, Running, Turn
from oubliette.agents.environment import Environment
from oubliette.agents.process import Process, started

CLIENT = (sys.executable, "-m", "oubliette_client")


class HostSandbox:
    """Runs programs in `folder`/workspace; `folder`/home is the agent's own. `confined` is what it says of itself.

    `programs` are those that were started, in order.
    """

    def __init__(
        self,
        folder: Path,
        *,
        socket: str = "/nowhere/relay.sock",
        confined: bool = True,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.confined = confined
        self.programs: list[Program] = []
        self.home = folder / "home"
        self.workspace = folder / "workspace"
        for made in (self.home, self.workspace):
            made.mkdir(parents=True, exist_ok=True)
        self.place = Place(
            workspace=str(self.workspace),
            home=str(self.home),
            socket=socket,
            client=CLIENT,
            variables={"PATH": os.environ["PATH"], "OUBLIETTE_SOCKET": socket, **(variables or {})},
        )

    async def write(self, name: str, data: bytes) -> str:
        path = trio.Path(self.home, name)
        await path.parent.mkdir(parents=True, exist_ok=True)
        await path.write_bytes(data)
        return str(path)

    @asynccontextmanager
    async def start(self, program: Program) -> AsyncIterator[Running]:
        self.programs.append(program)
        environment = {**self.place.variables, **program.environment}
        async with started(Process(program.argv, folder=self.workspace, environment=environment)) as process:
            yield process


class Told:
    """What an agent told in one turn, in order: its texts, and what it reported of tools."""

    def __init__(self) -> None:
        self.all: list[str | Report] = []

    @property
    def texts(self) -> list[str]:
        return [told for told in self.all if isinstance(told, str)]

    @property
    def reports(self) -> list[Report]:
        return [told for told in self.all if not isinstance(told, str)]

    def turn(self, prompt: str, **variables: str) -> Turn:
        """Returns a turn that is told of here."""
        return Turn(prompt=prompt, say=self._take, report=self._take, variables=Environment(variables))

    async def _take(self, told: str | Report) -> None:
        await trio.lowlevel.checkpoint()
        self.all.append(told)
