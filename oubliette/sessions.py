"""All sessions: those under way, each a task in one nursery, and those of earlier days, which the records hold."""

from __future__ import annotations

import contextvars
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, Protocol

import trio

from oubliette.declarations import Declaration
from oubliette.errors import InvalidParams, LimitExceeded, NotFound, ShuttingDown
from oubliette.events import Journal
from oubliette.log import get as get_logger
from oubliette.log import span
from oubliette.projects import Projects
from oubliette.protocol.events import EndReason
from oubliette.records import SessionRecord
from oubliette.session import Listener, Records, Session
from oubliette.starting import NewSession, SessionLimits, check_family, idle_since, new_record
from oubliette.turns import TurnInLine
from oubliette.workplace import Workforce

# Ended sessions whose requests are still remembered, so that a late answer is told `conflict`; a few KiB each.
MAX_RECENT: Final = 1000
# How many are removed with one change of the records.
MAX_REMOVED: Final = 1000

log = get_logger(__name__)

SessionHook = Callable[[Session], None]


class Links(Protocol):
    """The door through which sessions' clients come."""

    def open(self, session: Session) -> Listener:
        """Opens a socket of the session's own. Raises an `OublietteError` where that cannot be."""
        ...


class SessionRecords(Records, Protocol):
    async def session(self, session_id: str) -> SessionRecord | None: ...
    async def sessions(
        self,
        *,
        projects: Collection[str] | None,
        owner: str | None,
        status: str | None,
        limit: int,
        before: tuple[str, str] | None,
    ) -> list[SessionRecord]: ...
    async def sessions_since(self, owner: str, seq: int) -> list[SessionRecord]: ...
    async def ended_sessions(self, projects: Collection[str] | None, until: str) -> list[str]: ...
    async def delete_sessions(self, session_ids: Collection[str]) -> None: ...
    async def flush(self) -> None: ...


class Sessions:
    """The registry. `run` must be running; what it runs ends with it."""

    def __init__(
        self,
        records: SessionRecords,
        journal: Journal,
        links: Links,
        projects: Projects,
        workforce: Workforce,
        limits: SessionLimits,
    ) -> None:
        self.journal = journal
        self.watchers: set[SessionHook] = set()
        self._records = records
        self._links = links
        self._projects = projects
        self._workforce = workforce
        self.limits = limits
        # In the order of starting, so each parent before its children.
        self._live: dict[str, Session] = {}
        self._recent: OrderedDict[str, Session] = OrderedDict()
        self._nursery: trio.Nursery | None = None
        self._closing = False
        self._cleaning = trio.Lock()

    @property
    def agents(self) -> Collection[str]:
        """The names of the agent profiles."""
        return self._workforce.agents.keys()

    @property
    def runtimes(self) -> Collection[str]:
        """The names of the runtimes that are to be had here."""
        return self._workforce.runtimes.keys()

    def is_external(self, agent: str) -> bool:
        """Whether the profile `agent` starts nothing."""
        return agent in self._workforce.agents and self._workforce.agents[agent] is None

    @property
    def live(self) -> Collection[Session]:
        return self._live.values()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Owns every session's task, and ends sessions that nobody uses. Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._expire)
            task_status.started()
            await trio.sleep_forever()

    async def start(
        self, new: NewSession, hook: SessionHook = lambda session: None
    ) -> tuple[Session, TurnInLine | None]:
        """Starts a session with its first message; returns when it is recorded and its agent is under way.

        `hook` is called before its first event. Raises `InvalidParams` for an unknown agent and for a runtime that is
        not to be had here, `LimitExceeded` and `ShuttingDown`; then nothing was started.
        """
        self._check(new)
        session = self._make(new)
        listener = self._links.open(session)
        # From here on it counts against the limits, and a stop of the daemon waits for it.
        self._enter(session, new.parent)
        try:
            await self._record(session)
        except BaseException:
            listener.close()
            self._leave(session, new.parent)
            raise
        assert self._nursery is not None
        # A context of its own: a session would keep the request that started it in memory for as long as it lives.
        contextvars.Context().run(self._nursery.start_soon, self._live_through, session, listener, new.parent)
        for watcher in (hook, *self.watchers):
            watcher(session)
        session.started(listener.path)
        log.info(
            "session started",
            session=session.id,
            project=session.project_id,
            agent=session.agent_name,
            parent=session.parent_id,
        )
        return session, session.message(new.message)

    async def spawn(self, parent: Session, message: str) -> tuple[Session, TurnInLine | None]:
        """Starts a child of `parent` with its first message: in its project, workspace and runtime, with its agent, its
        owner and its caller's tools.

        Raises `LimitExceeded` where it would be too deep or one too many, `Conflict` where the parent has ended, and
        as `start` does.
        """
        parent.check_open()
        check_family(parent, self.limits)
        project = self._projects.project(parent.project_id)
        new = NewSession(
            owner=parent.owner,
            project=project,
            workspace=self._projects.workspace(project, parent.workspace_id),
            agent=parent.agent_name,
            message=message,
            declaration=parent.declaration,
            parent=parent,
        )
        return await self.start(new)

    async def message(
        self, session: Session, text: str, *, declaration: Declaration | None = None, interrupt: bool = False
    ) -> TurnInLine | None:
        """Gives a session its next message, and new tools first, which its descendants get too.

        Raises as `Session.message` does.
        """
        session.check_open()
        session.check_line(interrupt=interrupt)
        if declaration is not None:
            self._declare_beneath(session, declaration)
            session.declare(declaration)
            # Records are written in order: when this one is, those of the descendants are.
            await self._records.save_session(session.record)
        return session.message(text, interrupt=interrupt)

    def _declare_beneath(self, parent: Session, declaration: Declaration) -> None:
        for session in parent.descendants:
            session.declare(declaration)
            # One that is being started is recorded by who starts it, or not at all.
            if session.socket is not None:
                self._records.post_session(session.record)

    async def end(self, session: Session, reason: EndReason = "ended") -> None:
        """Ends a session with its descendants and returns when that is recorded; one that has ended is left alone."""
        if not session.over.is_set():
            session.end(reason)
            await session.over.wait()
            # What it left behind is queued. Saving it here once more could bring back a session that was removed.
            await self._records.flush()

    async def end_all(self, reason: EndReason) -> None:
        """Refuses new sessions, ends every one there is, and returns when the last one has gone."""
        self._closing = True
        sessions = list(self._live.values())
        for session in sessions:
            session.end(reason)
        for session in sessions:
            await session.over.wait()

    async def find(self, session_id: str) -> Session:
        """Returns a session of any day. Raises `NotFound`."""
        session = self._live.get(session_id) or self._recent.get(session_id)
        if session is None:
            record = await self._records.session(session_id)
            # It may have been started while the records were read.
            session = self._live.get(session_id) or (self.archived(record) if record else None)
        if session is None:
            raise NotFound(f"no session {session_id!r}", field="session_id")
        return session

    async def page(
        self, *, projects: Collection[str] | None, status: str | None, limit: int, before: tuple[str, str] | None
    ) -> list[Session]:
        """Returns sessions, newest first; `before` is the (created_at, id) of the last one of the page before."""
        records = await self._records.sessions(projects=projects, owner=None, status=status, limit=limit, before=before)
        return [self._known(record) for record in records]

    def within(self, place: str) -> list[Session]:
        """Returns the sessions of a project or a workspace, by its id, that are not yet over."""
        return [session for session in self._live.values() if place in (session.project_id, session.workspace_id)]

    def active(self, place: str) -> list[Session]:
        """Returns those of them that nobody has ended."""
        return [session for session in self.within(place) if not session.ending.is_set()]

    async def clean_up(self, projects: Collection[str] | None, until: str) -> int:
        """Removes the sessions of these projects (None: of all) that had ended by `until`, an RFC 3339 time.

        Returns how many. Raises `InternalError` where they cannot be removed; some may have been.
        """
        async with self._cleaning:
            ended = await self._records.ended_sessions(projects, until)
            # One that has just ended may still be saying goodbye.
            ids = [session_id for session_id in ended if session_id not in self._live]
            for start in range(0, len(ids), MAX_REMOVED):
                await self._remove(ids[start : start + MAX_REMOVED])
        return len(ids)

    async def _remove(self, session_ids: list[str]) -> None:
        try:
            await self._records.delete_sessions(session_ids)
        finally:
            # Also where this is cancelled, as the records may be removed all the same.
            for session_id in session_ids:
                self._recent.pop(session_id, None)

    def forget(self, project_id: str) -> None:
        """Forgets the ended sessions of a project that was deleted."""
        for session in [one for one in self._recent.values() if one.project_id == project_id]:
            del self._recent[session.id]

    def owned(self, owner: str) -> list[Session]:
        """Returns the sessions of `owner` that are under way."""
        return [session for session in self._live.values() if session.owner == owner]

    def lose_owner(self, owner: str) -> None:
        """Says that `owner` cannot come back: nobody answers what its sessions' agents ask."""
        for session in self.owned(owner):
            session.lose_owner()

    async def owned_since(self, owner: str, seq: int) -> list[Session]:
        """Returns the sessions of `owner` that are under way or have had an event after `seq`."""
        records = await self._records.sessions_since(owner, seq)
        ended = [self._known(record) for record in records if record.session_id not in self._live]
        return [*self.owned(owner), *ended]

    def _known(self, record: SessionRecord) -> Session:
        return self._live.get(record.session_id) or self._recent.get(record.session_id) or self.archived(record)

    def archived(self, record: SessionRecord) -> Session:
        """Returns a session that can only be read."""
        return Session(record, self.journal, self.limits.relay)

    async def _record(self, session: Session) -> None:
        """Stores a new session, or leaves nothing of it behind that goes on."""
        try:
            await self._records.save_session(session.record)
        except Exception:
            session.abandon(None)
            raise
        except BaseException:
            # A write that is cancelled "may be carried out all the same": then the end must be recorded too.
            session.abandon(self._records)
            raise
        if session.ending.is_set():
            session.abandon(self._records)
            self._check_running()
            session.check_open()

    def _check_running(self) -> None:
        if self._closing:
            raise ShuttingDown("the daemon is stopping; no session was started")

    def _check(self, new: NewSession) -> None:
        self._check_running()
        if new.agent not in self.agents:
            raise InvalidParams(f"unknown agent {new.agent!r}; one of: {', '.join(self.agents)}", field="agent")
        active = sum(session.project_id == new.project.project_id for session in self._live.values())
        if active >= self.limits.max_active_per_project:
            raise LimitExceeded(f"project {new.project.project_id!r} has {active} active sessions, as many as it may")

    def _make(self, new: NewSession) -> Session:
        parent = new.parent
        runtime = self._workforce.runtime(parent.runtime if parent else new.project.runtime)
        workplace = self._workforce.workplace(
            new.agent,
            runtime,
            self._projects.folder(new.workspace),
            partial(self._projects.environment, new.workspace),
        )
        record = new_record(new, runtime.name)
        session = Session(record, self.journal, self.limits.relay, workplace)
        if parent is not None and parent.has_lost_owner:
            session.lose_owner()
        if new.declaration is not None:
            session.declare(new.declaration)
        return session

    def _enter(self, session: Session, parent: Session | None) -> None:
        self._live[session.id] = session
        if parent is not None:
            parent.children.append(session)

    def _leave(self, session: Session, parent: Session | None) -> None:
        del self._live[session.id]
        if parent is not None:
            parent.children.remove(session)

    async def _live_through(self, session: Session, listener: Listener, parent: Session | None) -> None:
        """A session's task: whatever goes wrong in it ends with it."""
        try:
            with span("session", session=session.id):
                await session.run(listener, self._records)
        except Exception:
            log.exception("a session failed", session=session.id)
        finally:
            self._leave(session, parent)
            self._remember(session)

    def _remember(self, session: Session) -> None:
        self._recent[session.id] = session
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)

    async def _expire(self) -> None:
        """Ends sessions without event or stream for `idle_timeout` seconds."""
        timeout = self.limits.idle_timeout
        while timeout:
            await trio.sleep(timeout / 4)
            for session in idle_since(self._live.values(), trio.current_time() - timeout):
                session.end("idle")
