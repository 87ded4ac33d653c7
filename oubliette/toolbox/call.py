"""What a tool is called with: who asks, and what there is to work with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from ot_pack.state import State
from oubliette.audit import Audit, Door
from oubliette.changes import Changes
from oubliette.declarations import DeclarationLimits
from oubliette.errors import Forbidden, MissingClientCapability, NotFound
from oubliette.gate import Gate
from oubliette.packs.registry import Packs
from oubliette.packs.tools import PackTool
from oubliette.packs.views import principal_state
from oubliette.projects import DEFAULT, Projects
from oubliette.protocol.mcp import Level
from oubliette.records import ProjectRecord, WorkspaceRecord
from oubliette.session import Session
from oubliette.sessions import Sessions
from oubliette.streams import EventRecords
from oubliette.tokens import Principal, Tokens


class Standing(Protocol):
    """Something that would stay open for as long as its reader does."""

    def finish(self) -> None:
        """Ends it in good order: the daemon stops."""
        ...


class Services(Struct, frozen=True, kw_only=True):
    """The parts of the daemon that tools work on; `poll_grace` in seconds (WIRE section 3, "Polling counts").

    `standing` is what the daemon finishes when it stops.
    """

    sessions: Sessions
    tokens: Tokens
    gate: Gate
    audit: Audit
    projects: Projects
    packs: Packs
    events: EventRecords
    poll_grace: float
    declarations: DeclarationLimits
    default_agent: str
    changes: Changes = msgspec.field(default_factory=Changes)
    standing: set[Standing] = msgspec.field(default_factory=set)

    @property
    def declaration_limits(self) -> DeclarationLimits:
        """What bounds a declaration now: packs and servers come and go, and no caller may take the name of one."""
        limits = self.declarations
        return replace(limits, reserved=limits.reserved | set(self.packs.names))


class Reports(Protocol):
    """The way back for what a tool has to say while it runs."""

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Says how far it is; `done` grows with each report."""
        ...

    async def log(self, level: Level, data: Any) -> None:
        """Says something that is of use to the asker's log; `data` is JSON."""
        ...


class Follower(Protocol):
    """The response stream of a request that delivers events (WIRE section 4.1)."""

    def family(self, root: Session, after: int | None) -> None:
        """Delivers a session's events after index `after`, or from now on, and its descendants'."""
        ...

    async def everything(self) -> None:
        """Delivers the events of every session of the principal; returns when the daemon stops."""
        ...


class Unheard:
    """`Reports` of a door that has no way back."""

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Drops it."""

    async def log(self, level: Level, data: Any) -> None:
        """Drops it."""


def _ignore(session: Session, after: int | None) -> None:
    """A door without a standing stream."""


class Call(Struct, frozen=True, kw_only=True):
    """One call of a tool, which came through `door`; on a link that was the one of the session `inside`.

    `on_named` is told of a session of the principal's own that the call started, messaged or named, and of the event
    index after which it did (None: from now on). `follower` is there where the answer can carry events, `capabilities`
    is what the asker's MCP client can do.
    """

    principal: Principal
    services: Services
    door: Door
    inside: str | None = None
    on_named: Callable[[Session, int | None], None] = _ignore
    follower: Follower | None = None
    reports: Reports = Unheard()
    capabilities: Collection[str] = ()

    @property
    def packs(self) -> Collection[str] | None:
        """The packs that the asker may see and use, None for all.

        A pack's tool may change things, whatever it says of itself: a read-only scope has none (WIRE section 6).
        """
        scope, packs = self.principal.scope, self.services.packs
        if not scope.allows("write", "project"):
            return ()
        if scope.project_id is None:
            return None
        try:
            return packs.allowed(self.project(None).packs)
        except NotFound:  # a token may be made before its project
            return ()

    def state(self) -> State:
        """Returns what the asker is shown of everything (WIRE section 10, "a principal what its scope may call")."""
        return principal_state(self.services.packs, self.principal.scope, self.packs)

    def pack_tools(self) -> list[PackTool]:
        """Returns the tools of packs that the asker may call."""
        packs = self.packs
        return [tool for tool in self.services.packs.offer.tools.values() if packs is None or tool.pack in packs]

    def pack_tool(self, name: str) -> PackTool | None:
        """Returns one of them by its identity, its MCP name or an alias, None where there is none."""
        tool, packs = self.services.packs.offer.find(name), self.packs
        return tool if tool is not None and (packs is None or tool.pack in packs) else None

    async def session(self, session_id: str) -> Session:
        """Returns a session that the asker's scope covers. Raises `NotFound`: what lies outside does not exist."""
        session = await self.services.sessions.find(session_id)
        if not self.principal.scope.covers(session.project_id):
            raise NotFound(f"no session {session_id!r}", field="session_id")
        return session

    async def own_session(self, session_id: str) -> Session:
        """Returns a session of the asker's own. Raises `NotFound`, or `Forbidden` within the scope."""
        session = await self.session(session_id)
        if session.owner != self.principal.token_id:
            raise Forbidden(f"session {session_id!r} belongs to another token, which alone may do this")
        return session

    def name(self, session: Session, after: int | None = None) -> None:
        """Notes that the call named a session, where it is the asker's own."""
        if session.owner == self.principal.token_id:
            self.on_named(session, after)

    def follow(self, session: Session, after: int | None = None) -> None:
        """Delivers a session's events with the answer, where the answer can carry them."""
        if self.follower is not None:
            self.follower.family(session, after)

    def need(self, capability: str) -> None:
        """Raises `MissingClientCapability` where the asker's client has not declared it."""
        if capability not in self.capabilities:
            raise MissingClientCapability(capability)

    def place(self, project_id: str | None, workspace_id: str | None) -> tuple[ProjectRecord, WorkspaceRecord]:
        """Returns a project and a workspace of it that the asker's scope covers; without its id, the default one.

        A workspace alone says which project is meant. Raises `NotFound`.
        """
        projects, scope = self.services.projects, self.principal.scope
        if project_id is None and workspace_id is not None:
            home = projects.home_of(workspace_id)
            project_id = home if scope.covers(home) else None
        project = self.project(project_id)
        return project, projects.workspace(project, workspace_id)

    def project(self, project_id: str | None) -> ProjectRecord:
        """Returns a project that the asker's scope covers, the scope's default without an id. Raises `NotFound`."""
        scope = self.principal.scope
        wanted = (scope.project_id or DEFAULT) if project_id is None else project_id
        if not scope.covers(wanted):
            raise NotFound(f"no project {wanted!r}", field="project_id")
        return self.services.projects.project(wanted)
