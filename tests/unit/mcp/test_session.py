"""MCP sessions: whose they are, what they cover, and their one GET stream (WIRE section 4.1; HAZARDS T4, T34, F3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from oubliette.errors import LimitExceeded, NotFound
from oubliette.mcp import session as mcp_session
from oubliette.mcp.session import IDLE_SECONDS, McpSession, McpSessions
from oubliette.protocol.revisions import NEWEST
from oubliette.session import Session
from oubliette.streams import Stream
from tests.helpers.domain import OTHER, OWNER, Domain, open_domain


class Bench:
    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.all = McpSessions(domain.sessions, domain.records, domain.services.changes)
        self.mcp = self.all.open(OWNER, NEWEST)

    async def start(self) -> Session:
        """Starts an agent session that the MCP session covers from its first event, as `session_message` does."""
        session = await self.domain.start("send")
        self.mcp.cover(session, 0)
        return session

    @property
    def newest(self) -> int:
        return self.domain.sessions.journal.last_seq


@asynccontextmanager
async def open_bench(folder: Path) -> AsyncIterator[Bench]:
    async with open_domain(folder) as domain:
        yield Bench(domain)


async def read(stream: Stream) -> list[Any]:
    return [msgspec.json.decode(entry.data) for entry in await stream.ready(1000)]


async def test_an_mcp_session_is_its_principals_alone(tmp_path: Path) -> None:
    """HAZARDS T4: "to anyone else it does not exist"."""
    async with open_bench(tmp_path) as bench:
        assert bench.all.get(bench.mcp.id, OWNER) is bench.mcp
        for id, principal in ((bench.mcp.id, OTHER), ("nope", OWNER), ("", OWNER)):
            with pytest.raises(NotFound):
                bench.all.get(id, principal)
        assert len(bytes.fromhex(bench.mcp.id)) == 16


async def test_events_come_of_what_it_covers(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        covered = await bench.start()
        foreign = await bench.domain.start()
        async with bench.mcp.open_stream(None, bench.newest) as stream:
            covered.message("a")
            foreign.message("b")
            later = await bench.domain.start()
            bench.mcp.cover(later, 0)
            assert [(event["session_id"], event["index"]) for event in await read(stream)] == [
                (covered.id, 3),
                (later.id, 1),
                (later.id, 2),
            ]


async def test_a_session_of_somebody_elses_is_never_covered(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        view = await bench.domain.run(OTHER, "session_message", message="x")
        session = await bench.domain.sessions.find(view["session_id"])
        bench.mcp.cover(session, 0)
        async with bench.mcp.open_stream(None, bench.newest) as stream:
            session.message("x")
            assert await read(stream) == []
            assert not session.relay.is_attached


async def test_a_stream_begins_with_what_is_pending(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        session = await bench.start()
        pending = session.relay.begin("send", b"{}")
        async with bench.mcp.open_stream(None, bench.newest) as stream:
            (event,) = await read(stream)
            assert event["request_id"] == pending.request_id


@pytest.mark.parametrize("resume_at", range(5))
async def test_a_stream_resumes_from_where_its_reader_was(tmp_path: Path, resume_at: int) -> None:
    async with open_bench(tmp_path) as bench:
        session = await bench.start()
        session.message("a")
        session.message("b")
        async with bench.mcp.open_stream(resume_at, bench.newest) as stream:
            assert [event["index"] for event in await read(stream)] == list(range(resume_at + 1, 5))


async def test_a_resumed_stream_begins_where_the_session_came_to_be_covered(tmp_path: Path) -> None:
    """ "from the event that made it so"."""
    async with open_bench(tmp_path) as bench:
        session = await bench.domain.start()
        session.message("before")
        bench.mcp.cover(session, None)
        session.message("after")
        async with bench.mcp.open_stream(0, bench.newest) as stream:
            assert [event["index"] for event in await read(stream)] == [4]


async def test_a_newer_stream_takes_over_without_a_gap(tmp_path: Path) -> None:
    """HAZARDS F3: no request is lost, and the first stream counts no more, however stalled its peer is."""
    async with open_bench(tmp_path) as bench:
        session = await bench.start()
        async with bench.mcp.open_stream(None, bench.newest) as first:
            pending = session.relay.begin("send", b"{}")
            async with bench.mcp.open_stream(None, bench.newest) as second:
                assert first.has_ended
                assert await first.batch() == []
                assert [event["request_id"] for event in await read(second)] == [pending.request_id]
                assert bench.mcp.stream is second
            assert not session.relay.is_attached, "the first one's writer has not left yet"
        with pytest.raises(Exception, match="caller disconnected"):
            await session.relay.outcome(pending)


async def test_a_predecessor_that_leaves_late_does_not_end_its_successor(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        session = await bench.start()
        first = bench.mcp.open_stream(None, bench.newest)
        await first.__aenter__()
        async with bench.mcp.open_stream(None, bench.newest) as second:
            await first.__aexit__(None, None, None)
            assert bench.mcp.stream is second
            assert session.relay.is_attached


@pytest.mark.parametrize("level", ["notice", "error", "emergency"])
async def test_a_level_above_info_stops_the_events_and_the_counting(tmp_path: Path, level: Any) -> None:
    async with open_bench(tmp_path) as bench:
        session = await bench.start()
        async with bench.mcp.open_stream(None, bench.newest) as stream:
            attached = [session.relay.is_attached]
            bench.mcp.set_level(level)
            attached.append(session.relay.is_attached)
            session.message("unheard")
            assert await read(stream) == []
            bench.mcp.set_level("debug")
            attached.append(session.relay.is_attached)
            session.message("heard")
            assert [event["text"] for event in await read(stream)] == ["heard"]
            assert attached == [True, False, True]


async def test_a_stream_that_opens_at_such_a_level_waits_for_another(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        session = await bench.start()
        bench.mcp.set_level("error")
        for resume_at in (None, 0):
            async with bench.mcp.open_stream(resume_at, bench.newest) as stream:
                assert not session.relay.is_attached
                assert await read(stream) == []
        async with bench.mcp.open_stream(None, bench.newest) as stream:
            pending = session.relay.begin("send", b"{}")
            bench.mcp.set_level("info")
            assert [event["request_id"] for event in await read(stream)] == [pending.request_id]


async def test_a_request_is_given_once_on_a_stream_whatever_the_levels_do(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        session = await bench.start()
        with bench.domain.stream(session):
            async with bench.mcp.open_stream(None, bench.newest) as stream:
                given = session.relay.begin("send", b"{}").request_id
                assert [event["request_id"] for event in await read(stream)] == [given]
                bench.mcp.set_level("error")
                meanwhile = session.relay.begin("send", b"{}").request_id
                bench.mcp.set_level("info")
                assert [event["request_id"] for event in await read(stream)] == [meanwhile]


async def test_descendants_of_what_is_covered_are_covered(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        parent = await bench.start()
        family = []
        for id, parent_id in (("ses_child", parent.id), ("ses_grandchild", "ses_child"), ("ses_other", "ses_nobody")):
            record = msgspec.structs.replace(parent.record, session_id=id, parent_id=parent_id)
            child = bench.domain.sessions.archived(record)
            for watcher in list(bench.domain.sessions.watchers):
                watcher(child)
            family.append(child.id)
        assert [id for id in family if id in bench.mcp._covered] == ["ses_child", "ses_grandchild"]


async def test_the_end_of_an_mcp_session_ends_its_stream_alone(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        session = await bench.start()
        scope = trio.CancelScope()
        bench.mcp.waiting[b"1"] = scope
        async with bench.mcp.open_stream(None, bench.newest) as stream:
            bench.all.close(bench.mcp)
            assert stream.has_ended
            assert scope.cancel_called
        with pytest.raises(NotFound):
            bench.all.get(bench.mcp.id, OWNER)
        assert session.status == "running"
        assert bench.domain.sessions.watchers == set()


# How many there may be, and for how long


async def test_one_that_was_not_used_for_an_hour_expires(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path) as bench:
        used = bench.all.open(OWNER, NEWEST)
        await trio.sleep(IDLE_SECONDS - 1)
        bench.all.get(used.id, OWNER)
        await trio.sleep(1)
        bench.all.open(OWNER, NEWEST)
        assert bench.all.get(used.id, OWNER) is used
        with pytest.raises(NotFound):
            bench.all.get(bench.mcp.id, OWNER)


async def test_a_stream_is_a_use_for_as_long_as_it_is_open(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A client that comes back after a long stream was cut finds its MCP session."""
    async with open_bench(tmp_path) as bench:
        async with bench.mcp.open_stream(None, bench.newest):
            await trio.sleep(10 * IDLE_SECONDS)
            bench.all.open(OTHER, NEWEST)
            assert bench.all.standing() == [bench.mcp.stream]
        await trio.sleep(IDLE_SECONDS - 1)
        bench.all.open(OTHER, NEWEST)
        assert bench.all.get(bench.mcp.id, OWNER) is bench.mcp
        await trio.sleep(IDLE_SECONDS)
        bench.all.open(OTHER, NEWEST)
        with pytest.raises(NotFound):
            bench.all.get(bench.mcp.id, OWNER)


async def test_a_principal_has_at_most_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HAZARDS T34: the least recently used one without a stream gives way; those with one are in use."""
    monkeypatch.setattr(mcp_session, "MAX_PER_PRINCIPAL", 3)
    async with open_bench(tmp_path) as bench:
        others: list[McpSession] = [bench.all.open(OWNER, NEWEST) for _ in range(2)]
        bench.all.get(bench.mcp.id, OWNER)
        bench.all.open(OTHER, NEWEST)
        bench.all.open(OWNER, NEWEST)
        with pytest.raises(NotFound):
            bench.all.get(others[0].id, OWNER)
        async with (
            bench.mcp.open_stream(None, 0),
            others[1].open_stream(None, 0),
            bench.all.open(OWNER, NEWEST).open_stream(None, 0),
        ):
            with pytest.raises(LimitExceeded):
                bench.all.open(OWNER, NEWEST)


async def test_what_has_ended_is_forgotten(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        stays = await bench.start()
        for _ in range(300):
            session = await bench.start()
            session.end("ended")
            await session.over.wait()
        assert stays.id in bench.mcp._covered
        assert len(bench.mcp._covered) < 120


async def test_with_its_token_all_mcp_sessions_of_a_principal_go(tmp_path: Path) -> None:
    """HAZARDS G12. An agent session that starts later finds nobody of them."""
    async with open_bench(tmp_path) as bench:
        yours = bench.all.open(OTHER, NEWEST)
        mine = [bench.mcp, *[bench.all.open(OWNER, NEWEST) for _ in range(3)]]
        watchers = len(bench.domain.sessions.watchers)
        async with bench.mcp.open_stream(None, bench.newest) as stream:
            bench.all.drop(OWNER.token_id)
            assert stream.has_ended
        for session in mine:
            with pytest.raises(NotFound):
                bench.all.get(session.id, OWNER)
            bench.all.close(session)
        assert bench.all.get(yours.id, OTHER) is yours
        assert len(bench.domain.sessions.watchers) == watchers - len(mine)
        assert OWNER.token_id not in bench.all._count
