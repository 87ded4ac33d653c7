"""The store's SQL: the tables, opening them safely, and one plain function for each question. No trio, no waiting.

Every function takes the connection that it works on, so that the store alone decides in which thread it runs.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from oubliette.records import FINISHED, ProjectRecord, SessionRecord, StoredEvent, TokenRecord, WorkspaceRecord
from oubliette.store_files import StoreError
from oubliette.store_migrations import MIGRATIONS as MIGRATIONS

# How long a statement waits while another process (somebody's `sqlite3` shell, a backup) holds the database.
BUSY_SECONDS: Final = 5.0
# HAZARDS G8 wants a restarted daemon ready within 2 s, and a check reads the whole file: a large one in part.
CHECK_SECONDS: Final = 1.0
# What one page of events may weigh, as much as a session's ring: 1,000 events of 4 MiB would be 4 GiB.
PAGE_BYTES: Final = 16 * 1024 * 1024
# Rows of one INSERT. A thread gives the interpreter away at every statement, and a busy event loop returns it as much
# as 5 ms later: 128 events row by row took up to 220 ms beside such a loop, as one statement 36 ms (WIRE owes 50).
INSERT_ROWS: Final = 128
# What SQLite and its driver raise about one statement's own values; anything else is about the disk.
REFUSALS: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    OverflowError,
    UnicodeError,
)

RecordT = TypeVar("RecordT", bound=Struct)


class Statement(NamedTuple):
    """One change; `also` is written with it or not at all."""

    sql: str
    parameters: Mapping[str, object] = {}
    also: tuple[Statement, ...] = ()


class RefusedEvent(NamedTuple):
    event: StoredEvent
    reason: Exception


# --- opening ---------------------------------------------------------------------------------------------------------


def connect(path: Path) -> sqlite3.Connection:
    """Returns a connection that any one thread at a time may use, in autocommit mode."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.row_factory = sqlite3.Row
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{path} cannot use a write-ahead log here: choose a --data-dir on a local disk")
        for pragma in ("synchronous = FULL", "foreign_keys = ON", "journal_size_limit = 67108864"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def check(connection: sqlite3.Connection) -> None:
    """Looks for damage, for CHECK_SECONDS at most. Raises sqlite3.DatabaseError; nothing is repaired or deleted."""
    deadline = time.monotonic() + CHECK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        found = "ok"
    finally:
        connection.set_progress_handler(None, 0)
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Brings the tables to this program's version, each step in a transaction of its own.

    Raises StoreError where a newer program wrote them.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} has version {version} and this program knows {len(MIGRATIONS)}: "
            "start the newer program again, or choose another --data-dir"
        )
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        with transaction(connection):
            for statement in (*statements, f"PRAGMA user_version = {number}"):
                connection.execute(statement)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE: a transaction that begins by reading cannot always become a writer, however long it waits."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


# --- writing ---------------------------------------------------------------------------------------------------------


def upsert(table: str, record: Struct) -> Statement:
    """Returns the statement that stores `record`, or replaces what has its key.

    Never INSERT OR REPLACE: that deletes the old row first, and the events of a session with it.
    """
    return Statement(_upsert_sql(table, record.__struct_fields__), {**msgspec.structs.asdict(record), **_packs(record)})


@lru_cache
def _upsert_sql(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join(f":{column}" for column in columns)
    updates = ", ".join(f"{column} = excluded.{column}" for column in columns[1:])
    # Names of our own tables and fields: nothing from outside is ever part of a statement's text.
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values}) "  # noqa: S608  # see above
        f"ON CONFLICT ({columns[0]}) DO UPDATE SET {updates}"
    )


def _packs(record: Struct) -> dict[str, object]:
    """A list is no SQL value: a project's packs are a JSON array in their column."""
    if not isinstance(record, ProjectRecord) or record.packs is None:
        return {}
    return {"packs": msgspec.json.encode(record.packs).decode()}


def commit(
    connection: sqlite3.Connection, statements: Sequence[Statement], events: Sequence[StoredEvent]
) -> tuple[list[Exception | None], list[RefusedEvent]]:
    """Writes all of it in one transaction, the records before the events that refer to them.

    A statement that is refused for its own values (a key that does not exist, a number used twice) leaves the others
    alone, and so does an event. Returns why each statement was refused, None where it was not, and the refused events.
    Raises sqlite3.Error, and then nothing was written.
    """
    with transaction(connection):
        return [_refusal(connection, statement) for statement in statements], _insert(connection, events)


def _refusal(connection: sqlite3.Connection, statement: Statement) -> Exception | None:
    try:
        if statement.also:
            _execute_all(connection, [statement, *statement.also])
        else:
            connection.execute(statement.sql, statement.parameters)
    except REFUSALS as error:
        return error
    return None


def _execute_all(connection: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    connection.execute("SAVEPOINT together")
    try:
        for statement in statements:
            connection.execute(statement.sql, statement.parameters)
    except REFUSALS:
        connection.execute("ROLLBACK TO together")
        raise
    finally:
        # Whatever else failed has ended the transaction, and the savepoint with it.
        if connection.in_transaction:
            connection.execute("RELEASE together")


def _insert(connection: sqlite3.Connection, events: Sequence[StoredEvent]) -> list[RefusedEvent]:
    refused: list[RefusedEvent] = []
    start = 0
    while start < len(events):
        # Powers of two: few texts, so that each is prepared once and stays in the driver's cache.
        count = min(INSERT_ROWS, 1 << (len(events) - start).bit_length() - 1)
        refused += _insert_rows(connection, events[start : start + count])
        start += count
    return refused


def _insert_rows(connection: sqlite3.Connection, events: Sequence[StoredEvent]) -> list[RefusedEvent]:
    """Inserts them with one statement, or all but those that are refused."""
    values = [value for e in events for value in (e.seq, e.session_id, e.index, e.type, e.data)]
    try:
        connection.execute(_insert_sql(len(events)), values)
    except REFUSALS as error:
        # SQLite has undone the whole statement: halve it until the refused row stands alone.
        if len(events) == 1:
            return [RefusedEvent(events[0], error)]
        half = len(events) // 2
        return _insert_rows(connection, events[:half]) + _insert_rows(connection, events[half:])
    return []


@lru_cache(maxsize=INSERT_ROWS)
def _insert_sql(rows: int) -> str:
    values = ", ".join(["(?, ?, ?, ?, ?)"] * rows)
    return f"INSERT INTO events (seq, session_id, event_index, type, data) VALUES {values}"  # noqa: S608  # placeholders


# --- reading ---------------------------------------------------------------------------------------------------------


def meta(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def set_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def highest_seq(connection: sqlite3.Connection) -> int:
    """Returns the highest number that an event ever had here, or that was reserved; 0 before the first."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return 0 if row is None else int(row[0])


def reserve_seq(connection: sqlite3.Connection, seq: int) -> None:
    """Makes `seq` the highest number, so that none up to it is used again."""
    with transaction(connection):
        connection.execute("DELETE FROM sqlite_sequence WHERE name = 'events'")
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?)", (seq,))


def tokens(connection: sqlite3.Connection) -> list[TokenRecord]:
    return _records(TokenRecord, connection.execute("SELECT * FROM tokens ORDER BY created_at, token_id"))


def projects(connection: sqlite3.Connection) -> list[ProjectRecord]:
    return _records(ProjectRecord, connection.execute("SELECT * FROM project_records ORDER BY created_at, project_id"))


def workspaces(connection: sqlite3.Connection) -> list[WorkspaceRecord]:
    return _records(WorkspaceRecord, connection.execute("SELECT * FROM workspaces ORDER BY created_at, workspace_id"))


def session(connection: sqlite3.Connection, session_id: str) -> SessionRecord | None:
    rows = connection.execute("SELECT * FROM session_records WHERE session_id = ?", (session_id,))
    found = _records(SessionRecord, rows)
    return found[0] if found else None


def unfinished_sessions(connection: sqlite3.Connection) -> list[SessionRecord]:
    sql = """SELECT * FROM session_records WHERE status NOT IN (SELECT value FROM json_each(?))
        ORDER BY created_at, session_id"""
    return _records(SessionRecord, connection.execute(sql, (_json(FINISHED),)))


def sessions(
    connection: sqlite3.Connection,
    projects: Collection[str] | None,
    owner: str | None,
    status: str | None,
    limit: int,
    before: tuple[str, str] | None,
) -> list[SessionRecord]:
    # "~" sorts after every time and every id, so the first page needs no statement of its own.
    created_at, session_id = before or ("~", "~")
    sql = """SELECT * FROM session_records
        WHERE (created_at, session_id) < (:created_at, :session_id)
            AND (:projects IS NULL OR project_id IN (SELECT value FROM json_each(:projects)))
            AND (:owner IS NULL OR owner = :owner) AND (:status IS NULL OR status = :status)
        ORDER BY created_at DESC, session_id DESC LIMIT :limit"""
    wanted = {"projects": None if projects is None else _json(projects), "owner": owner, "status": status}
    position = {"created_at": created_at, "session_id": session_id, "limit": limit}
    return _records(SessionRecord, connection.execute(sql, {**wanted, **position}))


def sessions_since(connection: sqlite3.Connection, owner: str, seq: int) -> list[SessionRecord]:
    sql = """SELECT * FROM session_records
        WHERE owner = ? AND session_id IN (SELECT DISTINCT session_id FROM events WHERE seq > ?)"""
    return _records(SessionRecord, connection.execute(sql, (owner, seq)))


def events_of(connection: sqlite3.Connection, session_id: str, after_index: int, limit: int) -> list[StoredEvent]:
    sql = "SELECT * FROM events WHERE session_id = ? AND event_index > ? ORDER BY event_index LIMIT ?"
    return _events(connection.execute(sql, (session_id, after_index, limit)), limit)


def last_indexes(connection: sqlite3.Connection, seq: int, sessions: Collection[str]) -> dict[str, int]:
    # An index of its own over (session_id, seq) would cost every event a second page. Within a session, seq and index
    # grow together, so walking back from the newest entry of UNIQUE (session_id, event_index), which carries the seq,
    # ends at the last one not after `seq`: as many steps as there are events to deliver.
    sql = """SELECT wanted.value, (SELECT event_index FROM events WHERE session_id = wanted.value AND seq <= ?
            ORDER BY event_index DESC LIMIT 1)
        FROM json_each(?) AS wanted"""
    rows = connection.execute(sql, (seq, _json(sessions)))
    return {session_id: index for session_id, index in rows if index is not None}


def events_after(connection: sqlite3.Connection, seq: int, sessions: Collection[str], limit: int) -> list[StoredEvent]:
    starts = dict.fromkeys(sessions, 0) | last_indexes(connection, seq, sessions)
    # The inner query touches the index alone and sorts numbers; only the page's own rows are read.
    sql = """SELECT * FROM events WHERE seq IN (
            SELECT seq FROM json_each(?) AS start CROSS JOIN events
                ON session_id = start.key AND event_index > start.value
            ORDER BY seq LIMIT ?)
        ORDER BY seq"""
    return _events(connection.execute(sql, (msgspec.json.encode(starts).decode(), limit)), limit)


class _Named(Struct):
    request_id: str


def pending_requests(connection: sqlite3.Connection, session_id: str) -> dict[str, bytes]:
    sql = "SELECT type, data FROM events WHERE session_id = ? AND type LIKE 'caller_tool_%' ORDER BY event_index"
    pending: dict[str, bytes] = {}
    for kind, data in connection.execute(sql, (session_id,)):
        request_id = msgspec.json.decode(data, type=_Named).request_id
        if kind == "caller_tool_request":
            pending[request_id] = data
        else:
            pending.pop(request_id, None)
    return pending


def page(events: Iterable[StoredEvent], limit: int) -> list[StoredEvent]:
    """Returns the first `limit` of them, or fewer: a page ends with the event that fills PAGE_BYTES."""
    taken: list[StoredEvent] = []
    size = 0
    for event in events:
        if len(taken) >= limit or size >= PAGE_BYTES:
            break
        taken.append(event)
        size += len(event.data)
    return taken


def _events(rows: sqlite3.Cursor, limit: int) -> list[StoredEvent]:
    # A cursor left open would hold on to its snapshot, and the log could not be taken back into the database.
    with contextlib.closing(rows):
        return page((StoredEvent(seq=s, session_id=i, index=n, type=t, data=d) for s, i, n, t, d in rows), limit)


def _records(kind: type[RecordT], rows: sqlite3.Cursor) -> list[RecordT]:
    return [kind(**_fields(row)) for row in rows]


def _fields(row: sqlite3.Row) -> dict[str, Any]:
    fields = dict(zip(row.keys(), row, strict=True))
    if fields.get("packs") is not None:
        fields["packs"] = msgspec.json.decode(fields["packs"])
    return fields


def _json(values: Collection[str]) -> str:
    """A collection as one parameter, for json_each."""
    return msgspec.json.encode(list(values)).decode()
