"""A stream: one open delivery of events to a principal (WIRE, "Words" and sections 3 and 4.3).

It covers one session or several, counts as the owner's presence in those that its principal owns, and hands out
batches: first the requests that are pending or what the records hold after a resume point, then what is appended.
Whoever writes a batch must hand it to its transport without a checkpoint in between: what `batch` returns is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from oubliette import clock
from oubliette.events import MAX_BATCH, MAX_BATCH_BYTES, Entry, EventLog, Feed, FellBehindError, within_bounds
from oubliette.protocol.events import EventsPurged
from oubliette.records import StoredEvent
from oubliette.relay import Relay

# One page of the records; a bound on what a replay holds in memory.
HISTORY_PAGE: Final = 500
# One page of `ready`, which becomes one answer: as long as the longest message may be. One event may be longer.
MAX_READY_BYTES: Final = 4 * 1024 * 1024


class Followed(Protocol):
    """What a stream needs of a session."""

    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def log(self) -> EventLog: ...
    @property
    def relay(self) -> Relay: ...


class EventRecords(Protocol):
    """Where older events are read from; `Store` is the one of production."""

    async def events_of(self, session_id: str, after_index: int, limit: int) -> list[StoredEvent]: ...
    async def events_after(self, seq: int, sessions: Collection[str], limit: int) -> list[StoredEvent]: ...
    async def last_indexes(self, seq: int, sessions: Collection[str]) -> dict[str, int]: ...


class History(Protocol):
    """What the records hold between a resume point and the moment at which the stream was opened."""

    async def page(self) -> list[Entry]:
        """Returns the next events, none at the end."""
        ...


class SessionHistory:
    """Events `after` to `until` of one session."""

    def __init__(self, records: EventRecords, session_id: str, after: int, until: int) -> None:
        self._records = records
        self._session_id = session_id
        self._after = after
        self._until = until

    async def page(self) -> list[Entry]:
        if self._after >= self._until:
            return []
        stored = await self._records.events_of(self._session_id, self._after, HISTORY_PAGE)
        entries = [_entry(event) for event in stored if event.index <= self._until]
        if not entries:
            # The session was removed while this was read: "where something asked for is gone, `events_purged` …".
            entries = [_notice(self._session_id, self._after, self._until + 1)]
        self._after = entries[-1].index or self._until
        return entries


class CommonHistory:
    """What several sessions had after `seq` and until `until`; of each only what comes after its index in `starts`."""

    def __init__(self, records: EventRecords, starts: dict[str, int], seq: int, until: int) -> None:
        self._records = records
        self._starts = starts
        self._seq = seq
        self._until = until

    async def page(self) -> list[Entry]:
        while self._seq < self._until:
            stored = await self._records.events_after(self._seq, self._starts, HISTORY_PAGE)
            self._seq = stored[-1].seq if stored else self._until
            wanted = [_entry(event) for event in stored if self._is_wanted(event)]
            if wanted:
                return wanted
        return []

    def _is_wanted(self, event: StoredEvent) -> bool:
        return event.seq <= self._until and event.index > self._starts[event.session_id]


class Stream:
    """One principal's delivery. Use it as a context manager: leaving it detaches it from every session."""

    def __init__(self, principal: str, records: EventRecords, *, counts: bool = True) -> None:
        self._principal = principal
        self._records = records
        self._counts = counts
        self._feed = Feed()
        self._sessions: dict[str, Followed] = {}
        # What comes before all else: pending requests, and what a bounded batch left over.
        self._at_once: deque[Entry] = deque()
        self._histories: deque[History] = deque()
        self._delivered: dict[str, int] = {}
        self._stays_open = False
        self._ends_when_read = False
        self.has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def stay_open(self) -> Self:
        """Says that the stream goes on when its sessions have ended: others may come."""
        self._stays_open = True
        return self

    def cover(self, session: Followed, after: int | None = None, *, seen: int = 0) -> None:
        """Delivers a session's events after index `after`; without it what is pending, then what is appended.

        Pending requests up to index `seen` were given on this stream before: "at most once on one stream".
        """
        if session.id in self._sessions:
            return
        self._sessions[session.id] = session
        if self._is_presence_in(session):
            session.relay.attach()
        if after is None:
            self._at_once.extend(entry for entry in session.relay.pending_entries() if entry.index > seen)
        self._read_from(session, session.log.last_index if after is None else after)

    def _read_from(self, session: Followed, after: int) -> None:
        log = session.log
        self._delivered[session.id] = after
        if after >= log.first_index - 1:
            self._feed.cover(log, after)
        else:
            self._histories.append(SessionHistory(self._records, session.id, after, log.last_index))
            self._feed.cover(log, log.last_index)

    async def resume(self, seq: int, sessions: Iterable[tuple[Followed, int]], newest: int) -> None:
        """Delivers what came after `seq` in each session, but not what comes before its index.

        `newest` is the journal's newest number. Either all of it comes from the rings or all from the records up to
        now, so that what is delivered is in order and any `id:` is a valid resume point. A session that is covered
        already, as one that has just started may be, is left as it is.
        """
        starts = {session: start for session, start in sessions if session.id not in self._sessions}
        ids = {session.id: start for session, start in starts.items()}
        in_rings = all(session.log.evicted_seq <= seq for session in starts)
        for session, start in starts.items():
            log = session.log
            self.cover(session, max(start, log.index_at(seq)) if in_rings else log.last_index)
        if not in_rings:
            self._histories.append(CommonHistory(self._records, ids, seq, newest))
            known = await self._records.last_indexes(seq, ids)
            self._delivered |= {id: max(start, known.get(id, start)) for id, start in ids.items()}

    def close(self, linger: float = 0) -> None:
        """Detaches the stream from every session; a poll lingers for some seconds. May be repeated."""
        for session in list(self._sessions.values()):
            self._leave(session, linger)
        self.end()

    def end(self) -> None:
        """Makes `batch` return nothing more, so that its writer leaves."""
        self.has_ended = True
        self._feed.wake()

    def finish(self) -> None:
        """Makes the stream end when its sessions have ended and all was read: the daemon stops."""
        self._stays_open = False
        self._feed.wake()

    def end_when_read(self) -> None:
        """Makes the stream end behind what has happened up to now."""
        self._ends_when_read = True
        self._feed.wake()

    def mute(self) -> list[tuple[Followed, int]]:
        """Stops delivering and counting. Returns the sessions and the index up to which each was read."""
        muted = [(session, self._read_until(session)) for session in self._sessions.values()]
        for session, _ in muted:
            self._leave(session)
        self._at_once.clear()
        self._histories.clear()
        return muted

    def _read_until(self, session: Followed) -> int:
        waiting = (entry.index - 1 for entry in self._at_once if entry.session_id == session.id)
        return min((self._delivered[session.id], *waiting))

    async def batch(self, limit: int = MAX_BATCH) -> list[Entry]:
        """Waits for events and returns at most `limit` of them; nothing when the stream has ended.

        An entry with index 0 is sent without an `id:`. Raises `FellBehindError` where the reader was too slow.
        """
        while not self.has_ended:
            if entries := await self._next():
                if given := self._give(entries, limit, MAX_BATCH_BYTES):
                    return given
                continue
            self._leave_ended()
            if self._ends_when_read or (not self._sessions and not self._stays_open):
                break
            await self._feed.wait()
        return []

    async def ready(self, limit: int) -> list[Entry]:
        """Returns up to `limit` events that are there already, fewer where they are long."""
        found: list[Entry] = []
        size = 0
        # A ring that went on while the records were read ends the page: the next one begins in the records again.
        with suppress(FellBehindError):
            while len(found) < limit and size < MAX_READY_BYTES and (more := await self._next()):
                found += more
                size += sum(len(entry.data) for entry in more)
        return self._give(found, limit, MAX_READY_BYTES)

    async def _next(self) -> list[Entry]:
        if self._at_once:
            waiting = list(self._at_once)
            self._at_once.clear()
            return waiting
        while self._histories:
            history = self._histories[0]
            if page := await history.page():
                return page
            # Unless it was muted meanwhile.
            with suppress(ValueError):
                self._histories.remove(history)
        return self._feed.take()

    def _give(self, entries: list[Entry], limit: int, most_bytes: int) -> list[Entry]:
        taken = within_bounds(entries, limit, most_bytes)
        self._at_once.extendleft(reversed(entries[len(taken) :]))
        # A stream may have been muted while the records were read.
        covered = [entry for entry in taken if entry.session_id in self._sessions]
        for entry in covered:
            session = self._sessions[entry.session_id]
            if self._is_owners(session) and entry.type == "caller_tool_request":
                session.relay.give(entry.index)
        return [numbered for entry in covered for numbered in self._in_sequence(entry)]

    def _in_sequence(self, entry: Entry) -> list[Entry]:
        """The entry, without its number where it is given again, behind a notice where those before it are gone."""
        delivered = self._delivered.get(entry.session_id, entry.index - 1)
        if entry.index <= delivered:
            return [Entry(0, entry.session_id, 0, entry.type, entry.data)]
        self._delivered[entry.session_id] = entry.index
        return [entry] if entry.index == delivered + 1 else [_notice(entry.session_id, delivered, entry.index), entry]

    def _leave_ended(self) -> None:
        ended = [session for session in self._sessions.values() if self._feed.has_finished(session.log)]
        for session in ended:
            self._leave(session)

    def _leave(self, session: Followed, linger: float = 0) -> None:
        del self._sessions[session.id]
        self._delivered.pop(session.id, None)
        self._feed.drop(session.log)
        if self._is_presence_in(session):
            session.relay.detach(linger)

    def _is_owners(self, session: Followed) -> bool:
        return session.owner == self._principal

    def _is_presence_in(self, session: Followed) -> bool:
        return self._counts and session.owner == self._principal


def _entry(event: StoredEvent) -> Entry:
    return Entry(event.seq, event.session_id, event.index, event.type, event.data)


def _notice(session_id: str, delivered: int, first_index: int) -> Entry:
    notice = EventsPurged(session_id=session_id, since_index=delivered, first_index=first_index, ts=clock.now())
    return Entry(0, session_id, 0, "events_purged", msgspec.json.encode(notice))
