"""What the next daemon does first after a crash (WIRE sections 3, "After a crash", and 5; HAZARDS F14, F15)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from oubliette.events import EventLog, Journal, RingLimits
from oubliette.protocol.events import CallerToolRequest, CallerToolResolved, SessionStarted
from oubliette.records import ProjectRecord, SessionRecord, WorkspaceRecord
from oubliette.recovery import close_interrupted
from oubliette.store import RESERVED, Store

WHEN = "2026-01-01T00:00:00.000Z"
PROJECT = ProjectRecord(
    project_id="default",
    name="default",
    description="",
    agent=None,
    runtime=None,
    packs=None,
    default_workspace_id="wsp",
    created_at=WHEN,
)
WORKSPACE = WorkspaceRecord(workspace_id="wsp", project_id="default", name="default", created_at=WHEN)


def record(session_id: str, status: str) -> SessionRecord:
    return SessionRecord(
        session_id=session_id,
        project_id="default",
        workspace_id="wsp",
        status=status,
        agent="external",
        runtime="process",
        owner="owner",
        parent_id=None,
        depth=0,
        caller=b'{"caller_id":"myapp","caller_tools":[]}',
        created_at=WHEN,
        ended_at=None if status in ("starting", "running", "idle") else WHEN,
        last_index=0,
    )


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[Store]:
    store = Store.open(folder)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


def started(log: EventLog) -> None:
    log.append(
        SessionStarted, project_id="default", workspace_id="wsp", agent="external", runtime="process", parent_id=None
    )


def requested(log: EventLog, request_id: str) -> None:
    log.append(CallerToolRequest, request_id=request_id, tool="x", arguments=msgspec.Raw(b"{}"), timeout_seconds=60.0)


async def crash_with(folder: Path, *records: SessionRecord) -> None:
    """Leaves sessions as a killed daemon does: each with an answered request and two that are pending."""
    async with open_store(folder) as store:
        await store.save_workspace(WORKSPACE)
        await store.save_project(PROJECT)
        journal = Journal(store, RingLimits(), store.highest_seq())
        for one in records:
            await store.save_session(one)
            log = EventLog(one.session_id, journal)
            started(log)
            for name in ("a", "b", "c"):
                requested(log, f"{one.session_id}-{name}")
            log.append(CallerToolResolved, request_id=f"{one.session_id}-b", is_error=False, duration_ms=1)
        await store.flush()


async def events_of(store: Store, session_id: str) -> list[Any]:
    return [msgspec.json.decode(event.data) for event in await store.events_of(session_id, 0, 100)]


async def test_interrupted_sessions_are_closed_with_their_pending_requests_first(tmp_path: Path) -> None:
    await crash_with(tmp_path, record("ses_1", "running"), record("ses_2", "idle"), record("ses_3", "starting"))
    async with open_store(tmp_path) as store:
        await close_interrupted(store, Journal(store, RingLimits(), store.highest_seq()))
        for id in ("ses_1", "ses_2", "ses_3"):
            events = await events_of(store, id)
            assert [(e["type"], e.get("request_id"), e.get("reason")) for e in events[5:]] == [
                ("caller_tool_cancelled", f"{id}-a", "interrupted"),
                ("caller_tool_cancelled", f"{id}-c", "interrupted"),
                ("session_ended", None, "interrupted"),
            ]
            closed = await store.session(id)
            assert closed is not None
            assert (closed.status, closed.last_index) == ("interrupted", events[-1]["index"])
            assert closed.ended_at is not None
            assert closed.caller == b'{"caller_id":"myapp","caller_tools":[]}'


async def test_indexes_jump_over_all_that_may_have_been_given_out(tmp_path: Path) -> None:
    """WIRE section 5: "no index ever names two events"."""
    await crash_with(tmp_path, record("ses_1", "running"))
    async with open_store(tmp_path) as store:
        await close_interrupted(store, Journal(store, RingLimits(), store.highest_seq()))
        indexes = [event["index"] for event in await events_of(store, "ses_1")]
        assert indexes == [1, 2, 3, 4, 5, 5 + RESERVED + 1, 5 + RESERVED + 2, 5 + RESERVED + 3]


async def test_what_had_ended_is_left_alone(tmp_path: Path) -> None:
    finished = [record(f"ses_{status}", status) for status in ("completed", "failed", "ended", "interrupted")]
    await crash_with(tmp_path, *finished)
    async with open_store(tmp_path) as store:
        before = {one.session_id: await events_of(store, one.session_id) for one in finished}
        await close_interrupted(store, Journal(store, RingLimits(), store.highest_seq()))
        for one in finished:
            assert await events_of(store, one.session_id) == before[one.session_id]
            left = await store.session(one.session_id)
            assert left is not None
            assert left.status == one.status


async def test_a_second_start_closes_nothing_twice(tmp_path: Path) -> None:
    await crash_with(tmp_path, record("ses_1", "running"))
    for _ in range(2):
        async with open_store(tmp_path) as store:
            await close_interrupted(store, Journal(store, RingLimits(), store.highest_seq()))
            types = [event["type"] for event in await events_of(store, "ses_1")]
            assert types.count("session_ended") == 1


async def test_it_returns_when_all_is_recorded(tmp_path: Path) -> None:
    await crash_with(tmp_path, record("ses_1", "running"))
    async with open_store(tmp_path) as store:
        await close_interrupted(store, Journal(store, RingLimits(), store.highest_seq()))
        assert store.unfinished_sessions() == []
        assert store.pending_requests("ses_1") == {}
