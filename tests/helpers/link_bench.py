"""A session whose links are memory streams, and whose caller the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from oubliette.agents.base import Agent
from oubliette.link.connection import Connection
from oubliette.link.methods import DaemonMethods
from oubliette.packs.registry import Packs
from oubliette.relay import RelayLimits
from oubliette.session import Session
from oubliette.streams import Stream
from tests.helpers.domain import OWNER, Domain, open_domain
from tests.helpers.link import AgentLink

MAX_BYTES = 4096


class LinkBench:
    """A session with one open stream of its owner. `tasks` runs the connections."""

    def __init__(self, domain: Domain, session: Session, stream: Stream, tasks: trio.Nursery) -> None:
        self.domain = domain
        self.session = session
        self.stream = stream
        self.tasks = tasks
        self.connections: list[Connection] = []
        self.daemon = DaemonMethods(session, domain.services, MAX_BYTES)
        self._requests: list[Any] = []

    async def connect(self, *, clogged: bool = False) -> AgentLink:
        """Opens a link and takes its two configs; on a clogged one every byte waits for its reader."""
        ours, theirs = lockstep_stream_pair() if clogged else memory_stream_pair()
        self.connections.append(Connection(self.session, ours, MAX_BYTES, self.daemon))
        self.tasks.start_soon(self._serve, self.connections[-1], ours)
        link = AgentLink(theirs)
        link.configs = [await link.receive(), await link.receive()]
        return link

    async def _serve(self, connection: Connection, stream: trio.abc.Stream) -> None:
        await connection.run()
        await trio.aclose_forcefully(stream)

    async def next_request(self) -> Any:
        """Returns the next request that the caller is given."""
        while not self._requests:
            events = [msgspec.json.decode(entry.data) for entry in await self.stream.batch()]
            assert events, "the stream has ended"
            self._requests += [event for event in events if event["type"] == "caller_tool_request"]
        return self._requests.pop(0)

    async def answer(self, request: Any, **outcome: Any) -> None:
        arguments = {"session_id": self.session.id, "request_id": request["request_id"], **outcome}
        await self.domain.run(OWNER, "caller_tool_response", **arguments)

    async def report(self, request: Any, progress: float, **more: Any) -> None:
        arguments = {"session_id": self.session.id, "request_id": request["request_id"], "progress": progress, **more}
        await self.domain.run(OWNER, "caller_tool_progress", **arguments)

    async def declare(self, caller_id: str, *tools: str) -> None:
        context = {"caller_id": caller_id, "caller_tools": [{"name": tool} for tool in tools]}
        await self.domain.run(OWNER, "session_message", session_id=self.session.id, message="x", context=context)

    def closings(self) -> list[tuple[str, str | None]]:
        """What became of requests, in the order in which they ended."""
        events = [msgspec.json.decode(event.data) for event in self.domain.records.stored]
        kinds = ("caller_tool_resolved", "caller_tool_cancelled")
        return [(event["type"], event.get("reason")) for event in events if event["type"] in kinds]


@asynccontextmanager
async def open_link_bench(
    folder: Path,
    *tools: Any,
    agents: Mapping[str, Agent] | None = None,
    packs: Packs | None = None,
    **limits: Any,
) -> AsyncIterator[LinkBench]:
    """Starts a session whose caller offers `tools`, beside profiles `agents` and `packs`; `limits` are the
    relay's.
    """
    profiles = {"external": None, **(agents or {})}
    async with open_domain(folder, relay=RelayLimits(**limits), agents=profiles, packs=packs) as domain:
        session = await domain.start(*(tools or ("send",)))
        with domain.stream(session) as stream:
            async with trio.open_nursery() as tasks:
                yield LinkBench(domain, session, stream, tasks)
                tasks.cancel_scope.cancel()
