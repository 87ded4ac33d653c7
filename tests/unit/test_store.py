"""The store: what is acknowledged is durable, what is queued arrives, and what cannot be written harms nothing else."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from oubliette import store_schema, store_writer
from oubliette.records import ProjectRecord, SessionRecord, StoredEvent, TokenRecord, WorkspaceRecord
from oubliette.store import EVENT_DELAY, MAX_BACKLOG, RESERVED, Store, StoreError, next_after_crash

NOW = "2026-01-01T00:00:00Z"


def token(token_id: str = "t1", **changes: Any) -> TokenRecord:
    fields = {"name": "n", "scope": "admin", "digest": b"\x00\xff" * 16, "last_used_at": None, "expires_at": None}
    return TokenRecord(token_id=token_id, created_at=NOW, **{**fields, **changes})


def project(project_id: str = "p1", packs: list[str] | None = None) -> ProjectRecord:
    return ProjectRecord(
        project_id=project_id,
        name="a project",
        description="",
        agent=None,
        runtime="process",
        packs=packs,
        default_workspace_id="w1",
        created_at=NOW,
    )


def session(session_id: str = "s1", **changes: Any) -> SessionRecord:
    fields = {
        "project_id": "p1",
        "workspace_id": "w1",
        "status": "running",
        "agent": "command",
        "runtime": "process",
        "owner": "t1",
        "parent_id": None,
        "depth": 0,
        "caller": b'{"caller_id":"ant"}',
        "created_at": NOW,
        "ended_at": None,
        "last_index": 0,
    }
    return SessionRecord(session_id=session_id, **{**fields, **changes})


def event(seq: int, session_id: str = "s1", index: int | None = None, **changes: Any) -> StoredEvent:
    fields = {"type": "message", "data": b'{"n":%d}' % seq}
    return StoredEvent(seq=seq, session_id=session_id, index=index or seq, **{**fields, **changes})


def stored(data_dir: Path, sql: str = "SELECT count(*) FROM events") -> Any:
    """What somebody else finds in the database: what is committed, and nothing else."""
    connection = sqlite3.connect(data_dir / "oubliette.db")
    try:
        return connection.execute(sql).fetchone()[0]
    finally:
        connection.close()


def set_page_limit(store: Store, pages: int) -> None:
    """Makes the disk full, or gives it room again: SQLITE_FULL is what a full file system is to SQLite."""
    store._connection.execute(f"PRAGMA max_page_count = {pages}")


def pages_used(store: Store) -> int:
    return int(store._connection.execute("PRAGMA page_count").fetchone()[0])


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def store(data_dir: Path, nursery: trio.Nursery) -> AsyncIterator[Store]:
    """A running store with one project and one session."""
    store = Store.open(data_dir)
    await nursery.start(store.run)
    with trio.fail_after(20):
        await store.save_project(project())
        await store.save_session(session())
        yield store


async def run_and_stop(store: Store, work: Callable[[], Any] | None = None) -> None:
    """Runs the store until `work` is done, and ends it as the daemon does."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            if work is not None:
                await work()
            nursery.cancel_scope.cancel()


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_only_the_user_can_read_any_of_its_files_whatever_the_umask(data_dir: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = Store.open(data_dir)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data_dir.iterdir()}
    finally:
        os.umask(before)
    store.close()
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert modes == dict.fromkeys(("lock", "oubliette.db", "oubliette.db-wal", "oubliette.db-shm"), 0o600)


def test_an_older_database_that_others_could_read_is_closed_to_them(data_dir: Path) -> None:
    Store.open(data_dir).close()
    (data_dir / "oubliette.db").chmod(0o644)
    Store.open(data_dir).close()
    assert stat.S_IMODE((data_dir / "oubliette.db").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["oubliette.db", "oubliette.db-wal", "oubliette.db-shm", "lock"])
def test_a_planted_link_is_refused_and_its_target_untouched(data_dir: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    target.chmod(0o644)
    data_dir.mkdir(mode=0o700)
    (data_dir / name).symlink_to(target)
    with pytest.raises(StoreError, match=name):
        Store.open(data_dir)
    assert target.read_bytes() == b"precious"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_a_database_that_is_no_regular_file_is_refused(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    os.mkfifo(data_dir / "oubliette.db")
    with pytest.raises(StoreError, match="regular file"):
        Store.open(data_dir)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_may_write_is_refused(data_dir: Path, mode: int) -> None:
    data_dir.mkdir()
    data_dir.chmod(mode)
    with pytest.raises(StoreError, match=f"chmod 700 {data_dir}"):
        Store.open(data_dir)


def test_a_data_dir_that_is_a_file_or_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="not a directory"):
        Store.open(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot be used"):
        Store.open(tmp_path / "file" / "below")


def test_a_second_daemon_is_refused_and_told_which_process_has_it(data_dir: Path) -> None:
    first = Store.open(data_dir)
    with pytest.raises(StoreError, match=rf"another daemon \(pid {os.getpid()}\) uses {data_dir}"):
        Store.open(data_dir)
    first.close()
    Store.open(data_dir).close()


# --- a database that cannot be used ----------------------------------------------------------------------------------


def test_a_newer_version_is_refused_with_both_versions(data_dir: Path) -> None:
    Store.open(data_dir).close()
    with sqlite3.connect(data_dir / "oubliette.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    known = len(store_schema.MIGRATIONS)
    with pytest.raises(StoreError, match=rf"oubliette.db has version 99 and this program knows {known}"):
        Store.open(data_dir)


async def test_an_older_version_is_migrated_and_keeps_its_records(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(data_dir)
    await run_and_stop(store, lambda: store.save_token(token()))
    addition = ("CREATE TABLE more (id TEXT)", "INSERT INTO more VALUES ('x')")
    monkeypatch.setattr(store_schema, "MIGRATIONS", (*store_schema.MIGRATIONS, addition))
    store = Store.open(data_dir)
    assert store.tokens() == [token()]
    store.close()
    assert stored(data_dir, "SELECT id FROM more") == "x"


def test_a_migration_that_fails_leaves_the_version_before_it(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(data_dir).close()
    released = store_schema.MIGRATIONS
    monkeypatch.setattr(store_schema, "MIGRATIONS", (*released, ("CREATE TABLE more (id TEXT)", "NONSENSE")))
    with pytest.raises(StoreError, match="NONSENSE"):
        Store.open(data_dir)
    assert stored(data_dir, "PRAGMA user_version") == len(released)
    assert stored(data_dir, "SELECT count(*) FROM sqlite_master WHERE name = 'more'") == 0


async def fill(store: Store, events: int) -> None:
    await store.save_project(project())
    await store.save_session(session())
    for seq in range(1, events + 1):
        store.append_event(event(seq))


@pytest.mark.parametrize("page", [0, 1, -1])
async def test_a_damaged_database_is_refused_and_left_as_it_is(data_dir: Path, page: int) -> None:
    """The first page is the schema, the second a table that every start reads, the last one nobody's at a start."""
    store = Store.open(data_dir)
    await run_and_stop(store, lambda: fill(store, 500))
    path = data_dir / "oubliette.db"
    content = bytearray(path.read_bytes())
    start = page * 4096 % len(content)
    content[start : start + 200] = b"\xa5" * 200
    path.write_bytes(content)
    with pytest.raises(StoreError, match=f"{path} cannot be used"):
        Store.open(data_dir)
    assert path.read_bytes() == content


def test_a_read_only_database_is_refused(data_dir: Path) -> None:
    Store.open(data_dir).close()
    (data_dir / "oubliette.db").chmod(0o400)
    with pytest.raises(StoreError, match=r"read-only|Permission denied"):
        Store.open(data_dir)
    assert stat.S_IMODE((data_dir / "oubliette.db").stat().st_mode) == 0o400


async def test_a_large_database_is_checked_in_part(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(data_dir)
    await run_and_stop(store, lambda: fill(store, 3000))
    monkeypatch.setattr(store_schema, "CHECK_SECONDS", -1.0)
    store = Store.open(data_dir)
    assert store.highest_seq() == 3000
    store.close()


# --- records ---------------------------------------------------------------------------------------------------------


async def test_records_come_back_as_they_were_after_a_restart(store: Store, data_dir: Path) -> None:
    changed = token("t2", name="ü", expires_at=NOW)
    workspace = WorkspaceRecord(workspace_id="w1", project_id="p1", name="w", created_at=NOW)
    await store.save_token(token("t1"))
    await store.save_token(token("t2"))
    await store.save_token(changed)
    await store.save_token(token("t3"))
    await store.delete_token("t3")
    await store.delete_token("t4")
    await store.save_workspace(workspace)
    await store.save_project(project("p2", packs=["ot", "github"]))
    store.post_token_use("t1", "2026-02-02T00:00:00Z")
    await store.flush()
    assert store.tokens() == [token("t1", last_used_at="2026-02-02T00:00:00Z"), changed]
    assert store.projects() == [project(), project("p2", packs=["ot", "github"])]
    assert store.workspaces() == [workspace]
    assert await store.session("s1") == session()
    assert await store.session("s2") is None


async def test_a_sessions_last_index_is_that_of_its_last_event_whatever_was_recorded(store: Store) -> None:
    store.append_event(event(7, index=3))
    store.post_session(session(status="idle"))
    expected = session(status="idle", last_index=3)
    assert await store.session("s1") == expected
    await store.save_session(session(last_index=5))
    assert await store.session("s1") == session(last_index=5)


async def test_a_session_that_is_saved_again_keeps_its_events(store: Store) -> None:
    store.append_event(event(1))
    await store.save_session(session(status="idle"))
    await store.save_session(session(status="running"))
    assert await store.events_of("s1", 0, 10) == [event(1)]


async def test_sessions_are_listed_newest_first_and_page_by_page(store: Store) -> None:
    records = [session(f"s{n}", created_at=f"2026-02-0{n // 2 + 1}T00:00:00Z", status="idle") for n in range(6)]
    for record in records[1:]:
        store.post_session(record)
    await store.save_session(records[0])
    seen: list[SessionRecord] = []
    before = None
    while page := await store.sessions(projects=None, owner=None, status=None, limit=2, before=before):
        assert len(page) == 2
        seen += page
        before = (page[-1].created_at, page[-1].session_id)
    assert seen == records[::-1]


async def test_sessions_are_filtered_by_project_owner_and_status(store: Store) -> None:
    await store.save_project(project("p2"))
    for record in (session("a"), session("b", project_id="p2"), session("c", owner="t2"), session("d", status="ended")):
        await store.save_session(record)

    async def ids(**wanted: Any) -> set[str]:
        everything: dict[str, Any] = {"projects": None, "owner": None, "status": None}
        found = await store.sessions(**{**everything, **wanted}, limit=10, before=None)
        return {record.session_id for record in found}

    assert await ids(projects=["p2"]) == {"b"}
    assert await ids(projects=["p1", "p2"], owner="t1") == {"s1", "a", "b", "d"}
    assert await ids(projects=[]) == set()
    assert await ids(status="running", owner="t2") == {"c"}


async def test_only_sessions_that_nobody_ended_are_unfinished(store: Store) -> None:
    for status in ("completed", "failed", "ended", "interrupted", "idle", "starting"):
        await store.save_session(session(status, status=status))
    store.append_event(event(9, "idle", index=4))
    await store.flush()
    found = {record.session_id: record.last_index for record in store.unfinished_sessions()}
    assert found == {"s1": 0, "idle": 4, "starting": 0}


async def test_pending_requests_are_those_that_nothing_ended(store: Store) -> None:
    steps = [("request", "a"), ("request", "b"), ("request", "c"), ("resolved", "b"), ("cancelled", "a")]
    for index, (step, request_id) in enumerate(steps, start=1):
        data = msgspec.json.encode({"type": f"caller_tool_{step}", "tool": "x", "request_id": request_id})
        store.append_event(event(index, type=f"caller_tool_{step}", data=data))
    store.append_event(event(6, type="message", data=b'{"request_id":"c"}'))
    await store.flush()
    assert store.pending_requests("s1") == {
        "c": b'{"type":"caller_tool_request","tool":"x","request_id":"c"}',
    }
    assert store.pending_requests("s2") == {}


# --- events ----------------------------------------------------------------------------------------------------------


async def test_a_page_of_events_is_the_same_from_the_queue_and_from_the_database(store: Store) -> None:
    events = [event(seq) for seq in range(1, 300)]
    for one in events[:200]:
        store.append_event(one)
    await store.flush()
    for one in events[200:]:
        store.append_event(one)
    assert await store.events_of("s1", 0, 1000) == events
    assert await store.events_of("s1", 198, 4) == events[198:202]
    assert await store.events_after(150, ["s1", "s2"], 60) == events[150:210]
    assert await store.events_after(250, {"s1"}, 60) == events[250:]
    assert await store.events_after(0, [], 60) == []
    assert await store.last_indexes(250, ["s1", "s2"]) == {"s1": 250}
    assert await store.last_indexes(20, ["s1"]) == {"s1": 20}


async def test_what_is_written_while_a_page_is_read_is_in_it_once(store: Store) -> None:
    events = [event(seq) for seq in range(1, 6)]
    found: list[object] = []
    for one in events[:3]:
        store.append_event(one)
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            found.append(await store.events_of("s1", 1, 10))
            found.append(await store.events_after(0, ["s1"], 10))

        async with store._reader_turn:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            for one in events[3:]:
                store.append_event(one)
            await store.flush()
    assert found == [events[1:], events]


async def test_a_page_ends_early_rather_than_being_heavy(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_schema, "PAGE_BYTES", 1000)
    events = [event(seq, data=b"x" * 400) for seq in range(1, 9)]
    for one in events[:6]:
        store.append_event(one)
    await store.flush()
    for one in events[6:]:
        store.append_event(one)
    assert await store.events_of("s1", 0, 100) == events[:3]
    assert await store.events_of("s1", 3, 100) == events[3:6]
    assert await store.events_after(5, ["s1"], 100) == events[5:8]


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.one_of(st.sampled_from(["a", "b", "c"]), st.none()), max_size=40),
    wanted=st.sets(st.sampled_from(["a", "b", "c", "unknown"])),
    after=st.integers(0, 45),
    limit=st.integers(1, 20),
)
async def test_every_read_agrees_with_a_plain_list(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str | None], wanted: set[str], after: int, limit: int
) -> None:
    """`steps` are the session of the next event, or None for a flush."""
    store = Store.open(tmp_path_factory.mktemp("store"))
    events: list[StoredEvent] = []

    async def check() -> None:
        await store.save_project(project())
        for session_id in ("a", "b", "c"):
            await store.save_session(session(session_id))
        for step in steps:
            if step is None:
                await store.flush()
                continue
            index = sum(one.session_id == step for one in events) + 1
            events.append(event(len(events) + 1, step, index))
            store.append_event(events[-1])
        ours = [one for one in events if one.session_id in wanted]
        assert await store.events_after(after, wanted, limit) == [one for one in ours if one.seq > after][:limit]
        assert await store.last_indexes(after, wanted) == {o.session_id: o.index for o in ours if o.seq <= after}
        of_a = [one for one in events if one.session_id == "a" and one.index > after]
        assert await store.events_of("a", after, limit) == of_a[:limit]

    await run_and_stop(store, check)


async def test_an_event_that_is_refused_takes_no_other_with_it(store: Store, data_dir: Path) -> None:
    for seq in range(1, 40):
        store.append_event(event(seq))
    store.append_event(event(40, "nobody"))
    store.append_event(event(41, index=7))
    store.append_event(event(42, index=2**63))
    store.append_event(event(43, index=43, type="\udc80"))
    store.append_event(event(44))
    await store.flush()
    assert [one.seq for one in await store.events_of("s1", 0, 100)] == [*range(1, 40), 44]
    assert store.healthy
    assert stored(data_dir) == 40


async def test_a_record_that_is_refused_takes_no_other_with_it(store: Store) -> None:
    store.post_session(session("lost", project_id="nowhere"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.save_token, token("t8"))
        with pytest.raises(StoreError, match="records cannot be written right now"):
            await store.save_session(session("s2", project_id="nowhere"))
    assert store.tokens() == [token("t8")]
    assert await store.session("lost") is None
    assert store.healthy


# --- when a batch goes -----------------------------------------------------------------------------------------------


async def test_events_alone_wait_for_their_delay_and_no_longer(data_dir: Path, mock_clock: Any) -> None:
    """The clock stands still unless the test moves it."""
    store = Store.open(data_dir)

    async def work() -> None:
        await store.save_project(project())
        await store.save_session(session())
        store.append_event(event(1))
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(EVENT_DELAY - 0.001)
        store.append_event(event(2))
        await trio.testing.wait_all_tasks_blocked()
        assert stored(data_dir) == 0
        mock_clock.jump(0.001)
        limit = time.monotonic() + 10
        while stored(data_dir) == 0 and time.monotonic() < limit:
            await trio.testing.wait_all_tasks_blocked()
        assert stored(data_dir) == 2

    await run_and_stop(store, work)


async def test_whoever_waits_makes_the_batch_go_at_once(data_dir: Path, mock_clock: Any) -> None:
    store = Store.open(data_dir)

    async def work() -> None:
        await store.save_project(project())
        await store.save_session(session())
        store.append_event(event(1))
        await store.save_token(token())
        assert stored(data_dir) == 1
        assert trio.current_time() == start

    start = trio.current_time()
    await run_and_stop(store, work)


async def test_writers_that_come_together_share_a_commit(store: Store) -> None:
    commits: list[str] = []
    store._connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    async with trio.open_nursery() as nursery:
        for number in range(32):
            nursery.start_soon(store.save_token, token(f"t{number}"))
    assert len(store.tokens()) == 32
    assert 1 <= len(commits) <= 2


async def test_a_running_store_runs_no_sql_on_the_event_loop(store: Store) -> None:
    threads: set[int] = set()
    for connection in (store._connection, store._reader):
        connection.set_trace_callback(lambda sql: threads.add(threading.get_ident()))
    store.append_event(event(1))
    await store.save_token(token())
    await store.events_of("s1", 0, 1)
    await store.events_after(0, ["s1"], 1)
    await store.last_indexes(0, ["s1"])
    await store.sessions(projects=None, owner=None, status=None, limit=1, before=None)
    await store.session("s1")
    assert threads
    assert threading.get_ident() not in threads


async def test_the_store_waits_for_nobody_elses_threads(store: Store) -> None:
    others = trio.to_thread.current_default_thread_limiter()
    for _ in range(int(others.total_tokens)):
        others.acquire_on_behalf_of_nowait(object())
    await store.save_token(token())
    assert await store.events_of("s1", 0, 1) == []
    assert await store.session("s1") == session()


async def test_flush_with_nothing_queued_returns(store: Store) -> None:
    await store.flush()
    with trio.testing.assert_checkpoints():
        await store.flush()


async def test_a_write_whose_caller_gave_up_harms_nobody(store: Store) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.save_token(token("t1"))
    await store.save_token(token("t2"))
    assert store.tokens() == [token("t1"), token("t2")]


# --- a disk that fails -----------------------------------------------------------------------------------------------


async def fill_the_disk(store: Store) -> None:
    """Lets nothing more be written, and makes the store notice."""
    await store.flush()
    set_page_limit(store, pages_used(store))
    with pytest.raises(StoreError, match="records cannot be written right now"):
        await store.save_token(token("too-much", name="x" * 20_000))


async def recovered(store: Store) -> None:
    """Returns with the first try that succeeds; new work would be a reason of its own to try."""
    await store._writer._room.park()


async def test_a_full_disk_fails_who_waits_keeps_the_rest_and_recovers(store: Store, data_dir: Path) -> None:
    await fill_the_disk(store)
    assert (store.healthy, store.last_error) == (False, "database or disk is full")
    large = [event(seq, data=b"x" * 20_000) for seq in range(1, 4)]
    for one in large:
        store.append_event(one)
    store.post_session(session(status="idle"))
    store.post_session(session(status="ended"))
    with pytest.raises(StoreError, match="written right now"):
        await store.flush()
    # Reads go on, and a page of events does not lack its end.
    assert await store.session("s1") == session()
    assert await store.events_of("s1", 1, 10) == large[1:]
    set_page_limit(store, 10_000)
    await recovered(store)
    assert (store.healthy, store.last_error) == (True, None)
    assert stored(data_dir) == 3
    assert await store.session("s1") == session(status="ended", last_index=3)
    await store.save_token(token())
    assert store.tokens() == [token()]


async def test_readiness_recovers_without_new_work(store: Store) -> None:
    await fill_the_disk(store)
    assert store._writer.is_empty
    set_page_limit(store, 10_000)
    await recovered(store)
    assert (store.healthy, store.last_error) == (True, None)


async def test_readiness_stays_red_while_nothing_can_be_written(store: Store) -> None:
    """A transaction begins and ends on a disk that takes no writes, as long as there are none in it."""
    tries = trio.Semaphore(0)
    trio_token = trio.lowlevel.current_trio_token()
    writes = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE}

    def refuse_writes(action: int, *_: object) -> int:
        if action == sqlite3.SQLITE_TRANSACTION:
            trio_token.run_sync_soon(tries.release)
        return sqlite3.SQLITE_DENY if action in writes else sqlite3.SQLITE_OK

    store._connection.set_authorizer(refuse_writes)
    with pytest.raises(StoreError):
        await store.save_token(token())
    for _ in range(6):
        await tries.acquire()
        assert not store.healthy
    writes.clear()
    await recovered(store)
    assert store.tokens() == []


async def test_only_the_newest_post_of_each_key_outlives_a_failed_try(store: Store) -> None:
    await fill_the_disk(store)
    store.append_event(event(1, data=b"x" * 20_000))
    for number in range(50):
        store.post_session(session(status=f"status {number}"))
        store.post_token_use("t1", f"{number}")
    with pytest.raises(StoreError):
        await store.flush()
    assert len(store._writer._records) == 2
    set_page_limit(store, 10_000)
    await recovered(store)
    assert await store.session("s1") == session(status="status 49", last_index=1)


async def test_another_process_that_holds_the_database_is_waited_for_and_then_named(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_schema, "BUSY_SECONDS", 0.05)
    store = Store.open(data_dir)
    other = sqlite3.connect(data_dir / "oubliette.db", isolation_level=None)

    async def work() -> None:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError):
            await store.save_token(token())
        assert store.last_error == "database is locked"
        assert await store.events_of("s1", 0, 1) == []
        other.execute("ROLLBACK")
        await store.save_token(token())

    await run_and_stop(store, work)
    other.close()
    assert stored(data_dir, "SELECT count(*) FROM tokens") == 1


# --- the backlog -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("events", "size"), [(3, 10**6), (10**6, 30)])
async def test_new_work_is_told_to_wait_and_endings_are_accepted(
    store: Store, monkeypatch: pytest.MonkeyPatch, events: int, size: int
) -> None:
    monkeypatch.setattr(store_writer, "MAX_BACKLOG", events)
    monkeypatch.setattr(store_writer, "MAX_BACKLOG_BYTES", size)
    for seq in (1, 2):
        store.append_event(event(seq, data=b"x" * 10))
    await store.wait_for_room()
    # Appended without a checkpoint in between: nothing is taken off meanwhile.
    for seq in range(3, 6):
        store.append_event(event(seq, data=b"x" * 10))
    store.append_event(event(6))
    assert not store.has_room
    await store.wait_for_room()
    assert len(await store.events_of("s1", 0, 10)) == 6


async def test_who_waits_for_room_learns_that_the_store_is_closed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "MAX_BACKLOG", 0)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(StoreError, match="closed"):
                await store.wait_for_room()
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        store._writer.close()
    assert not store.has_room


# --- stopping --------------------------------------------------------------------------------------------------------


async def test_what_is_queued_at_the_end_is_written_and_the_log_taken_back(data_dir: Path) -> None:
    store = Store.open(data_dir)
    await run_and_stop(store, lambda: fill(store, 1000))
    assert sorted(os.listdir(data_dir)) == ["lock", "oubliette.db"]
    assert stored(data_dir) == 1000
    with pytest.raises(StoreError, match="closed"):
        store.append_event(event(1001))
    with pytest.raises(StoreError, match="closed"):
        store.post_session(session())
    with pytest.raises(StoreError, match="closed"):
        await store.save_token(token())
    with pytest.raises(StoreError, match="read right now"):
        await store.events_of("s1", 0, 1)
    store.close()
    again = Store.open(data_dir)
    assert again.clean_stop
    assert again.highest_seq() == 1000
    again.close()


async def test_a_stop_on_a_failing_disk_is_bounded_and_known_as_unclean(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "CLOSE_SECONDS", 0.2)
    store = Store.open(data_dir)

    async def work() -> None:
        await store.save_project(project())
        await store.save_session(session())
        set_page_limit(store, pages_used(store))
        store._connection.set_trace_callback(lambda sql: tries.append(sql) if sql == "BEGIN IMMEDIATE" else None)
        store.append_event(event(1, data=b"x" * 20_000))
        store.post_session(session(status="x" * 20_000))

    tries: list[str] = []
    await run_and_stop(store, work)
    # The first at once, the next after 0.1 s; the one after 0.3 s would be too late.
    assert 1 <= len(tries) <= 2
    again = Store.open(data_dir)
    assert not again.clean_stop
    assert again.highest_seq() == RESERVED
    again.close()


async def test_whoever_still_waits_at_the_end_is_told(data_dir: Path) -> None:
    store = Store.open(data_dir)
    set_page_limit(store, pages_used(store))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)

        async def save() -> None:
            with trio.CancelScope(shield=True), pytest.raises(StoreError, match="written right now"):
                await store.save_token(token(name="x" * 20_000))

        nursery.start_soon(save)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert stored(data_dir, "SELECT count(*) FROM tokens") == 0


# --- after an unclean stop (the real thing is tests/e2e/test_store_kill.py) -------------------------------------------


def take_the_mark_away(data_dir: Path) -> None:
    """Makes the last stop look like a crash."""
    connection = sqlite3.connect(data_dir / "oubliette.db", isolation_level=None)
    assert connection.execute("UPDATE meta SET value = '0' WHERE key = 'clean_stop'").rowcount == 1
    connection.close()


async def test_no_number_is_used_twice_after_crashes(data_dir: Path) -> None:
    store = Store.open(data_dir)
    assert (store.clean_stop, store.highest_seq()) == (True, 0)

    async def work() -> None:
        await store.save_project(project())
        await store.save_session(session())
        store.append_event(event(1))

    await run_and_stop(store, work)
    for crashes in (1, 2):
        take_the_mark_away(data_dir)
        store = Store.open(data_dir)
        assert not store.clean_stop
        # The second crash comes before the numbers after the first one were used: they are skipped all the same.
        assert store.highest_seq() == 1 + crashes * RESERVED
        store.close()
    store = Store.open(data_dir)
    assert (store.clean_stop, store.highest_seq()) == (True, 1 + 2 * RESERVED)
    store.close()


async def test_a_number_is_not_used_again_when_its_event_was_removed(data_dir: Path) -> None:
    store = Store.open(data_dir)

    async def work() -> None:
        await store.save_project(project())
        await store.save_session(session())
        store.append_event(event(5))

    await run_and_stop(store, work)
    connection = sqlite3.connect(data_dir / "oubliette.db")
    with connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM sessions")
    connection.close()
    assert stored(data_dir) == 0
    store = Store.open(data_dir)
    assert store.highest_seq() == 5
    store.close()


def test_what_is_skipped_covers_what_can_be_queued() -> None:
    assert next_after_crash(7) > 7 + MAX_BACKLOG + MAX_BACKLOG // 2


def test_the_instance_keeps_its_name(data_dir: Path, tmp_path: Path) -> None:
    names = []
    for directory in (data_dir, data_dir, tmp_path / "other"):
        store = Store.open(directory)
        names.append(store.instance_id)
        store.close()
    assert names[0]
    assert names[0] == names[1] != names[2]
