"""The domain without doors: sessions, tokens and tools over records in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from oubliette.agents.base import Agent
from oubliette.declarations import DeclarationLimits
from oubliette.events import Journal, RingLimits
from oubliette.projects import Projects
from oubliette.relay import RelayLimits
from oubliette.scopes import Scope
from oubliette.session import Session
from oubliette.sessions import SessionLimits, Sessions
from oubliette.streams import Stream
from oubliette.tokens import Principal, Tokens
from oubliette.toolbox import box
from oubliette.toolbox.call import Call, Services
from tests.helpers.records import MemoryRecords, NoLinks

OWNER = Principal("owner", Scope(None, False))
OTHER = Principal("other", Scope(None, False))
STRANGER = Principal("stranger", Scope("elsewhere", False))


class Domain:
    """The parts that tools work on, and short ways to use them."""

    def __init__(self, services: Services, records: MemoryRecords) -> None:
        self.services = services
        self.sessions = services.sessions
        self.records = records

    async def run(self, principal: Principal, tool: str, **arguments: Any) -> Any:
        """Calls a tool as `principal`; raises its error."""
        call = Call(principal=principal, services=self.services)
        return msgspec.json.decode(await box.run(call, box.find(tool), msgspec.json.encode(arguments)))

    async def start(self, *tools: Any, agent: str = "external", message: str = "hello") -> Session:
        """Starts a session of the owner whose caller `myapp` offers `tools`, names or whole declarations."""
        declared = [{"name": tool} if isinstance(tool, str) else tool for tool in tools]
        context = {"context": {"caller_id": "myapp", "caller_tools": declared}} if declared else {}
        view = await self.run(OWNER, "session_message", message=message, agent=agent, **context)
        return await self.sessions.find(view["session_id"])

    def stream(self, session: Session, principal: Principal = OWNER, *, after: int | None = None) -> Stream:
        """Opens a stream of one session."""
        stream = Stream(principal.token_id, self.records)
        stream.cover(session, after)
        return stream


@asynccontextmanager
async def open_domain(
    folder: Path,
    *,
    relay: RelayLimits | None = None,
    ring: RingLimits | None = None,
    agents: Mapping[str, Agent | None] | None = None,
    idle_timeout: float = 0,
    max_active: int = 100,
) -> AsyncIterator[Domain]:
    """Runs a domain; `folder` is for workspaces."""
    records = MemoryRecords()
    projects = Projects(records, folder)
    await projects.ensure_default()
    limits = SessionLimits(relay=relay or RelayLimits(), idle_timeout=idle_timeout, max_active_per_project=max_active)
    sessions = Sessions(
        records, Journal(records, ring or RingLimits()), NoLinks(), projects, agents or {"external": None}, limits
    )
    services = Services(
        sessions=sessions,
        tokens=Tokens(records),
        projects=projects,
        events=records,
        poll_grace=15,
        default_agent="external",
        declarations=DeclarationLimits(default_timeout=60.0, max_timeout=3600.0, reserved=box.PACKS | {"oubliette"}),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(sessions.run)
        yield Domain(services, records)
        nursery.cancel_scope.cancel()
