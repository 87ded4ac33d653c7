"""What a session is started with, within which limits, and which of those that were started nobody uses any more."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from msgspec import Struct

from oubliette import clock
from oubliette.declarations import Declaration
from oubliette.errors import LimitExceeded
from oubliette.records import ProjectRecord, SessionRecord, WorkspaceRecord
from oubliette.relay import RelayLimits
from oubliette.session import Session


class SessionLimits(Struct, frozen=True, kw_only=True):
    """The `sessions` section of the configuration; times in seconds, 0 for never.

    `max_depth` is how deep below a session without parent a child may be, `max_children` how many may be under way
    beneath one parent.
    """

    relay: RelayLimits
    idle_timeout: float = 3600
    max_active_per_project: int = 100
    max_depth: int = 3
    max_children: int = 20


class NewSession(Struct, frozen=True, kw_only=True):
    """What a session is started with, checked. A child has a `parent`."""

    owner: str
    project: ProjectRecord
    workspace: WorkspaceRecord
    agent: str
    message: str
    declaration: Declaration | None
    parent: Session | None = None


def check_family(parent: Session, limits: SessionLimits) -> None:
    """Raises `LimitExceeded` where a session may not start another one."""
    if parent.depth >= limits.max_depth:
        raise LimitExceeded(
            f"child sessions may be {limits.max_depth} deep (sessions.max_depth), and this session is at depth "
            f"{parent.depth}: it cannot start one; do the work here"
        )
    if len(parent.children) >= limits.max_children:
        raise LimitExceeded(
            f"this session has {len(parent.children)} child sessions under way, as many as it may "
            "(sessions.max_children): wait for one of them to end"
        )


def new_record(new: NewSession, runtime: str) -> SessionRecord:
    """Returns the record of a session that is about to start, under an id that nobody can guess."""
    parent = new.parent
    return SessionRecord(
        session_id=f"ses_{secrets.token_hex(16)}",
        project_id=new.project.project_id,
        workspace_id=new.workspace.workspace_id,
        status="starting",
        agent=new.agent,
        runtime=runtime,
        owner=new.owner,
        parent_id=parent.id if parent else None,
        depth=parent.depth + 1 if parent else 0,
        caller=None,
        created_at=clock.now(),
        ended_at=None,
        last_index=0,
    )


def idle_since(sessions: Collection[Session], moment: float) -> list[Session]:
    """Returns those that have had no event and no stream since `moment`, nor has any of their descendants.

    `sessions` has each parent before its children.
    """
    in_use: set[str | None] = set()
    idle = []
    for session in reversed(list(sessions)):
        if session.id in in_use or session.log.is_followed or session.log.last_used >= moment:
            in_use.add(session.parent_id)
        else:
            idle.append(session)
    return idle
