"""One session's life (WIRE section 5, "A session's life"): its states, its turns, its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.agents.base import Conversation, Sandbox, ToolOutcome, ToolUse, Turn, TurnResult
from oubliette.errors import AgentFailed, Conflict, InvalidParams, LimitExceeded, RequestCancelled
from oubliette.runtimes.base import Room
from oubliette.session import Session
from oubliette.telling import MAX_ARGUMENTS
from oubliette.turns import MAX_QUEUED
from tests.helpers.agents import Behaviour, FakeAgent, FakeRuntime, echo, fail, never_end, work_for_a_second
from tests.helpers.domain import OWNER, Domain, open_domain


class Bench:
    """A domain with one agent profile `fake`, and one session of it."""

    def __init__(self, domain: Domain, agent: FakeAgent, runtime: FakeRuntime, session: Session) -> None:
        self.domain = domain
        self.agent = agent
        self.runtime = runtime
        self.session = session

    @property
    def events(self) -> list[Any]:
        stored = self.domain.records.stored
        return [msgspec.json.decode(event.data) for event in stored if event.session_id == self.session.id]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    async def message(self, text: str, **more: Any) -> Any:
        return await self.domain.run(OWNER, "session_message", session_id=self.session.id, message=text, **more)


@asynccontextmanager
async def open_bench(
    folder: Path, behave: Behaviour | None = None, *, agent: FakeAgent | None = None, runtime: FakeRuntime | None = None
) -> AsyncIterator[Bench]:
    agent, runtime = agent or FakeAgent(behave), runtime or FakeRuntime()
    async with open_domain(folder, agents={"fake": agent, "external": None}, runtime=runtime) as domain:
        session = await domain.start("send", agent="fake", message="first")
        yield Bench(domain, agent, runtime, session)


async def test_a_turn_runs_and_completes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path, work_for_a_second) as bench:
        statuses: list[str] = [bench.session.status]
        for seconds in (0.5, 1):
            await trio.sleep(seconds)
            await wait_all_tasks_blocked()
            statuses.append(bench.session.status)
        assert statuses == ["starting", "running", "idle"]
        assert [(e["type"], e.get("role"), e.get("text")) for e in bench.events] == [
            ("session_started", None, None),
            ("message", "user", "first"),
            ("message", "assistant", "on it: first"),
            ("turn_completed", None, "first"),
        ]
        assert [e["index"] for e in bench.events] == [1, 2, 3, 4]
        assert bench.events[0] | {"ts": None} == {
            "type": "session_started",
            "session_id": bench.session.id,
            "index": 1,
            "ts": None,
            "project_id": "default",
            "workspace_id": bench.session.workspace_id,
            "agent": "fake",
            "runtime": "process",
            "parent_id": None,
        }


async def test_an_agents_room_is_its_sessions(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path) as bench:
        await wait_all_tasks_blocked()
        (room,) = bench.runtime.rooms
        assert (room.session_id, room.project_id) == (bench.session.id, "default")
        assert room.workspace == tmp_path / "workspaces" / "default" / bench.session.workspace_id
        assert room.workspace.is_dir()
        assert bench.session.socket is not None
        assert room.sockets == bench.session.socket.parent
        assert room.home == tmp_path / "agents" / bench.session.id
        assert room.home.stat().st_mode & 0o777 == 0o700


async def test_a_session_has_one_conversation_for_all_its_turns(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path) as bench:
        for number in range(3):
            await bench.message(f"{number}", wait=True)
        assert (len(bench.runtime.rooms), len(bench.agent.sandboxes), len(bench.agent.turns)) == (1, 1, 4)
        assert (bench.runtime.open_now, bench.agent.left) == (1, 0)
        await bench.domain.sessions.end(bench.session)
        assert (bench.runtime.open_now, bench.agent.left) == (0, 1)


async def test_what_a_runtime_cannot_enforce_is_said_at_the_start(tmp_path: Path, autojump_clock: MockClock) -> None:
    runtime = FakeRuntime("podman", ("the memory is not limited",))
    agents = {"fake": FakeAgent(), "external": None}
    async with open_domain(tmp_path, agents=agents, runtime=runtime) as domain:
        view = await domain.run(OWNER, "session_message", message="hi", agent="fake")
        assert (view["runtime"], view["warnings"]) == ("podman", ["the memory is not limited"])
        again = await domain.run(OWNER, "session_message", message="hi", session_id=view["session_id"])
        assert "warnings" not in again
        nothing_runs = await domain.run(OWNER, "session_message", message="hi", agent="external")
        assert "warnings" not in nothing_runs


async def test_a_message_starts_the_next_turn(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path) as bench:
        await wait_all_tasks_blocked()
        view = await bench.message("second", wait=True)
        assert (view["text"], view["status"]) == ("second", "idle")
        assert [turn.prompt for turn in bench.agent.turns] == ["first", "second"]


async def test_messages_wait_their_turn_in_order(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path, work_for_a_second) as bench:
        for number in range(5):
            await bench.message(f"{number}")
        await trio.sleep(6.5)
        assert [turn.prompt for turn in bench.agent.turns] == ["first", "0", "1", "2", "3", "4"]
        assert bench.types.count("turn_completed") == 6
        assert bench.session.status == "idle"


async def test_at_most_a_hundred_messages_are_queued(tmp_path: Path, autojump_clock: MockClock) -> None:
    """WIRE section 5: "A message while a turn runs is queued (at most 100)"; HAZARDS G9."""
    async with open_bench(tmp_path, never_end) as bench:
        await wait_all_tasks_blocked()
        for number in range(MAX_QUEUED):
            await bench.message(f"{number}")
        before = bench.session.log.last_index
        with pytest.raises(LimitExceeded):
            await bench.message("one too many")
        assert bench.session.log.last_index == before
        await bench.message("but this", interrupt=True)
        await wait_all_tasks_blocked()
        assert [turn.prompt for turn in bench.agent.turns] == ["first", "but this"]


async def test_an_interrupt_ends_the_turn_and_those_that_wait(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path, never_end) as bench:
        await wait_all_tasks_blocked()
        waiting: list[BaseException] = []

        async def wait_for_turn() -> None:
            try:
                await bench.message("waits", wait=True)
            except Conflict as error:
                waiting.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_turn)
            await wait_all_tasks_blocked()
            await bench.message("now", interrupt=True)
        assert "interrupted" in str(waiting[0])
        await wait_all_tasks_blocked()
        assert [turn.prompt for turn in bench.agent.stopped] == ["first"]
        assert [turn.prompt for turn in bench.agent.turns] == ["first", "now"]
        completed = [e for e in bench.events if e["type"] == "turn_completed"]
        assert [e["text"] for e in completed] == ["thinking"], "what it had said by then"
        assert bench.session.status == "running"


async def test_an_interrupt_of_nothing_is_a_message(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path) as bench:
        await wait_all_tasks_blocked()
        view = await bench.message("now", interrupt=True, wait=True)
        assert view["text"] == "now"


async def test_an_agent_that_exits_with_a_code_fails_the_session(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path, fail) as bench:
        await bench.session.over.wait()
        error, ended = bench.events[-2:]
        assert (error["type"], error["kind"]) == ("error", "agent_failed")
        assert error["message"] == "the agent 'fake' exited with code 3: no model"
        assert (ended["type"], ended["reason"], ended["exit_code"]) == ("session_ended", "failed", 3)
        assert bench.session.status == "failed"
        with pytest.raises(Conflict):
            await bench.message("again")


async def test_whoever_waits_for_a_turn_that_fails_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_domain(tmp_path, agents={"fake": FakeAgent(fail)}) as domain:
        with pytest.raises(AgentFailed, match="exited with code 3"):
            await domain.run(OWNER, "session_message", message="hi", agent="fake", wait=True)


async def test_a_failed_turn_fails_those_that_wait_behind_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def fail_later(turn: Turn) -> TurnResult:
        await trio.sleep(1)
        return await fail(turn)

    async with open_bench(tmp_path, fail_later) as bench:
        with pytest.raises(Conflict, match="before this message had its turn"):
            await bench.message("second", wait=True)


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(2, "No such file", "agent"), PermissionError(13, "no"), ValueError("embedded null byte")],
)
async def test_an_agent_that_cannot_be_started_says_why(
    tmp_path: Path, autojump_clock: MockClock, error: Exception
) -> None:
    async def refuse(turn: Turn) -> TurnResult:
        raise error

    async with open_bench(tmp_path, refuse) as bench:
        await bench.session.over.wait()
        assert bench.events[-2]["message"] == f"the agent 'fake' cannot be started: {error}"
        assert bench.events[-1]["reason"] == "failed"


@pytest.mark.parametrize("error", [RuntimeError("secret"), ExceptionGroup("group", [KeyError("secret")])])
async def test_a_crash_of_an_agents_code_ends_its_session_alone(
    tmp_path: Path, autojump_clock: MockClock, error: Exception
) -> None:
    """Details are in the log, never on the wire."""

    async def crash(turn: Turn) -> TurnResult:
        raise error

    async with open_bench(tmp_path, crash) as bench:
        await bench.session.over.wait()
        assert bench.events[-2]["message"] == "the agent failed for a reason that is in the daemon's log"
        assert bench.events[-1]["reason"] == "failed"
        assert (await bench.domain.start()).status == "running"


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (1, "exited with code 1"),
        (-9, "exited with code -9 (SIGKILL)"),
        (137, "exited with code 137 (SIGKILL)"),
        (139, "exited with code 139 (SIGSEGV)"),
        (255, "exited with code 255"),
    ],
)
async def test_how_an_agent_ended_is_said_in_words(
    tmp_path: Path, autojump_clock: MockClock, exit_code: int, words: str
) -> None:
    """HAZARDS F20: out of memory is SIGKILL."""

    async def end(turn: Turn) -> TurnResult:
        return TurnResult(text="", exit_code=exit_code)

    async with open_bench(tmp_path, end) as bench:
        await bench.session.over.wait()
        assert bench.events[-2]["message"] == f"the agent 'fake' {words}"
        assert bench.events[-1]["exit_code"] == exit_code


# What the agent works in


class RefusingRuntime(FakeRuntime):
    """Cannot open, or close, a sandbox."""

    def __init__(self, *, at_start: Exception | None = None, at_end: Exception | None = None) -> None:
        super().__init__()
        self._at_start = at_start
        self._at_end = at_end

    @asynccontextmanager
    async def open(self, room: Room) -> AsyncIterator[Sandbox]:
        await trio.sleep(1)
        if self._at_start:
            raise self._at_start
        async with super().open(room) as sandbox:
            try:
                yield sandbox
            finally:
                if self._at_end:
                    raise self._at_end


class DyingAgent(FakeAgent):
    """Runs something beside its turns, which dies after `seconds`."""

    def __init__(self, seconds: float, failure: Exception, behave: Behaviour | None = None) -> None:
        super().__init__(behave)
        self._seconds = seconds
        self._failure = failure

    @asynccontextmanager
    async def converse(self, sandbox: Sandbox) -> AsyncIterator[Conversation]:
        async with super().converse(sandbox), trio.open_nursery() as nursery:
            nursery.start_soon(self._die)
            yield self
            nursery.cancel_scope.cancel()

    async def _die(self) -> None:
        await trio.sleep(self._seconds)
        raise self._failure


def homes_in(folder: Path) -> list[str]:
    return [path.name for path in (folder / "agents").iterdir() if path.name != ".trash"]


async def test_a_sandbox_that_cannot_be_opened_fails_the_session(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path, runtime=RefusingRuntime(at_start=OSError(28, "no space"))) as bench:
        assert bench.session.status == "starting"
        with pytest.raises(Conflict):
            await bench.message("second", wait=True)
        await bench.session.over.wait()
        assert bench.events[-2]["message"] == "the agent 'fake' cannot be started: [Errno 28] no space"
        assert (bench.events[-1]["reason"], bench.agent.turns) == ("failed", [])


async def test_whoever_waits_for_the_first_turn_is_told_that_there_is_no_sandbox(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    runtime = RefusingRuntime(at_start=ValueError("it cannot be shown"))
    async with open_domain(tmp_path, agents={"fake": FakeAgent()}, runtime=runtime) as domain:
        with pytest.raises(AgentFailed, match="cannot be started: it cannot be shown"):
            await domain.run(OWNER, "session_message", message="hi", agent="fake", wait=True)


@pytest.mark.parametrize("seconds", [2, 0.5])
async def test_an_agent_that_dies_beside_its_turns_fails_the_session(
    tmp_path: Path, autojump_clock: MockClock, seconds: float
) -> None:
    """HAZARDS F20: between its turns and during one; "session `failed` with reason ≤ 5 s"."""
    agent = DyingAgent(seconds, AgentFailed("its process was killed"), work_for_a_second)
    async with open_bench(tmp_path, agent=agent) as bench:
        await bench.session.over.wait()
        assert trio.current_time() == seconds
        assert bench.events[-2]["message"] == "the agent 'fake' failed: its process was killed"
        assert (bench.events[-1]["reason"], bench.session.status) == ("failed", "failed")
        assert (bench.runtime.open_now, homes_in(tmp_path)) == (0, [])


async def test_whoever_waits_for_the_turn_under_which_an_agent_dies_is_told(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    agent = DyingAgent(0.5, AgentFailed("its process was killed"), work_for_a_second)
    async with open_domain(tmp_path, agents={"fake": agent}) as domain:
        with pytest.raises(AgentFailed, match="its process was killed"):
            await domain.run(OWNER, "session_message", message="hi", agent="fake", wait=True)


async def test_a_sandbox_that_does_not_close_well_changes_nothing(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bench(tmp_path, runtime=RefusingRuntime(at_end=OSError(5, "no answer"))) as bench:
        await trio.sleep(2)
        await bench.domain.sessions.end(bench.session)
        assert (bench.types[-1], bench.events[-1]["reason"]) == ("session_ended", "ended")
        assert bench.session.status == "ended"
        assert "error" not in bench.types
        assert "no answer" in caplog.text


class StubbornRuntime(FakeRuntime):
    """Takes a while over closing."""

    @asynccontextmanager
    async def open(self, room: Room) -> AsyncIterator[Sandbox]:
        async with super().open(room) as sandbox:
            try:
                yield sandbox
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1.5)


@pytest.mark.parametrize("behave", [echo, never_end, fail], ids=["at rest", "in a turn", "failed"])
async def test_a_session_is_over_when_nothing_of_its_agent_is_left(
    tmp_path: Path, autojump_clock: MockClock, behave: Behaviour
) -> None:
    async with open_bench(tmp_path, behave, runtime=StubbornRuntime()) as bench:
        await wait_all_tasks_blocked()
        bench.session.end("ended")
        await bench.session.over.wait()
        assert trio.current_time() == 1.5
        assert (bench.runtime.open_now, bench.agent.left, homes_in(tmp_path)) == (0, 1, [])


async def test_an_interrupt_while_the_sandbox_opens_leaves_it_open(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path, runtime=RefusingRuntime()) as bench:
        await wait_all_tasks_blocked()
        view = await bench.message("now", interrupt=True, wait=True)
        assert (view["text"], view["status"]) == ("now", "idle")
        assert [turn.prompt for turn in bench.agent.turns if turn not in bench.agent.stopped] == ["now"]
        assert (len(bench.runtime.rooms), bench.runtime.open_now) == (1, 1)


async def test_a_home_is_no_part_of_a_session_that_starts_nothing(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        await domain.start()
        await wait_all_tasks_blocked()
        assert not (tmp_path / "agents").exists()


async def test_a_crash_of_the_sessions_own_task_ends_it_for_everybody(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may go on waiting for a session whose listener broke."""
    async with open_bench(tmp_path, never_end) as bench:
        broken = trio.Event()

        class BrokenListener:
            path = Path("/nowhere")

            async def serve(self) -> None:
                await broken.wait()
                raise RuntimeError("the listener broke")

            def close(self) -> None:
                pass

        monkeypatch.setattr(bench.domain.sessions._links, "open", lambda session: BrokenListener())
        session = await bench.domain.start("send", agent="fake")
        with bench.domain.stream(session) as stream:
            pending = session.relay.begin("send", b"{}")
            broken.set()
            await session.over.wait()
            types = [entry.type for entry in await stream.batch()]
            assert types[-2:] == ["caller_tool_cancelled", "session_ended"]
            assert await stream.batch() == []
        with pytest.raises(RequestCancelled):
            await session.relay.outcome(pending)
        assert session.status == "failed"
        assert bench.domain.records.saved[session.id].status == "failed"
        assert session not in bench.domain.sessions.live


async def test_an_external_session_takes_messages_and_starts_nothing(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        await wait_all_tasks_blocked()
        assert session.status == "running"
        view = await domain.run(OWNER, "session_message", session_id=session.id, message="more")
        assert view["status"] == "running"
        events = [msgspec.json.decode(event.data) for event in domain.records.stored]
        assert [e["type"] for e in events] == ["session_started", "message", "message"]
        with pytest.raises(InvalidParams) as refused:
            await domain.run(OWNER, "session_message", session_id=session.id, message="x", wait=True)
        assert refused.value.field == "wait"
        with pytest.raises(InvalidParams):
            await domain.run(OWNER, "session_message", message="x", wait=True)
        assert len(domain.records.stored) == 3


async def test_an_external_session_has_no_queue(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        for _ in range(MAX_QUEUED + 50):
            session.message("x")
        assert session.log.last_index == MAX_QUEUED + 52


async def test_the_end_stops_the_agent_and_tells_everybody(tmp_path: Path, autojump_clock: MockClock) -> None:
    """FIELD section 2, defect 15: cancellation flows down to the agent and up to the caller."""
    async with open_bench(tmp_path, never_end) as bench:
        outcomes: list[str] = []

        async def wait_for_turn(text: str) -> None:
            try:
                await bench.message(text, wait=True)
            except Conflict as error:
                outcomes.append(str(error))

        async def agent_calls() -> None:
            try:
                await bench.session.relay.outcome(bench.session.relay.begin("send", b"{}"))
            except RequestCancelled as error:
                outcomes.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_turn, "second")
            nursery.start_soon(agent_calls)
            await wait_all_tasks_blocked()
            view = await bench.domain.run(OWNER, "session_end", session_id=bench.session.id)
        assert view["status"] == "ended"
        assert len(outcomes) == 2
        assert [turn.prompt for turn in bench.agent.stopped] == ["first"]
        assert bench.types[-2:] == ["caller_tool_cancelled", "session_ended"]
        assert bench.events[-1]["reason"] == "ended"
        assert bench.events[-2]["reason"] == "session_ended"
        record = bench.domain.records.saved[bench.session.id]
        assert (record.status, record.last_index) == ("ended", bench.session.log.last_index)
        assert record.ended_at is not None


async def test_an_end_may_be_repeated_and_the_first_reason_counts(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_bench(tmp_path, never_end) as bench:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.domain.sessions.end, bench.session, "ended")
            nursery.start_soon(bench.domain.sessions.end, bench.session, "ended")
            nursery.start_soon(bench.domain.sessions.end_all, "shutdown")
        first = len(bench.events)
        for _ in range(2):
            view = await bench.domain.run(OWNER, "session_end", session_id=bench.session.id)
            assert view["status"] in ("ended", "interrupted")
        assert bench.types.count("session_ended") == 1
        assert len(bench.events) == first


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("completed", "completed"),
        ("failed", "failed"),
        ("ended", "ended"),
        ("idle", "completed"),
        ("shutdown", "interrupted"),
    ],
)
async def test_each_reason_has_its_status(tmp_path: Path, reason: Any, status: str) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        session.end(reason)
        await session.over.wait()
        assert session.status == domain.records.saved[session.id].status == status
        assert msgspec.json.decode(domain.records.stored[-1].data)["reason"] == reason


async def test_an_ended_session_takes_nothing_more(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start("send")
        await domain.sessions.end(session)
        last = session.log.last_index
        with pytest.raises(Conflict):
            await domain.run(OWNER, "session_message", session_id=session.id, message="x")
        with pytest.raises(Conflict):
            session.relay.begin("send", b"{}")
        assert session.log.last_index == last


async def test_an_agent_that_talks_faster_than_the_records_waits(tmp_path: Path, autojump_clock: MockClock) -> None:
    """HAZARDS G9: the bound is the agent's own pipe."""
    room = trio.Event()

    async def talk(turn: Turn) -> TurnResult:
        for number in range(3):
            await turn.say(f"{number}")
        return TurnResult(text="done")

    async with open_domain(tmp_path, agents={"fake": FakeAgent(talk)}) as domain:
        domain.records.wait_for_room = room.wait  # type: ignore[method-assign]  # the records are behind
        session = await domain.start(agent="fake")
        await wait_all_tasks_blocked()
        assert session.log.last_index == 2
        room.set()
        await wait_all_tasks_blocked()
        assert session.log.last_index == 6


async def test_what_an_agent_reports_of_its_tools_becomes_events(tmp_path: Path, autojump_clock: MockClock) -> None:
    long = msgspec.Raw(b'"%b"' % (b"x" * MAX_ARGUMENTS))

    async def work(turn: Turn) -> TurnResult:
        await turn.report(ToolUse(tool="Bash", arguments=msgspec.Raw(b'{"n":1.10}')))
        await turn.report(ToolOutcome(tool="Bash", is_error=True))
        await turn.report(ToolUse(tool="y" * 1000, arguments=long))
        return TurnResult(text="done")

    async with open_bench(tmp_path, work) as bench:
        await wait_all_tasks_blocked()
        call, result, bounded = bench.events[2:5]
        assert (call["type"], call["tool"], call["arguments"]) == ("tool_call", "Bash", {"n": 1.1})
        assert b'"arguments":{"n":1.10}' in bench.domain.records.stored[2].data, "as it was spelled"
        assert (result["type"], result["tool"], result["is_error"]) == ("tool_result", "Bash", True)
        assert (bounded["tool"], bounded["arguments"]) == ("y" * 256, {"left_out": f"{len(long)} bytes"})


async def test_what_an_agent_reports_waits_for_the_records(tmp_path: Path, autojump_clock: MockClock) -> None:
    """HAZARDS G9."""
    room = trio.Event()

    async def report(turn: Turn) -> TurnResult:
        for _ in range(3):
            await turn.report(ToolOutcome(tool="Bash", is_error=False))
        return TurnResult(text="done")

    async with open_domain(tmp_path, agents={"fake": FakeAgent(report)}) as domain:
        domain.records.wait_for_room = room.wait  # type: ignore[method-assign]  # the records are behind
        session = await domain.start(agent="fake")
        await wait_all_tasks_blocked()
        assert session.log.last_index == 2
        room.set()
        await wait_all_tasks_blocked()
        assert session.log.last_index == 6


async def test_a_session_with_a_message_in_line_is_never_at_rest(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Whoever asks whether a turn is over must not be told so between two of them."""
    async with open_bench(tmp_path) as bench:
        await wait_all_tasks_blocked()
        assert bench.session.completed
        for number in range(3):
            assert (await bench.message(f"{number}"))["status"] == "running"
        seen: set[str] = set()
        while bench.types.count("turn_completed") < 4:
            seen.add(bench.session.status)
            await trio.lowlevel.checkpoint()
        assert (seen, bench.session.status) == ({"running"}, "idle")


async def test_a_new_declaration_is_told_to_every_link_and_recorded(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start("send")
        told: list[str] = []
        session.on_declared += [lambda: told.append("a"), lambda: told.append("b")]
        context = {"caller_id": "ant", "caller_tools": [{"name": "get"}]}
        view = await domain.run(OWNER, "session_message", session_id=session.id, message="x", context=context)
        assert told == ["a", "b"]
        assert (view["caller_id"], view["caller_tools"]) == ("ant", ["get"])
        caller = domain.records.saved[session.id].caller
        assert caller is not None
        assert b'"caller_id":"ant"' in caller


async def test_a_sessions_record_names_what_the_wire_shows(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start("send")
        record = session.record
        assert (record.session_id, record.owner, record.project_id) == (session.id, "owner", "default")
        assert (record.parent_id, record.depth, record.ended_at, record.last_index) == (None, 0, None, 2)
        assert session.id.startswith("ses_")
        assert len(session.id) == 4 + 32
