"""Records that are removed: out of sight at once, deleted bit by bit, never half there."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from oubliette import store_removal, store_schema
from oubliette.records import ProjectRecord, SessionRecord, StoredEvent, TokenRecord, WorkspaceRecord
from oubliette.store import Store, StoreError
from tests.helpers.waiting import LIMIT, until

NOW = "2026-01-01T00:00:00Z"


@pytest.fixture
async def store(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Store]:
    store = Store.open(tmp_path)
    await nursery.start(store.run)
    for project_id in ("p1", "p2"):
        await store.create_project(*project(project_id))
    with trio.fail_after(LIMIT):
        yield store
    nursery.cancel_scope.cancel()


def project(project_id: str) -> tuple[ProjectRecord, WorkspaceRecord]:
    workspace_id = f"w-{project_id}"
    record = ProjectRecord(
        project_id=project_id,
        name=project_id,
        description="",
        agent=None,
        runtime=None,
        packs=["a"],
        default_workspace_id=workspace_id,
        created_at=NOW,
    )
    return record, WorkspaceRecord(workspace_id=workspace_id, project_id=project_id, name="w", created_at=NOW)


def token(token_id: str) -> TokenRecord:
    return TokenRecord(
        token_id=token_id, name="n", scope="admin", digest=b"x", created_at=NOW, last_used_at=None, expires_at=None
    )


def session(
    session_id: str, project_id: str = "p1", status: str = "ended", ended_at: str | None = NOW
) -> SessionRecord:
    return SessionRecord(
        session_id=session_id,
        project_id=project_id,
        workspace_id="w",
        status=status,
        agent="a",
        runtime="process",
        owner="o",
        parent_id=None,
        depth=0,
        caller=None,
        created_at=NOW,
        ended_at=ended_at,
        last_index=0,
    )


async def fill(store: Store, session_id: str, project_id: str, events: int) -> None:
    """Stores an ended session with so many events."""
    await store.save_session(session(session_id, project_id))
    first = await highest_seq(store) + 1
    for index in range(1, events + 1):
        event = StoredEvent(seq=first + index, session_id=session_id, index=index, type="message", data=b"{}")
        store.append_event(event)
    await store.flush()


async def highest_seq(store: Store) -> int:
    return await trio.to_thread.run_sync(store.highest_seq)


def count(tmp_path: Path, table: str) -> int:
    with sqlite3.connect(tmp_path / "oubliette.db") as connection:
        (number,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    connection.close()
    return int(number)


async def ids(store: Store) -> set[str]:
    found = await store.sessions(projects=None, owner=None, status=None, limit=1000, before=None)
    return {record.session_id for record in found}


async def test_a_removed_project_is_out_of_sight_at_once_with_all_it_had(store: Store, tmp_path: Path) -> None:
    for session_id, project_id in (("s1", "p1"), ("s2", "p1"), ("s3", "p2")):
        await fill(store, session_id, project_id, 3)
    await store.save_session(session("s4", "p1", "running", None))
    for token_id in ("t1", "t2", "t3"):
        await store.save_token(token(token_id))
    await store.save_workspace(WorkspaceRecord(workspace_id="w3", project_id="p1", name="n", created_at=NOW))
    await store.delete_project("p1", ["t1", "t3"])
    assert [record.project_id for record in store.projects()] == ["p2"]
    assert [record.workspace_id for record in store.workspaces()] == ["w-p2"]
    assert [record.token_id for record in store.tokens()] == ["t2"]
    assert await ids(store) == {"s3"}
    assert await store.session("s1") is None
    assert await store.sessions_since("o", 0) == [await store.session("s3")]
    assert store.unfinished_sessions() == []
    assert await store.ended_sessions(None, NOW) == ["s3"]
    assert count(tmp_path, "events") == 9, "and nothing of it took long"


async def test_what_was_removed_is_deleted_bit_by_bit(
    store: Store, tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session_id, project_id in (("s1", "p1"), ("s2", "p2"), ("s3", "p2")):
        await fill(store, session_id, project_id, 600)
    steps: list[int] = []
    commit = store_schema.commit

    def counted(*arguments: object) -> object:
        before = count(tmp_path, "events")
        done = commit(*arguments)  # type: ignore[arg-type]  # as they came
        steps.append(before - count(tmp_path, "events"))
        return done

    await store.delete_project("p1", [])
    await store.delete_sessions(["s2"])
    monkeypatch.setattr(store_schema, "commit", counted)
    nursery.start_soon(store.keep_purged)
    await until(lambda: count(tmp_path, "events") == 600 and count(tmp_path, "sessions") == 1)
    await until(lambda: count(tmp_path, "projects") == 1)
    assert max(steps) <= store_removal._BATCH
    assert await ids(store) == {"s3"}
    assert len(await store.events_of("s3", 0, 1000)) == 600
    await store.delete_sessions(["s3"])
    await until(lambda: count(tmp_path, "sessions") == 0)


async def test_what_a_crash_left_is_deleted_by_the_next_daemon(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        store = Store.open(tmp_path)
        await nursery.start(store.run)
        await store.create_project(*project("p1"))
        await fill(store, "s1", "p1", 10)
        await store.delete_project("p1", [])
        nursery.cancel_scope.cancel()
    assert count(tmp_path, "events") == 10
    async with trio.open_nursery() as nursery:
        store = Store.open(tmp_path)
        await nursery.start(store.run)
        assert store.projects() == []
        nursery.start_soon(store.keep_purged)
        await until(lambda: count(tmp_path, "projects") == 0)
        assert (count(tmp_path, "events"), count(tmp_path, "sessions")) == (0, 0)
        nursery.cancel_scope.cancel()


async def test_a_purge_that_fails_is_tried_again(
    store: Store, tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_removal, "RETRY_SECONDS", 0)
    await fill(store, "s1", "p1", 3)
    await store.delete_sessions(["s1"])
    is_left = store_removal.is_left
    failures = [sqlite3.OperationalError("disk I/O error")]

    def fail_once(connection: sqlite3.Connection) -> bool:
        if failures:
            raise failures.pop()
        return is_left(connection)

    monkeypatch.setattr(store_removal, "is_left", fail_once)
    with capture_logs() as lines:
        nursery.start_soon(store.keep_purged)
        await until(lambda: count(tmp_path, "sessions") == 0)
    assert [line["event"] for line in lines] == ["removed records are deleted later"]


async def test_an_event_that_comes_late_finds_its_session(store: Store) -> None:
    """The last event of a session is queued when its removal is: in one batch, records are written first."""
    await store.save_session(session("s1", "p1", "running", None))
    with capture_logs() as lines:
        store.append_event(StoredEvent(seq=1, session_id="s1", index=1, type="session_ended", data=b"{}"))
        store.post_session(session("s1", "p1"))
        await store.delete_sessions(["s1"])
        await store.flush()
    assert lines == []
    assert len(await store.events_of("s1", 0, 10)) == 1


async def test_a_project_and_its_workspace_are_stored_both_or_none(store: Store) -> None:
    record, workspace = project("p3")
    impossible = ProjectRecord(**{**{f: getattr(record, f) for f in record.__struct_fields__}, "name": "\ud800"})
    with pytest.raises(StoreError):
        await store.create_project(impossible, workspace)
    assert (
        {one.project_id for one in store.projects()} == {one.project_id for one in store.workspaces()} == {"p1", "p2"}
    )
    await store.create_project(record, workspace)
    assert {one.project_id for one in store.workspaces()} == {"p1", "p2", "p3"}


async def test_ended_sessions_are_found_by_age_and_project(store: Store) -> None:
    for number, (project_id, status, ended_at) in enumerate(
        [("p1", "ended", "2026-01-01T00:00:00Z"), ("p1", "failed", "2026-01-03T00:00:00Z"), ("p2", "interrupted", None)]
        + [("p2", status, None) for status in ("starting", "running", "idle")]
    ):
        await store.save_session(session(f"s{number}", project_id, status, ended_at))
    assert await store.ended_sessions(None, "2026-01-02T00:00:00Z") == ["s0", "s2"]
    assert await store.ended_sessions(["p1"], "2026-01-03T00:00:00Z") == ["s0", "s1"]
    assert await store.ended_sessions([], "2026-01-03T00:00:00Z") == []


async def test_a_database_of_the_first_version_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _ = project("p1")
    with monkeypatch.context() as older:
        older.setattr(store_schema, "MIGRATIONS", store_schema.MIGRATIONS[:1])
        Store.open(tmp_path).close()
    with sqlite3.connect(tmp_path / "oubliette.db") as connection:
        for statement in (store_schema.upsert("projects", record), store_schema.upsert("sessions", session("s1"))):
            connection.execute(statement.sql, statement.parameters)
    connection.close()
    store = Store.open(tmp_path)
    assert store.projects() == [record]
    assert await store.session("s1") == session("s1")
    store.close()
