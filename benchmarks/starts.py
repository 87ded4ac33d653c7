"""An agent started in two ways: by the daemon, which a caller asks, and by hand, with nothing but its sandbox.

By hand is what the daemon's own start comes down to: the same program in the same sandbox of the same configuration,
with the same client, and in the daemon's place a socket that says which tools there are. Session, folders, sandbox and
socket are there before the clock starts; it measures from the program's start alone.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio
from msgspec import Struct

from benchmarks.doors import Server
from benchmarks.load import DAEMON_SOCKET, System, started
from benchmarks.owner import TURN_SECONDS, Owner, Told
from benchmarks.subjects import TOOL, Subject
from oubliette.agents.base import Conversation, Report, Turn
from oubliette.agents.environment import Environment
from oubliette.config import load
from oubliette.hiring import hire
from oubliette.homes import Homes
from oubliette.link.model import ModelDoor
from oubliette.runtimes.base import RELAY_SOCKET
from oubliette.workplace import Workforce
from tests.helpers.stub_relay import stub_relay

# The example agent calls its caller's tool with it.
PROMPT: Final = "start"
# An engine is asked what is left, and to remove it; each takes 0.1 s.
CLEAN_SECONDS: Final = 20.0


class ByDaemon(Struct, frozen=True):
    """A daemon with a caller."""

    system: System
    owner: Owner

    async def run(self, prompts: list[str]) -> list[Told]:
        """Starts a session for each prompt, as `Owner.run` does, in a thread of its own."""
        # Whoever cancels this ends the daemon, and so the connection on which the thread waits.
        return await trio.to_thread.run_sync(self.owner.run, prompts, abandon_on_cancel=True)

    async def start(self, subject: Subject) -> float:
        """Returns the ms from the caller's message until the agent has its tools."""
        [told] = await self.run([PROMPT])
        return (subject.listed(told.begun, told.said) - told.begun) / 1e6


@asynccontextmanager
async def by_daemon(configuration: str) -> AsyncIterator[ByDaemon]:
    """Runs a daemon for the length of the block."""
    async with started(DAEMON_SOCKET, configuration=configuration) as system:
        yield ByDaemon(system, await trio.to_thread.run_sync(Owner, Server(system.url, system.token)))


class ByHand:
    """Who works where, as the daemon would have it, below a `folder`."""

    def __init__(self, workforce: Workforce, folder: Path, model: ModelDoor) -> None:
        self._workforce = workforce
        self._folder = folder
        self._model = model

    async def start(self, subject: Subject) -> float:
        """Returns the ms from the program's start until it has its tools. Raises `ValueError` where it fails."""
        said: list[str] = []

        async def say(text: str) -> None:
            said.append(text)

        turn = Turn(prompt=PROMPT, say=say, report=_ignore)
        async with self._open(subject.name) as conversation:
            begun = time.monotonic_ns()
            with trio.fail_after(TURN_SECONDS):
                result = await conversation.turn(turn)
        if result.exit_code != 0:
            raise ValueError(f"the agent failed: {result.complaint}")
        return (subject.listed(begun, said) - begun) / 1e6

    @asynccontextmanager
    async def _open(self, agent: str) -> AsyncIterator[Conversation]:
        session_id = f"ses_{secrets.token_hex(16)}"
        workspace, sockets = self._folder / f"w{session_id}", self._folder / secrets.token_hex(5)
        for folder in (workspace, sockets):
            folder.mkdir(mode=0o700)
        workplace = self._workforce.workplace(agent, self._workforce.runtime(None), workspace, _no_variables)
        assert workplace is not None
        relay = sockets / RELAY_SOCKET
        async with stub_relay(str(relay), _echo, [TOOL]), trio.open_nursery() as nursery:
            nursery.start_soon(self._model.open(sockets, session_id).serve)
            async with workplace.open(session_id, "prj_hand", relay) as conversation:
                yield conversation
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def by_hand(configuration: str) -> AsyncIterator[ByHand]:
    """Finds out who works where. Raises `InternalError` where the configured runtime does not work here."""
    # sun_path holds 108 bytes: the folder's path must be short.
    with tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "c.yaml").write_text(configuration)
        config = load(folder / "c.yaml", environ=os.environ, overrides={})
        workforce, clean = await hire(config, folder, Homes(folder))
        try:
            yield ByHand(workforce, folder, ModelDoor(config.runtime.model_hosts))
        finally:
            # Ctrl-C reaches the task that waits here even where it is shielded: also while it removes a container.
            with trio.move_on_after(CLEAN_SECONDS, shield=True):
                await clean()


async def _echo(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


async def _no_variables() -> Environment:
    return Environment()


async def _ignore(report: Report) -> None:
    """What an agent tells of its tools is nobody's here."""
