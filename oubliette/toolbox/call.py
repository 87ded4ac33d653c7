"""What a tool is called with: who asks, and what there is to work with."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from oubliette.declarations import DeclarationLimits
from oubliette.errors import Forbidden, NotFound
from oubliette.projects import Projects
from oubliette.records import ProjectRecord
from oubliette.session import Session
from oubliette.sessions import Sessions
from oubliette.streams import EventRecords
from oubliette.tokens import Principal, Tokens


class Services(Struct, frozen=True, kw_only=True):
    """The parts of the daemon that tools work on; `poll_grace` in seconds (WIRE section 3, "Polling counts")."""

    sessions: Sessions
    tokens: Tokens
    projects: Projects
    events: EventRecords
    poll_grace: float
    declarations: DeclarationLimits
    default_agent: str


def _ignore(session: Session, after: int | None) -> None:
    """A door without a standing stream."""


class Call(Struct, frozen=True, kw_only=True):
    """One call of a tool.

    `on_named` is told of a session of the principal's own that the call started, messaged or named, and of the event
    index after which it did (None: from now on).
    """

    principal: Principal
    services: Services
    on_named: Callable[[Session, int | None], None] = _ignore

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

    def project(self, project_id: str | None) -> ProjectRecord:
        """Returns a project that the asker's scope covers, the scope's default without an id. Raises `NotFound`."""
        scope = self.principal.scope
        wanted = project_id or scope.project_id or "default"
        if not scope.covers(wanted):
            raise NotFound(f"no project {wanted!r}", field="project_id")
        return self.services.projects.project(wanted)
