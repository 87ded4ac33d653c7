"""The registry of sessions: starting, finding, limits, expiry, shutdown (WIRE sections 5 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.errors import Conflict, InternalError, InvalidParams, LimitExceeded, NotFound, ShuttingDown
from oubliette.records import SessionRecord
from oubliette.session import Session
from oubliette.sessions import MAX_RECENT
from tests.helpers.agents import FakeAgent, never_end, work_for_a_second
from tests.helpers.domain import OTHER, OWNER, Domain, open_domain
from tests.helpers.records import MemoryRecords

SaveSession = Callable[[SessionRecord], Coroutine[Any, Any, None]]


class CountingLinks:
    """A door whose sockets are counted: every one that was opened must be served to its end, or closed."""

    def __init__(self) -> None:
        self.open_sockets = 0

    def open(self, session: Session) -> CountedListener:
        self.open_sockets += 1
        return CountedListener(self, session)


class CountedListener:
    path = Path("/nowhere")

    def __init__(self, links: CountingLinks, session: Session) -> None:
        self._links = links
        self._session = session

    async def serve(self) -> None:
        try:
            await self._session.ending.wait()
        finally:
            self.close()

    def close(self) -> None:
        self._links.open_sockets -= 1


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> CountingLinks:
    counting = CountingLinks()
    monkeypatch.setattr("tests.helpers.domain.NoLinks", lambda: counting)
    return counting


def save_with(domain: Domain, save: SaveSession) -> None:
    """Puts `save` in the place of the records' own."""
    domain.records.save_session = save  # type: ignore[assignment,method-assign]  # the fault that is injected


def events_of(records: MemoryRecords, session_id: str) -> list[Any]:
    return [msgspec.json.decode(event.data) for event in records.stored if event.session_id == session_id]


# Starting


async def test_a_started_session_is_recorded_before_its_first_event(tmp_path: Path, links: CountingLinks) -> None:
    async with open_domain(tmp_path) as domain:
        order: list[str] = []
        save = domain.records.save_session

        async def note(record: SessionRecord) -> None:
            await save(record)
            order.append(f"saved with {len(domain.records.stored)} events")

        save_with(domain, note)
        session = await domain.start()
        assert order == ["saved with 0 events"]
        assert session in domain.sessions.live
        assert links.open_sockets == 1


async def test_nothing_is_half_started_when_the_records_fail(tmp_path: Path, links: CountingLinks) -> None:
    async with open_domain(tmp_path, agents={"external": None, "fake": FakeAgent()}, max_active=1) as domain:
        save = domain.records.save_session

        async def refuse(record: SessionRecord) -> None:
            await trio.lowlevel.checkpoint()
            raise InternalError("records cannot be written right now")

        for agent in ("external", "fake"):
            save_with(domain, refuse)
            with pytest.raises(InternalError):
                await domain.start("send", agent=agent)
            await wait_all_tasks_blocked()
            assert (domain.records.stored, domain.records.saved, list(domain.sessions.live)) == ([], {}, [])
            assert links.open_sockets == 0
        save_with(domain, save)
        assert (await domain.start()).status == "running", "what failed does not count against the limit"


async def test_a_start_that_is_cancelled_leaves_nothing_that_goes_on(
    tmp_path: Path, links: CountingLinks, autojump_clock: MockClock
) -> None:
    """ "One that is cancelled while it waits may be carried out all the same": so its end is recorded."""
    async with open_domain(tmp_path) as domain:

        async def carry_out_and_hang(record: SessionRecord) -> None:
            domain.records.saved[record.session_id] = record
            await trio.sleep_forever()

        save_with(domain, carry_out_and_hang)
        with trio.move_on_after(1) as scope:
            await domain.start()
        assert scope.cancelled_caught
        ((session_id, record),) = domain.records.saved.items()
        assert record.status == "failed"
        assert [event["type"] for event in events_of(domain.records, session_id)] == ["session_ended"]
        assert (list(domain.sessions.live), links.open_sockets) == ([], 0)


async def test_a_socket_that_cannot_be_opened_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_domain(tmp_path) as domain:

        def refuse(session: Session) -> None:
            raise InternalError("the session's socket cannot be opened")

        monkeypatch.setattr(domain.sessions._links, "open", refuse)
        with pytest.raises(InternalError):
            await domain.start()
        assert (domain.records.stored, domain.records.saved, list(domain.sessions.live)) == ([], {}, [])


@pytest.mark.parametrize("agent", ["nope", ""])
async def test_an_unknown_agent_is_refused_with_those_there_are(tmp_path: Path, agent: str) -> None:
    async with open_domain(tmp_path, agents={"external": None, "fake": FakeAgent()}) as domain:
        if agent:
            with pytest.raises(InvalidParams) as refused:
                await domain.start(agent=agent)
            assert refused.value.message == "unknown agent 'nope'; one of: external, fake"
            assert refused.value.field == "agent"
        else:
            assert (await domain.run(OWNER, "session_message", message="x"))["agent"] == "external"


async def test_a_refused_declaration_starts_nothing(tmp_path: Path, links: CountingLinks) -> None:
    async with open_domain(tmp_path) as domain:
        with pytest.raises(InvalidParams) as refused:
            await domain.start("send", "send")
        assert refused.value.field is not None
        assert refused.value.field.startswith("context.caller_tools[1]")
        assert (domain.records.stored, list(domain.sessions.live), links.open_sockets) == ([], [], 0)


async def test_a_project_has_at_most_so_many_active_sessions(tmp_path: Path) -> None:
    """HAZARDS G9: N-1, N, N+1."""
    async with open_domain(tmp_path, max_active=3) as domain:
        sessions = [await domain.start() for _ in range(3)]
        with pytest.raises(LimitExceeded):
            await domain.start()
        await domain.sessions.end(sessions[0])
        await domain.start()
        with pytest.raises(LimitExceeded):
            await domain.start()


async def test_sessions_that_start_together_keep_to_the_limit(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_domain(tmp_path, max_active=3) as domain:
        save = domain.records.save_session

        async def take_a_while(record: SessionRecord) -> None:
            await trio.sleep(1)
            await save(record)

        save_with(domain, take_a_while)
        refused: list[LimitExceeded] = []

        async def start() -> None:
            try:
                await domain.start()
            except LimitExceeded as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(start)
        assert (len(domain.sessions.live), len(refused)) == (3, 5)


async def test_watchers_hear_of_a_session_before_its_first_event(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        heard: list[tuple[str, int]] = []
        domain.sessions.watchers.add(lambda session: heard.append((session.id, session.log.last_index)))
        session = await domain.start()
        assert heard == [(session.id, 0)]


# Ending


async def test_an_end_while_it_starts_is_told_to_who_starts_it(
    tmp_path: Path, links: CountingLinks, autojump_clock: MockClock
) -> None:
    async with open_domain(tmp_path) as domain:
        save = domain.records.save_session

        async def take_a_while(record: SessionRecord) -> None:
            await trio.sleep(1)
            await save(record)

        save_with(domain, take_a_while)
        errors: list[Exception] = []

        async def start() -> None:
            try:
                await domain.start()
            except (ShuttingDown, Conflict) as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            await wait_all_tasks_blocked()
            await domain.sessions.end_all("shutdown")
            assert trio.current_time() == 1.0, "it waits for what starts"
        assert [type(error) for error in errors] == [ShuttingDown]
        ((session_id, record),) = domain.records.saved.items()
        assert record.status == "interrupted"
        assert [event["type"] for event in events_of(domain.records, session_id)] == ["session_ended"]
        assert (list(domain.sessions.live), links.open_sockets) == ([], 0)


async def test_a_shutdown_ends_every_session_and_refuses_new_ones(
    tmp_path: Path, links: CountingLinks, autojump_clock: MockClock
) -> None:
    agent = FakeAgent(never_end)
    async with open_domain(tmp_path, agents={"external": None, "fake": agent}) as domain:
        sessions = [await domain.start(agent=name) for name in ("external", "fake", "external")]
        await wait_all_tasks_blocked()
        await domain.sessions.end_all("shutdown")
        assert [session.status for session in sessions] == ["interrupted"] * 3
        assert len(agent.stopped) == 1
        for session in sessions:
            assert events_of(domain.records, session.id)[-1]["reason"] == "shutdown"
        with pytest.raises(ShuttingDown):
            await domain.start()
        assert (list(domain.sessions.live), links.open_sockets) == ([], 0)


async def test_a_crash_of_one_session_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_domain(tmp_path) as domain:
        stays = await domain.start()
        await wait_all_tasks_blocked()

        async def crash(*arguments: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(Session, "_work", crash)
        crashed = await domain.start()
        await crashed.over.wait()
        assert (crashed.status, stays.status) == ("failed", "running")
        assert [event["type"] for event in events_of(domain.records, crashed.id)][-1] == "session_ended"
        assert "a session failed" in caplog.text


# Expiry


@pytest.mark.parametrize("timeout", [0, 100])
async def test_a_session_without_event_or_stream_expires(
    tmp_path: Path, autojump_clock: MockClock, timeout: float
) -> None:
    async with open_domain(tmp_path, idle_timeout=timeout) as domain:
        session = await domain.start()
        await trio.sleep(99)
        assert not session.over.is_set()
        await trio.sleep(27)
        assert session.over.is_set() is bool(timeout)
        if timeout:
            assert session.status == "completed"
            assert events_of(domain.records, session.id)[-1]["reason"] == "idle"


async def test_events_and_streams_keep_a_session_alive(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_domain(tmp_path, idle_timeout=100) as domain:
        talked_to, followed = await domain.start(), await domain.start()
        with domain.stream(followed, OTHER):
            for _ in range(10):
                await trio.sleep(90)
                talked_to.message("still here")
            assert not talked_to.over.is_set()
            assert not followed.over.is_set()
        left_at = trio.current_time()
        await followed.over.wait()
        assert 100 <= trio.current_time() - left_at <= 126


async def test_polls_with_pauses_keep_a_session_alive(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A poll is a stream while it waits: expiry counts from the last one, whenever the janitor comes by."""
    async with open_domain(tmp_path, idle_timeout=100) as domain:
        session = await domain.start()
        arguments = {"session_id": session.id, "since_index": 2, "wait_seconds": 0.5}
        for _ in range(20):
            assert (await domain.run(OWNER, "session_events", **arguments))["events"] == []
            await trio.sleep(60)
        assert not session.over.is_set()


async def test_a_session_that_is_being_started_does_not_expire(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_domain(tmp_path, idle_timeout=100) as domain:
        save = domain.records.save_session

        async def take_a_while(record: SessionRecord) -> None:
            await trio.sleep(40)
            await save(record)

        save_with(domain, take_a_while)
        assert (await domain.start()).status == "running"


# Finding


async def test_sessions_are_found_live_and_of_earlier_days(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        live, ended = await domain.start(), await domain.start()
        await domain.sessions.end(ended)
        assert await domain.sessions.find(live.id) is live
        assert await domain.sessions.find(ended.id) is ended
        old = msgspec.structs.replace(ended.record, session_id="ses_old", status="completed", last_index=7)
        domain.records.saved["ses_old"] = old
        found = await domain.sessions.find("ses_old")
        assert (found.id, found.status, found.log.last_index) == ("ses_old", "completed", 7)
        assert found.ending.is_set()
        assert found.over.is_set()
        with pytest.raises(Conflict):
            found.message("x")
        await domain.sessions.end(found)
        assert domain.records.saved["ses_old"] is old
        with pytest.raises(NotFound) as refused:
            await domain.sessions.find("ses_nope")
        assert refused.value.field == "session_id"


async def test_the_last_thousand_ended_sessions_answer_late_callers(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        first = await domain.start("send")
        request = first.relay.begin("send", b"{}")
        await domain.sessions.end(first)
        arguments = {"session_id": first.id, "request_id": request.request_id, "result": 1}
        with pytest.raises(Conflict):
            await domain.run(OWNER, "caller_tool_response", **arguments)
        for number in range(MAX_RECENT):
            other = msgspec.structs.replace(first.record, session_id=f"ses_{number}")
            domain.sessions._remember(domain.sessions.archived(other))
        with pytest.raises(NotFound):
            await domain.run(OWNER, "caller_tool_response", **arguments)


async def test_pages_show_live_sessions_as_they_are(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        live, ended = await domain.start("send"), await domain.start("get")
        await domain.sessions.end(ended)
        page = await domain.sessions.page(projects=None, status=None, limit=10, before=None)
        assert {session.id: session for session in page} == {live.id: live, ended.id: ended}


async def test_what_an_owner_has_had_since(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        quiet, ended_before, ended_after = [await domain.start() for _ in range(3)]
        await domain.run(OTHER, "session_message", message="x")
        await domain.sessions.end(ended_before)
        seq = domain.sessions.journal.last_seq
        await domain.sessions.end(ended_after)
        found = [session.id for session in await domain.sessions.owned_since("owner", seq)]
        assert sorted(found) == sorted([quiet.id, ended_after.id])
        assert [session.id for session in domain.sessions.owned("owner")] == [quiet.id]


async def test_a_message_that_cannot_be_queued_declares_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_domain(tmp_path, agents={"fake": FakeAgent(work_for_a_second)}) as domain:
        session = await domain.start("send", agent="fake")
        await wait_all_tasks_blocked()
        for _ in range(100):
            session.message("x")
        context = {"caller_id": "ant", "caller_tools": []}
        with pytest.raises(LimitExceeded):
            await domain.run(OWNER, "session_message", session_id=session.id, message="x", context=context)
        assert session.declaration is not None
        assert session.declaration.caller_id == "myapp"
