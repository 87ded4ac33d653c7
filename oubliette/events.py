"""The log of a session's events and the feeds that read it.

An `EventLog` numbers events within its session (`index`, without gaps) and keeps the newest ones in a ring. The
`Journal` behind all logs numbers them across sessions (`seq`), so that one number says how far a reader of many
sessions has come, and hands each event to the records.

A `Feed` is one reader of one or more logs. It holds positions, never events: however many readers there are and
however slow they are, events are kept once, in the ring, and a reader that falls out of the ring is told so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
import trio
from msgspec import Struct

from oubliette import clock
from oubliette.protocol.events import CallerToolResolved, Event
from oubliette.records import StoredEvent

# One write of a stream: enough to amortise it, little enough to hold for each stream. One event may be longer.
MAX_BATCH: Final = 256
MAX_BATCH_BYTES: Final = 256 * 1024
# Asks nothing of its reader, whom the answer to its own request has told already: it may travel with what comes next.
_CAN_WAIT: Final = CallerToolResolved
# How long such an event waits for company, in seconds. A caller with one call in flight saves a wake-up for each.
LINGER: Final = 0.01
_encoder: Final = msgspec.json.Encoder()


class Entry(Struct, frozen=True, gc=False):
    """One event, encoded once for all readers. `index` 0 is a notice to one reader, not an event of the session."""

    seq: int
    session_id: str
    index: int
    type: str
    data: bytes


class EventSink(Protocol):
    """Where events are kept for good; `Store` is the one of production."""

    @property
    def has_room(self) -> bool: ...

    def append_event(self, event: StoredEvent) -> None: ...


class RingLimits(Struct, frozen=True, kw_only=True):
    """How much one session's ring holds: WIRE section 4.3."""

    events: int = 4000
    bytes: int = 16 * 1024 * 1024


class FellBehindError(Exception):
    """A reader asked for events that the ring no longer holds; it may resume from the records."""


class Journal:
    """What all logs share: the sequence over sessions, the records, the size of a ring."""

    def __init__(self, sink: EventSink, limits: RingLimits, last_seq: int = 0) -> None:
        self.sink = sink
        self.limits = limits
        self.last_seq = last_seq

    @property
    def has_room(self) -> bool:
        """Whether new work may be taken on: the records are not too far behind. Endings are always recorded."""
        return self.sink.has_room

    def record(self, session_id: str, index: int, event: Event) -> Entry:
        """Gives an event its number over all sessions and passes it to the records."""
        self.last_seq += 1
        kind = str(event.__struct_config__.tag)
        entry = Entry(self.last_seq, session_id, index, kind, _encoder.encode(event))
        self.sink.append_event(
            StoredEvent(seq=entry.seq, session_id=session_id, index=index, type=kind, data=entry.data)
        )
        return entry


class EventLog:
    """The events of one session, the newest in memory.

    `last_index` is that of the newest event, 0 for none. A log that is `closed` gets no more events. `last_used` is
    when an event was last appended or a reader last left, in trio's time.
    """

    def __init__(self, session_id: str, journal: Journal, last_index: int = 0) -> None:
        self.session_id = session_id
        self.last_index = last_index
        self.last_used = trio.current_time()
        self.closed = False
        self.evicted_seq = journal.last_seq if last_index else 0
        self._journal = journal
        self._ring: deque[Entry] = deque()
        self._bytes = 0
        self._feeds: list[Feed] = []
        # Told of every change; unlike a feed, none of them is a reader of events.
        self.watchers: dict[object, Callable[[], None]] = {}

    @property
    def first_index(self) -> int:
        """The index of the oldest event in the ring, or of the next one where the ring is empty."""
        return self.last_index - len(self._ring) + 1

    @property
    def is_followed(self) -> bool:
        return bool(self._feeds)

    @property
    def has_room(self) -> bool:
        return self._journal.has_room

    def append(self, kind: type[Event], /, **fields: Any) -> Entry:
        """Appends an event of type `kind` with its own `fields` and wakes the feeds, some kinds soon. Never waits."""
        self.last_index += 1
        event = kind(session_id=self.session_id, index=self.last_index, ts=clock.now(), **fields)
        entry = self._journal.record(self.session_id, self.last_index, event)
        self._ring.append(entry)
        self._bytes += len(entry.data)
        self._evict()
        self.last_used = trio.current_time()
        self._notify(can_wait=kind is _CAN_WAIT)
        return entry

    def close(self) -> None:
        """Says that the last event was appended: those who follow can leave, and the last one clears the ring."""
        self.closed = True
        self._notify()
        self._clear_if_done()

    def _notify(self, *, can_wait: bool = False) -> None:
        for feed in self._feeds:
            feed.notify(self, can_wait=can_wait)
        for watcher in self.watchers.values():
            watcher()

    def after(self, index: int, limit: int) -> list[Entry]:
        """Returns up to `limit` events after `index`. Raises `FellBehindError` where the ring begins later."""
        skip = index - self.first_index + 1
        if skip < 0:
            raise FellBehindError(self.session_id)
        return [self._ring[at] for at in range(skip, min(skip + limit, len(self._ring)))]

    def index_at(self, seq: int) -> int:
        """Returns the index of the newest event that is not newer than `seq`, as far as the ring tells."""
        newer = 0
        for entry in reversed(self._ring):
            if entry.seq <= seq:
                break
            newer += 1
        return self.last_index - newer

    def _evict(self) -> None:
        limits = self._journal.limits
        # The newest event stays, however long: a reader that keeps up must be able to get it.
        while len(self._ring) > limits.events or (self._bytes > limits.bytes and len(self._ring) > 1):
            oldest = self._ring.popleft()
            self._bytes -= len(oldest.data)
            self.evicted_seq = oldest.seq

    def add_feed(self, feed: Feed) -> None:
        self._feeds.append(feed)

    def remove_feed(self, feed: Feed) -> None:
        self._feeds.remove(feed)
        self.last_used = trio.current_time()
        self._clear_if_done()

    def _clear_if_done(self) -> None:
        """What nobody is reading any more is in the records."""
        if self.closed and not self._feeds and self._ring:
            self.evicted_seq = self._ring[-1].seq
            self._ring.clear()
            self._bytes = 0


class Feed:
    """One reader's positions in the logs that it covers, and what wakes it."""

    def __init__(self) -> None:
        self._positions: dict[EventLog, int] = {}
        self._ready: dict[EventLog, None] = {}
        self._wake = trio.Event()
        self._waiting = trio.CancelScope()

    def cover(self, log: EventLog, after: int) -> None:
        """Reads `log` from the event after index `after` on."""
        self._positions[log] = after
        log.add_feed(self)
        if after < log.last_index:
            self.notify(log)

    def drop(self, log: EventLog) -> None:
        """Stops reading `log`."""
        del self._positions[log]
        self._ready.pop(log, None)
        log.remove_feed(self)

    def notify(self, log: EventLog, *, can_wait: bool = False) -> None:
        """Wakes the reader: `log` has something new, or was closed. What `can_wait` wakes it within `LINGER`."""
        self._ready[log] = None
        if can_wait:
            self._waiting.deadline = min(self._waiting.deadline, trio.current_time() + LINGER)
        else:
            self._wake.set()

    def wake(self) -> None:
        """Wakes the reader for a reason of its own."""
        self._wake.set()

    def has_finished(self, log: EventLog) -> bool:
        """Whether nothing more can come from `log`: it is closed and read to its end."""
        return log.closed and self._positions[log] >= log.last_index

    async def wait(self) -> None:
        """Waits until there may be something to `take`, or until `wake`."""
        if not self._ready:
            self._wake = trio.Event()
            with trio.CancelScope() as self._waiting:
                await self._wake.wait()

    def take(self) -> list[Entry]:
        """Returns what is ready, at most `MAX_BATCH` events in the order in which they happened, over all logs.

        Raises `FellBehindError` where a ring no longer holds what comes next.
        """
        # The oldest MAX_BATCH over all logs are among the oldest MAX_BATCH of each.
        found = [entry for log in self._ready for entry in log.after(self._positions[log], MAX_BATCH)]
        if len(self._ready) > 1:
            found.sort(key=_by_seq)
        batch = within_bounds(found)
        self._advance(batch)
        return batch

    def _advance(self, batch: list[Entry]) -> None:
        newest = {entry.session_id: entry.index for entry in batch}
        for log in list(self._ready):
            self._positions[log] = newest.get(log.session_id, self._positions[log])
            if self._positions[log] >= log.last_index:
                del self._ready[log]


def within_bounds(entries: list[Entry], most: int = MAX_BATCH, most_bytes: int = MAX_BATCH_BYTES) -> list[Entry]:
    """Returns the first of `entries`: at most `most`, of `most_bytes` together, and one however long it is."""
    size = 0
    for count, entry in enumerate(entries):
        size += len(entry.data)
        if count == most or (count and size > most_bytes):
            return entries[:count]
    return entries


def _by_seq(entry: Entry) -> int:
    return entry.seq
