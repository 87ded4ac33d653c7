"""Who works in sessions, and where: an agent's home, sandbox and conversation, opened and closed in one place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from oubliette.agents.base import Agent, Conversation
from oubliette.agents.environment import Environment
from oubliette.errors import InvalidParams
from oubliette.homes import Homes
from oubliette.runtimes.base import Room, Runtime

Variables = Callable[[], Awaitable[Environment]]
"""Returns the `env` of a workspace and its project."""


class Workplace(Struct, frozen=True, kw_only=True):
    """Who works in one session, and where. The `variables` are asked for at each turn."""

    agent: Agent
    runtime: Runtime
    homes: Homes
    folder: Path
    variables: Variables

    @asynccontextmanager
    async def open(self, session_id: str, project_id: str, socket: Path) -> AsyncIterator[Conversation]:
        """Opens all that the agent needs; leaving the block ends it, in bounded time, and the home is gone.

        Raises what the runtime and the agent raise where they cannot be started, and `OSError`.
        """
        with self.homes.home(session_id) as home:
            room = Room(
                session_id=session_id, project_id=project_id, workspace=self.folder, sockets=socket.parent, home=home
            )
            async with self.runtime.open(room) as sandbox, self.agent.converse(sandbox) as conversation:
                yield conversation


class Workforce(Struct, frozen=True, kw_only=True):
    """Agent profiles by name (None: `external`, which starts nothing), the runtimes that are to be had here, by name,
    the one of projects that name none, and where agents' homes are.
    """

    agents: Mapping[str, Agent | None]
    runtimes: Mapping[str, Runtime]
    default_runtime: str
    homes: Homes

    def runtime(self, name: str | None) -> Runtime:
        """Returns the runtime of that name, the default one without. Raises `InvalidParams` where it is not there."""
        wanted = name or self.default_runtime
        if wanted not in self.runtimes:
            known = ", ".join(self.runtimes)
            raise InvalidParams(f"the runtime {wanted!r} is not to be had here; there is: {known}", field="runtime")
        return self.runtimes[wanted]

    def workplace(self, agent: str, runtime: Runtime, folder: Path, variables: Variables) -> Workplace | None:
        """Returns where the agent of a session works, None for a profile that starts nothing."""
        profile = self.agents[agent]
        if profile is None:
            return None
        return Workplace(agent=profile, runtime=runtime, homes=self.homes, folder=folder, variables=variables)
