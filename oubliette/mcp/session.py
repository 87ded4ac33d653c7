"""MCP sessions of the earlier revisions: who they belong to, which events they get, and their one standing stream."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from oubliette.changes import Changes, Watch
from oubliette.errors import LimitExceeded, NotFound
from oubliette.protocol.mcp import Level, delivers_events
from oubliette.protocol.revisions import Revision
from oubliette.session import Session
from oubliette.sessions import Sessions
from oubliette.streams import EventRecords, Followed, Stream
from oubliette.tokens import Principal

# Clients that never send DELETE must not fill the memory (go-sdk #499): an MCP session is a few KiB.
MAX_PER_PRINCIPAL = 10_000
IDLE_SECONDS = 3600.0


class McpSession:
    """One `Mcp-Session-Id`. It covers the agent sessions that it started, messaged or named, and their descendants."""

    def __init__(self, principal: Principal, revision: Revision, records: EventRecords, changes: Changes) -> None:
        self.id = secrets.token_hex(16)
        self.principal = principal
        self.revision = revision
        self.last_used = trio.current_time()
        self.waiting: dict[bytes, trio.CancelScope] = {}
        self.watch = Watch(changes, ("tools", "prompts"))
        self.stream: Stream | None = None
        self._records = records
        # The index after which each agent session is covered: "from the event that made it so".
        self._covered: dict[str, int] = {}
        self._sessions: dict[str, Session] = {}
        self.level: Level = "info"
        self._muted: list[tuple[Followed, int]] = []

    def cover(self, session: Session, after: int | None) -> None:
        """Delivers a session's events from now on, or after index `after`."""
        if session.id in self._covered or session.owner != self.principal.token_id:
            return
        self._forget_ended()
        self._covered[session.id] = session.log.last_index if after is None else after
        self._sessions[session.id] = session
        if self.stream is not None and delivers_events(self.level):
            self.stream.cover(session, after)

    def started(self, session: Session) -> None:
        """Covers a session that was just started, where its parent is covered."""
        if session.parent_id in self._covered:
            self.cover(session, 0)

    @asynccontextmanager
    async def open_stream(self, resume_at: int | None, newest: int) -> AsyncIterator[Stream]:
        """Opens the GET stream, which takes over from the one before it; leaving closes it.

        `resume_at` is how far its reader had come, `newest` the journal's newest number.
        """
        stream = Stream(self.principal.token_id, self._records).stay_open()
        before, self.stream = self.stream, stream
        self._muted = []
        try:
            await self._fill(stream, before, resume_at, newest)
            yield stream
        finally:
            stream.close()
            if self.stream is stream:
                self.stream = None
                self.last_used = trio.current_time()

    async def _fill(self, stream: Stream, before: Stream | None, resume_at: int | None, newest: int) -> None:
        try:
            if delivers_events(self.level) and resume_at is None:
                self._cover_all(stream)
            elif delivers_events(self.level):
                covered = [(session, self._covered[session.id]) for session in self._sessions.values()]
                await stream.resume(resume_at or 0, covered, newest)
        finally:
            # Only now, as the caller must not count as gone in between; and at once, as its peer may be half-open.
            if before is not None:
                before.close()

    def _cover_all(self, stream: Stream) -> None:
        seen = {session.id: index for session, index in self._muted}
        self._muted = []
        for session in self._sessions.values():
            if not session.log.closed:
                stream.cover(session, seen=seen.get(session.id, 0))

    def set_level(self, level: Level) -> None:
        """Sets the log level: "a level above `info` stops the events, and that MCP session then does not count"."""
        did, does = delivers_events(self.level), delivers_events(level)
        self.level = level
        if self.stream is None or did == does:
            return
        if does:
            self._cover_all(self.stream)
        else:
            self._muted = self.stream.mute()

    def close(self) -> None:
        """Ends the MCP session: its stream, and the answers that it waits for. Agent sessions go on."""
        self.watch.close()
        if self.stream is not None:
            self.stream.end()
        for scope in self.waiting.values():
            scope.cancel(reason="the MCP session was deleted")

    def _forget_ended(self) -> None:
        """What has ended and nobody will resume any more: keeps the table as small as what is under way."""
        if len(self._sessions) >= 2 * (1 + sum(not session.over.is_set() for session in self._sessions.values())) + 100:
            for id in [id for id, session in self._sessions.items() if session.over.is_set()]:
                del self._sessions[id], self._covered[id]


class McpSessions:
    """Every MCP session, least recently used first."""

    def __init__(self, sessions: Sessions, records: EventRecords, changes: Changes) -> None:
        self._sessions = sessions
        self._records = records
        self._changes = changes
        self._open: OrderedDict[str, McpSession] = OrderedDict()
        self._count: dict[str, int] = {}

    def open(self, principal: Principal, revision: Revision) -> McpSession:
        """Opens an MCP session. Raises `LimitExceeded` where the principal has too many that are in use."""
        self._expire(trio.current_time())
        if self._count.get(principal.token_id, 0) >= MAX_PER_PRINCIPAL and not self._drop_unused(principal):
            raise LimitExceeded(f"{MAX_PER_PRINCIPAL} MCP sessions are open already; DELETE some")
        session = McpSession(principal, revision, self._records, self._changes)
        self._open[session.id] = session
        self._count[principal.token_id] = self._count.get(principal.token_id, 0) + 1
        self._sessions.watchers.add(session.started)
        return session

    def get(self, id: str, principal: Principal) -> McpSession:
        """Returns an MCP session. Raises `NotFound`, also to everyone but its principal."""
        session = self._open.get(id)
        if session is None or session.principal.token_id != principal.token_id:
            raise NotFound("no such MCP session; initialize again")
        session.last_used = trio.current_time()
        self._open.move_to_end(id)
        return session

    def drop(self, token_id: str) -> None:
        """Ends the MCP sessions of a principal whose token is worthless."""
        for session in [session for session in self._open.values() if session.principal.token_id == token_id]:
            self.close(session)
        self._count.pop(token_id, None)

    def close(self, session: McpSession) -> None:
        """Ends an MCP session. May be repeated."""
        if self._open.pop(session.id, None) is None:
            return
        self._count[session.principal.token_id] -= 1
        self._sessions.watchers.discard(session.started)
        session.close()

    def standing(self) -> list[Stream]:
        """Returns the GET streams that are open."""
        return [session.stream for session in self._open.values() if session.stream is not None]

    def _expire(self, now: float) -> None:
        """Closes what was not used for an hour. A stream is a use for as long as it is open."""
        for session in list(self._open.values()):
            if session.stream is None and session.last_used <= now - IDLE_SECONDS:
                self.close(session)

    def _drop_unused(self, principal: Principal) -> bool:
        for session in self._open.values():
            if session.principal.token_id == principal.token_id and session.stream is None:
                self.close(session)
                return True
        return False
