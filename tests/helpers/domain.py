"""The domain without doors: sessions, tokens and tools over records in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from oubliette.agents.base import Agent
from oubliette.agents.environment import Environment
from oubliette.declarations import DeclarationLimits
from oubliette.events import Journal, RingLimits
from oubliette.gate import Gate
from oubliette.homes import Homes
from oubliette.packs.registry import Packs
from oubliette.projects import NewProject, Projects
from oubliette.records import ProjectRecord
from oubliette.relay import RelayLimits
from oubliette.runtimes.base import Runtime
from oubliette.scopes import Scope
from oubliette.session import Session
from oubliette.sessions import Sessions
from oubliette.starting import SessionLimits
from oubliette.streams import Stream
from oubliette.tokens import Principal, Tokens
from oubliette.toolbox import box
from oubliette.toolbox.call import Call, Services
from oubliette.workplace import Workforce
from tests.helpers.agents import FakeRuntime
from tests.helpers.audit import Unwritten
from tests.helpers.packs import packs_of
from tests.helpers.records import MemoryRecords, NoLinks

OWNER = Principal("owner", Scope(None, False))
OTHER = Principal("other", Scope(None, False))
STRANGER = Principal("stranger", Scope("elsewhere", False))


class Domain:
    """The parts that tools work on, and short ways to use them."""

    def __init__(self, services: Services, records: MemoryRecords, audit: Unwritten) -> None:
        self.services = services
        self.sessions = services.sessions
        self.records = records
        self.audit = audit

    async def run(self, principal: Principal, tool: str, **arguments: Any) -> Any:
        """Calls a tool as `principal`; raises its error."""
        call = Call(principal=principal, services=self.services, door="mcp")
        return msgspec.json.decode(await box.run(call, box.TOOLS[tool], msgspec.json.encode(arguments)))

    async def start(self, *tools: Any, agent: str = "external", message: str = "hello", **place: str | None) -> Session:
        """Starts a session of the owner whose caller `myapp` offers `tools`, names or whole declarations."""
        declared = [{"name": tool} if isinstance(tool, str) else tool for tool in tools]
        context = {"context": {"caller_id": "myapp", "caller_tools": declared}} if declared else {}
        view = await self.run(OWNER, "session_message", message=message, agent=agent, **context, **place)
        return await self.sessions.find(view["session_id"])

    async def project(self, name: str = "own", **env: str) -> ProjectRecord:
        """Creates a project with these variables."""
        return await self.services.projects.create(NewProject(name=name, env=Environment(env)))

    def stream(self, session: Session, principal: Principal = OWNER, *, after: int | None = None) -> Stream:
        """Opens a stream of one session."""
        stream = Stream(principal.token_id, self.records)
        stream.cover(session, after)
        return stream


def reconciled(records: MemoryRecords, folder: Path) -> Projects:
    """Returns the projects as a daemon's start leaves them."""
    folder.mkdir(parents=True, exist_ok=True)
    projects = Projects(records, folder)
    projects.reconcile()
    return projects


@asynccontextmanager
async def open_domain(
    folder: Path,
    *,
    relay: RelayLimits | None = None,
    ring: RingLimits | None = None,
    agents: Mapping[str, Agent | None] | None = None,
    runtime: Runtime | None = None,
    packs: Packs | None = None,
    idle_timeout: float = 0,
    max_active: int = 100,
    max_depth: int = 3,
    max_children: int = 20,
) -> AsyncIterator[Domain]:
    """Runs a domain; `folder` is for workspaces and homes."""
    records = MemoryRecords()
    projects = reconciled(records, folder)
    await projects.ensure_default()
    runtime = runtime or FakeRuntime()
    workforce = Workforce(
        agents=agents or {"external": None},
        runtimes={runtime.name: runtime},
        default_runtime=runtime.name,
        homes=Homes(folder),
    )
    limits = SessionLimits(
        relay=relay or RelayLimits(),
        idle_timeout=idle_timeout,
        max_active_per_project=max_active,
        max_depth=max_depth,
        max_children=max_children,
    )
    journal = Journal(records, ring or RingLimits())
    sessions = Sessions(records, journal, NoLinks(), projects, workforce, limits)
    tokens, audit = Tokens(records), Unwritten()
    services = Services(
        sessions=sessions,
        tokens=tokens,
        gate=Gate(tokens, audit),
        audit=audit,
        projects=projects,
        packs=packs or packs_of(folder=folder),
        events=records,
        poll_grace=15,
        default_agent="external",
        declarations=DeclarationLimits(default_timeout=60.0, max_timeout=3600.0, reserved=box.PACKS | {"oubliette"}),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(projects.errands.run)
        await nursery.start(sessions.run)
        await nursery.start(services.packs.run)
        yield Domain(services, records, audit)
        nursery.cancel_scope.cancel()
