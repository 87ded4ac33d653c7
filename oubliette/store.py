"""The store: what the daemon must still know after it was stopped, and the one task that writes it.

Theory of operation
-------------------

**Two promises** (WIRE section 5). "Acknowledged, and so never lost": a `save_…` or `delete_…` returns when its change
is on the disk, and raises where it is not. "Events reach the store within 50 ms and are not waited for":
`append_event` and the `post_…` put a value into a queue and return.

**One writer, group commit** (`store_writer.py`). A task writes everything that is queued in one transaction, in a
thread; what comes in meanwhile is the next batch. Whoever waits for a write makes the batch go at once, so writers that
come together share one commit; a batch that nobody waits for goes EVENT_DELAY after its first entry. A value leaves the
queue only when its transaction is on the disk, so a failed or cancelled attempt has nothing to put back, and what is
queued and what is being written are one list.

**Order.** Within a batch, records are written in the order of the calls and before all events, which refer to their
session. Batches keep the order of the calls.

**What survives what.** The log is flushed to the disk with every commit (`synchronous = FULL`), so an acknowledged
change survives the loss of power and not only of the process. That costs one flush for a batch, not for a change:
0.35 ms beside 0.03 ms where it was measured, and some 5 µs of CPU for an event at 32 a batch.

**A failing disk** (HAZARDS F26) stops no relaying. Those who wait for the batch get a StoreError and their changes are
dropped: nobody was promised anything. Events and posts stay queued and are tried again, with back-off; `healthy` is
False until a try succeeds. With nothing to write, the tries write a mark of their own, so that readiness recovers
without new work. From MAX_BACKLOG on `has_room` is False: producers of new work ask it and refuse, while the endings of
what is under way are always accepted. A value that SQLite refuses for its own sake (a key that does not exist) would
fail for ever: it is dropped and logged, alone.

**Reads see every write made before them.** Pages of events add what is still queued to what the database has, so they
neither wait for a commit nor lack their end while the disk fails. Reads of sessions first wait for what is queued;
while the disk fails they answer with what the database has.

**After an unclean stop** events that streams were given may be missing: at most what was queued. Their numbers must
not be used again, so `open` raises the highest `seq` by RESERVED, durably, and whoever closes an interrupted session
raises its index by the same `next_after_crash` and awaits `flush` before anybody can ask. A clean stop leaves a mark
behind, and nothing is skipped.

SQL runs in threads only, one for the writer and one for the readers, with limiters of their own, so that it waits for
nobody else's threads. The exceptions are `open`, the reads of the start, and the `close` of a store that never ran. A
thread is never abandoned: a statement waits 5 s at most for a lock, and behind a disk that hangs for good stands the
daemon's hard exit.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import Final, NoReturn, Self, TypeVar, TypeVarTuple, Unpack

import structlog
import trio

from oubliette import store_removal as removal
from oubliette import store_schema as schema
from oubliette.records import ProjectRecord, SessionRecord, StoredEvent, TokenRecord, WorkspaceRecord
from oubliette.store_files import StoreError, guard_files, take_lock
from oubliette.store_schema import Statement, upsert
from oubliette.store_writer import CLOSE_SECONDS, EVENT_DELAY, MAX_BACKLOG, MAX_BACKLOG_BYTES, Writer

__all__ = ["EVENT_DELAY", "MAX_BACKLOG", "MAX_BACKLOG_BYTES", "RESERVED", "Store", "StoreError", "next_after_crash"]

DATABASE: Final = "oubliette.db"
# What is skipped after an unclean stop. At most MAX_BACKLOG events were queued when the last new work was taken on; the
# other half is for the endings that were accepted above it, one for each request pending and each session alive.
RESERVED: Final = 100_000
UNREADABLE: Final = "records cannot be read right now"

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
log = structlog.get_logger("oubliette.store")


def next_after_crash(last: int) -> int:
    """Returns the next number to use after an unclean stop, `last` being the highest that is stored.

    No number between them is known to be unused (WIRE section 5: "no index ever names two events").
    """
    return last + RESERVED


class Store:
    """The records and events under one data directory. Made by `open`; ended by cancelling `run`, or by `close`.

    `clean_stop` is whether the daemon before this one wrote everything before it ended. `instance_id` names this data
    directory for good.
    """

    def __init__(
        self, writer: sqlite3.Connection, reader: sqlite3.Connection, resources: ExitStack, *, clean_stop: bool
    ) -> None:
        self.clean_stop = clean_stop
        self.instance_id = schema.meta(writer, "instance_id") or ""
        self._connection, self._reader, self._resources = writer, reader, resources
        self._writer = Writer(writer)
        self._reader_turn = trio.CapacityLimiter(1)
        self._removed = trio.Event()
        resources.callback(self._leave_mark)

    # --- start and end ---

    @classmethod
    def open(cls, data_dir: Path) -> Self:
        """Opens the records under `data_dir`, made with mode 0700 where it is missing, for this process alone.

        Raises StoreError where another daemon uses them, where others could read or change them, and where they are
        damaged, read-only or of a newer version; its message says what to do. Nothing is ever deleted.
        """
        path = data_dir / DATABASE
        try:
            with ExitStack() as undo:
                undo.callback(os.close, take_lock(data_dir))
                guard_files(path)
                # Closed in the reverse order: the writer, as the last, takes the log back into the database.
                writer = undo.enter_context(contextlib.closing(schema.connect(path)))
                schema.check(writer)
                schema.migrate(writer, path)
                clean_stop = _begin(writer)
                reader = undo.enter_context(contextlib.closing(schema.connect(path)))
                reader.execute("PRAGMA query_only = ON")
                return cls(writer, reader, undo.pop_all(), clean_stop=clean_stop)
        except (OSError, sqlite3.Error) as error:
            hint = "mend it, restore a backup, or choose another --data-dir"
            raise StoreError(f"{path} cannot be used ({error}): {hint}") from error

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes what is queued until it is cancelled, then what is left, within CLOSE_SECONDS, and closes the store.

        Whoever queues something ends before it: afterwards every write raises StoreError.
        """
        try:
            task_status.started()
            await self._writer.run()
        finally:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                # In the readers' turn, so that none is under way; the writer's task has ended.
                await trio.to_thread.run_sync(self.close, limiter=self._reader_turn)

    def close(self) -> None:
        """Closes the files and gives the lock back. `run` does it; so does who opened a store and never ran it."""
        self._writer.close()
        self._resources.close()

    def _leave_mark(self) -> None:
        if not self._writer.is_empty:
            log.error("stopped with unwritten records", events=len(self._writer.events))
            return
        try:
            schema.set_meta(self._connection, "clean_stop", "1")
        except sqlite3.Error as error:
            log.warning("the next start will take this stop for a crash", reason=str(error))

    # --- writes: acknowledged ---

    async def save_token(self, record: TokenRecord) -> None:
        """Stores a token, or replaces the one with its id; durable on return.

        As every acknowledged write, raises StoreError where it could not be written. One that is cancelled while it
        waits may be carried out all the same.
        """
        await self._writer.write(upsert("tokens", record), f"token {record.token_id}")

    async def delete_token(self, token_id: str) -> None:
        """Removes a token, if it is there; durable on return."""
        statement = Statement("DELETE FROM tokens WHERE token_id = :token_id", {"token_id": token_id})
        await self._writer.write(statement, f"token {token_id}")

    async def save_project(self, record: ProjectRecord) -> None:
        """Stores a project, or replaces it; durable on return. Its default workspace is to be saved before it."""
        await self._writer.write(upsert("projects", record), f"project {record.project_id}")

    async def create_project(self, record: ProjectRecord, workspace: WorkspaceRecord) -> None:
        """Stores a project with its default workspace, both or none; durable on return."""
        both = upsert("workspaces", workspace)._replace(also=(upsert("projects", record),))
        await self._writer.write(both, f"project {record.project_id}")

    async def delete_project(self, project_id: str, token_ids: Collection[str]) -> None:
        """Removes a project with its workspaces, its sessions and these tokens, all or none; durable on return.

        From then on nothing finds them; `keep_purged` deletes sessions and events for good.
        """
        await self._writer.write(removal.of_project(project_id, token_ids), f"project {project_id}")
        self._removed.set()

    async def delete_workspace(self, workspace_id: str) -> None:
        """Removes a workspace, if it is there; durable on return. Sessions that worked in it stay."""
        await self._writer.write(removal.of_workspace(workspace_id), f"workspace {workspace_id}")

    async def delete_sessions(self, session_ids: Collection[str]) -> None:
        """Removes ended sessions, and their events, as `delete_project` does; 1,000 of them take 5 ms."""
        await self._writer.write(removal.of_sessions(session_ids), "removed sessions")
        self._removed.set()

    async def keep_purged(self) -> NoReturn:
        """Deletes for good what was removed, a bit at a time, so that other writers never wait long.

        Runs until it is cancelled; what is left then, or after a crash, is for the next daemon.
        """
        while True:
            self._removed = trio.Event()
            try:
                while await self._read(removal.is_left):
                    await self._writer.write(removal.PURGE, "purge")
            except StoreError as error:
                log.warning("removed records are deleted later", reason=str(error))
                await trio.sleep(removal.RETRY_SECONDS)
            else:
                await self._removed.wait()

    async def save_workspace(self, record: WorkspaceRecord) -> None:
        """Stores a workspace, or replaces it; durable on return."""
        await self._writer.write(upsert("workspaces", record), f"workspace {record.workspace_id}")

    async def save_session(self, record: SessionRecord) -> None:
        """Stores a session of a stored project, or replaces it; durable on return. Its events come after that."""
        await self._writer.write(upsert("sessions", record), f"session {record.session_id}")

    async def flush(self) -> None:
        """Returns when everything queued before is durable. Raises StoreError where the next try to write it fails."""
        await self._writer.flush()

    # --- writes: not waited for ---

    def post_session(self, record: SessionRecord) -> None:
        """Queues a session's new state. While the disk fails, only the newest of each session is kept."""
        self._writer.post(upsert("sessions", record), f"session {record.session_id}")

    def post_token_use(self, token_id: str, when: str) -> None:
        """Queues when a token was last used, an RFC 3339 time."""
        sql = "UPDATE tokens SET last_used_at = :when WHERE token_id = :token_id"
        self._writer.post(Statement(sql, {"when": when, "token_id": token_id}), f"use of token {token_id}")

    def append_event(self, event: StoredEvent) -> None:
        """Queues an event; whoever takes on new work asks `has_room` before, an ending is always accepted.

        `seq` is higher than any before, `index` higher than any of its session, and the session is stored.
        """
        self._writer.append(event)

    @property
    def has_room(self) -> bool:
        """Whether new work may be taken on: fewer than MAX_BACKLOG events and MAX_BACKLOG_BYTES wait to be written."""
        return self._writer.has_room

    async def wait_for_room(self) -> None:
        """Returns when there is room. That takes as long as the disk fails: the deadline is the caller's.

        Raises StoreError once the store is closed.
        """
        await self._writer.wait_for_room()

    @property
    def healthy(self) -> bool:
        """Whether the last try to write succeeded; tries go on by themselves."""
        return self._writer.healthy

    @property
    def last_error(self) -> str | None:
        """Why the last try to write failed, None where it did not. For the log and the operator, not for the wire."""
        return self._writer.last_error

    # --- reads ---

    async def events_of(self, session_id: str, after_index: int, limit: int) -> list[StoredEvent]:
        """Returns the events of a session after `after_index`, by index.

        They are at most `limit`, fewer where they are large (`store_schema.PAGE_BYTES`), and none only where there are
        no more: page on from the last one until a page is empty. As every read, raises StoreError.
        """
        queued = [
            event for event in self._writer.events if event.session_id == session_id and event.index > after_index
        ]
        return _merged(await self._read(schema.events_of, session_id, after_index, limit), queued, limit)

    async def events_after(self, seq: int, sessions: Collection[str], limit: int) -> list[StoredEvent]:
        """Returns the events of these sessions after `seq`, by seq: a page as that of `events_of`."""
        wanted = frozenset(sessions)
        queued = [event for event in self._writer.events if event.seq > seq and event.session_id in wanted]
        return _merged(await self._read(schema.events_after, seq, wanted, limit), queued, limit)

    async def last_indexes(self, seq: int, sessions: Collection[str]) -> dict[str, int]:
        """Returns, for each of these sessions that has an event up to `seq`, the index of the last such event."""
        wanted = frozenset(sessions)
        queued = {e.session_id: e.index for e in self._writer.events if e.seq <= seq and e.session_id in wanted}
        stored = await self._read(schema.last_indexes, seq, wanted)
        # What is queued is newer than what is stored, but for what was written while this was read.
        return {i: max(stored.get(i, 0), queued.get(i, 0)) for i in stored.keys() | queued.keys()}

    async def session(self, session_id: str) -> SessionRecord | None:
        """Returns a session's record, with the index of its last stored event; None for an unknown id."""
        await self._settled()
        return await self._read(schema.session, session_id)

    async def sessions(
        self,
        *,
        projects: Collection[str] | None,
        owner: str | None,
        status: str | None,
        limit: int,
        before: tuple[str, str] | None,
    ) -> list[SessionRecord]:
        """Returns at most `limit` sessions, newest first, that match all that is not None.

        `before` is `(created_at, session_id)` of the last one of the page before.
        """
        await self._settled()
        return await self._read(schema.sessions, projects, owner, status, limit, before)

    async def ended_sessions(self, projects: Collection[str] | None, until: str) -> list[str]:
        """Returns the ids of the sessions that had ended by `until`, an RFC 3339 time; of all projects without any."""
        await self._settled()
        return await self._read(removal.ended_sessions, projects, until)

    async def sessions_since(self, owner: str, seq: int) -> list[SessionRecord]:
        """Returns the sessions of `owner` that have had an event after `seq`."""
        await self._settled()
        return await self._read(schema.sessions_since, owner, seq)

    async def _settled(self) -> None:
        with contextlib.suppress(StoreError):
            if self._writer.healthy:
                await self._writer.flush()

    async def _read(self, query: Callable[[sqlite3.Connection, Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        try:
            return await trio.to_thread.run_sync(query, self._reader, *arguments, limiter=self._reader_turn)
        except sqlite3.Error as error:
            raise StoreError(UNREADABLE) from error

    # --- reads of the start, before `run` ---

    def tokens(self) -> list[TokenRecord]:
        """Returns every token, oldest first."""
        return schema.tokens(self._reader)

    def projects(self) -> list[ProjectRecord]:
        """Returns every project, oldest first."""
        return schema.projects(self._reader)

    def workspaces(self) -> list[WorkspaceRecord]:
        """Returns every workspace, oldest first."""
        return schema.workspaces(self._reader)

    def unfinished_sessions(self) -> list[SessionRecord]:
        """Returns the sessions that a daemon left without ending them, oldest first, with their last stored index."""
        return schema.unfinished_sessions(self._reader)

    def pending_requests(self, session_id: str) -> dict[str, bytes]:
        """Returns the `caller_tool_request` events that nothing ended, as JSON by request id, in index order."""
        return schema.pending_requests(self._reader, session_id)

    def highest_seq(self) -> int:
        """Returns the highest `seq` that was ever used, or may have been: the next event's is one higher."""
        return schema.highest_seq(self._reader)


def _begin(connection: sqlite3.Connection) -> bool:
    """Notes that a daemon runs; returns whether the one before ended cleanly, and skips numbers where it did not."""
    clean_stop = schema.meta(connection, "clean_stop") == "1"
    if not clean_stop:
        schema.reserve_seq(connection, next_after_crash(schema.highest_seq(connection)))
    schema.set_meta(connection, "clean_stop", "0")
    if schema.meta(connection, "instance_id") is None:
        schema.set_meta(connection, "instance_id", token_hex(16))
    return clean_stop


def _merged(stored: list[StoredEvent], queued: list[StoredEvent], limit: int) -> list[StoredEvent]:
    """Returns a page of both: queued events follow the stored ones, but for those written while the page was read."""
    last = stored[-1].seq if stored else 0
    return schema.page((*stored, *(event for event in queued if event.seq > last)), limit)
