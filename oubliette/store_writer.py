"""The store's writer: a queue of changes, and the task that writes them in batches (`store.py` tells how and why)."""

from __future__ import annotations

import sqlite3
from typing import Final

import structlog
import trio

from oubliette import store_schema as schema
from oubliette.records import StoredEvent
from oubliette.store_files import StoreError
from oubliette.store_schema import Statement

# WIRE owes 50 ms from the event to the store: 30 to gather a batch, 20 for its commit.
EVENT_DELAY: Final = 0.03
# What may be queued before new work is refused: half a minute of 1,600 events a second behind a disk that fails.
MAX_BACKLOG: Final = 50_000
# And what it may weigh, for one event may have 4 MiB.
MAX_BACKLOG_BYTES: Final = 256 * 1024 * 1024
# Between two tries to write to a disk that failed, in seconds, doubling.
FIRST_RETRY: Final = 0.1
LAST_RETRY: Final = 2.0
# How long `run`, once cancelled, goes on trying to write what is queued.
CLOSE_SECONDS: Final = 2.0

UNWRITABLE: Final = "records cannot be written right now"

# Written with the batch after a failed one: a transaction that changes nothing succeeds on a full disk.
_PROBE: Final = Statement("INSERT OR REPLACE INTO meta VALUES ('probe', datetime())")
# What `flush` queues: it changes nothing, and is done when all that was queued before it is.
_BARRIER: Final = Statement("SELECT 1")

log = structlog.get_logger("oubliette.store")


class _Write:
    """One queued change of a record; `key` says of what. `done` is set when it is settled."""

    __slots__ = ("done", "failure", "is_awaited", "key", "statement")

    def __init__(self, statement: Statement, key: str, *, is_awaited: bool) -> None:
        self.statement = statement
        self.key = key
        self.is_awaited = is_awaited
        self.done = trio.Event()
        self.failure: Exception | None = None

    def settle(self, failure: Exception | None) -> None:
        self.failure = failure
        self.done.set()
        if failure is not None and not self.is_awaited:
            log.error("record dropped", what=self.key, reason=str(failure))


class Writer:
    """What is queued for one connection, and the task that writes it.

    `healthy` is whether the last try to write succeeded, `last_error` why it did not. `events` are those that are not
    known to be in the database yet, in the order of their `seq`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.healthy = True
        self.last_error: str | None = None
        self.events: list[StoredEvent] = []
        self._records: list[_Write] = []
        self._event_bytes = 0
        self._connection = connection
        self._turn = trio.CapacityLimiter(1)
        self._queued, self._urgent = trio.Event(), trio.Event()
        self._due = 0.0
        self._retry_delay = FIRST_RETRY
        self._room = trio.lowlevel.ParkingLot()
        self._closed = False

    @property
    def is_empty(self) -> bool:
        """Whether all that was queued is durable, or was refused."""
        return not self._records and not self.events

    @property
    def has_room(self) -> bool:
        """Whether fewer than MAX_BACKLOG events and MAX_BACKLOG_BYTES are queued."""
        return len(self.events) < MAX_BACKLOG and self._event_bytes < MAX_BACKLOG_BYTES and not self._closed

    async def wait_for_room(self) -> None:
        """Returns when there is room. Raises StoreError once the queue is closed."""
        await trio.lowlevel.checkpoint()
        while not self.has_room:
            self._refuse_if_closed()
            await self._room.park()

    def append(self, event: StoredEvent) -> None:
        """Queues an event."""
        self._refuse_if_closed()
        self.events.append(event)
        self._event_bytes += len(event.data)
        self._wake(urgent=False)

    def post(self, statement: Statement, key: str) -> None:
        """Queues a change of what `key` names. While the disk fails, only the newest of each key is kept."""
        self._queue(_Write(statement, key, is_awaited=False))

    async def write(self, statement: Statement, key: str) -> None:
        """Queues a change and returns when it is durable. Raises StoreError where it could not be written."""
        write = _Write(statement, key, is_awaited=True)
        self._queue(write)
        await write.done.wait()
        if write.failure is not None:
            raise StoreError(UNWRITABLE) from write.failure

    async def flush(self) -> None:
        """Returns when everything queued before is durable. Raises StoreError where the next try to write it fails."""
        if self.is_empty:
            await trio.lowlevel.checkpoint()
        else:
            await self.write(_BARRIER, "flush")

    async def run(self) -> None:
        """Writes what is queued until it is cancelled, then what is left, within CLOSE_SECONDS; then nothing more."""
        try:
            while True:
                await self._wait_for_batch()
                await self._write_batch()
        finally:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._drain()
            self.close()

    def close(self) -> None:
        """Refuses everything from now on, and tells who waits. What could not be written stays in the queue."""
        if self._closed:
            return
        self._closed = True
        for write in self._records:
            write.settle(StoreError("the records were closed before this was written"))
        self._room.unpark_all()

    def _queue(self, write: _Write) -> None:
        self._refuse_if_closed()
        self._records.append(write)
        self._wake(urgent=write.is_awaited)

    def _wake(self, *, urgent: bool) -> None:
        if not self._queued.is_set():
            self._due = trio.current_time() + EVENT_DELAY
            self._queued.set()
        if urgent:
            self._urgent.set()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError("the records are closed")

    async def _wait_for_batch(self) -> None:
        if not self.healthy:
            await trio.sleep(self._retry_delay)
            return
        await self._queued.wait()
        with trio.move_on_at(self._due):
            await self._urgent.wait()

    async def _write_batch(self) -> None:
        self._queued, self._urgent = trio.Event(), trio.Event()
        writes, events = self._records[:], self.events[:]
        statements = [write.statement for write in writes] + [_PROBE] * (not self.healthy)
        try:
            refusals, refused = await trio.to_thread.run_sync(
                schema.commit, self._connection, statements, events, limiter=self._turn
            )
        except sqlite3.Error as error:
            self._keep_for_later(writes, error)
        else:
            self._take_off(writes, refusals, events)
            for event, reason in refused:
                log.error("event dropped", session=event.session_id, index=event.index, reason=str(reason))

    def _take_off(self, writes: list[_Write], refusals: list[Exception | None], events: list[StoredEvent]) -> None:
        del self._records[: len(writes)], self.events[: len(events)]
        self._event_bytes -= sum(len(event.data) for event in events)
        # A probe's refusal, if there is one, is nobody's.
        for write, refusal in zip(writes, refusals, strict=False):
            write.settle(refusal)
        if not self.healthy:
            log.warning("records are written again")
        self.healthy, self.last_error, self._retry_delay = True, None, FIRST_RETRY
        self._room.unpark_all()

    def _keep_for_later(self, writes: list[_Write], error: sqlite3.Error) -> None:
        if self.healthy:
            log.error("records cannot be written", reason=str(error))
        else:
            self._retry_delay = min(self._retry_delay * 2, LAST_RETRY)
        self.healthy, self.last_error = False, str(error)
        # The newest of each key: however long the disk fails, no more are kept than there are sessions and tokens.
        self._records[: len(writes)] = {write.key: write for write in writes if not write.is_awaited}.values()
        for write in writes:
            if write.is_awaited:
                write.settle(error)

    async def _drain(self) -> None:
        while not self.is_empty:
            await self._write_batch()
            if not self.healthy:
                await trio.sleep(self._retry_delay)
