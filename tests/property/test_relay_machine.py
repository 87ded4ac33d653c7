"""The relay as a state machine: calls, answers, foreign answers, streams that come and go, polls, cancellations, time.

Hypothesis chooses the steps; the real domain runs under trio's MockClock in a thread of its own, and a small model
beside it says what may have happened. After each step every request is checked, and at the end nothing is pending.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.errors import Conflict, Forbidden, InvalidParams, NotFound, OublietteError
from oubliette.relay import Pending, RelayLimits
from oubliette.session import Session
from oubliette.streams import Stream
from tests.helpers.domain import OTHER, OWNER, STRANGER, Domain, open_domain

ATTACH_GRACE, DISCONNECT_GRACE, POLL_GRACE = 10.0, 3.0, 15.0
MAX_PENDING = 4
TIMEOUTS = {"slow": 60.0, "quick": 5.0}


class Asked:
    """A request as the test sees it: when it must end, and how it did."""

    def __init__(self, number: int, tool: str) -> None:
        self.number = number
        self.deadline = trio.current_time() + TIMEOUTS[tool]
        self.pending: Pending | None = None
        self.scope = trio.CancelScope()
        self.outcome: bytes | OublietteError | str | None = None
        self.answered: Any = None

    @property
    def id(self) -> str:
        assert self.pending is not None
        return self.pending.request_id


class Reader:
    """A stream that is read as fast as it delivers.

    `got` holds the request ids that it was given, `got_pending` those of them that had not ended by then: what ended
    before was told to its agent already, and a replay of it changes nothing.
    """

    def __init__(self, stream: Stream | None, is_owners: bool, ended: Callable[[], set[str]]) -> None:
        self.stream = stream
        self.is_owners = is_owners
        self.ended = ended
        self.got: list[str] = []
        self.got_pending: list[str] = []
        self.scope = trio.CancelScope()

    def take(self, events: list[Any]) -> None:
        ids = [event["request_id"] for event in events if event["type"] == "caller_tool_request"]
        self.got += ids
        self.got_pending += [id for id in ids if id not in self.ended()]

    async def read(self) -> None:
        assert self.stream is not None
        with self.scope, self.stream:
            while batch := await self.stream.batch():
                self.take([msgspec.json.decode(entry.data) for entry in batch])


class Loop:
    """trio in a thread: `do` runs a function in it, and returns when everything there has settled."""

    def __init__(self) -> None:
        self.clock = MockClock()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,), kwargs={"clock": self.clock})
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        async with trio.open_nursery() as self.nursery:
            with tempfile.TemporaryDirectory() as folder:
                limits = RelayLimits(
                    attach_grace=ATTACH_GRACE, disconnect_grace=DISCONNECT_GRACE, max_pending=MAX_PENDING
                )
                async with open_domain(Path(folder), relay=limits) as self.domain:
                    self._ready.set()
                    await self._stop.wait()
            self.nursery.cancel_scope.cancel()

    def do(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        async def settled() -> Any:
            result = await function(*arguments)
            await wait_all_tasks_blocked()
            return result

        return trio.from_thread.run(settled, trio_token=self._token)

    def close(self) -> None:
        trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        self._thread.join()


class RelayMachine(RuleBasedStateMachine):
    """The rules are what agents, callers and time may do; the invariants are WIRE section 3."""

    requests = Bundle("requests")
    readers = Bundle("readers")

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.domain: Domain = self.loop.domain
        tools = [{"name": name, "timeout_seconds": seconds} for name, seconds in TIMEOUTS.items()]
        self.session: Session = self.loop.do(self.domain.start, *tools)
        self.asked: list[Asked] = []
        self.open_readers: list[Reader] = []
        self.all_readers: list[Reader] = []
        self.was_ever = False
        self.open_until = 0.0

    # What agents do

    @rule(target=requests, tool=st.sampled_from(sorted(TIMEOUTS)))
    def call(self, tool: str) -> Any:
        return self.loop.do(self._call, tool)

    async def _call(self, tool: str) -> Any:
        asked = Asked(len(self.asked), tool)
        refusal = self._expected_refusal()
        try:
            asked.pending = self.session.relay.begin(tool, b'{"n":%d}' % asked.number)
        except OublietteError as error:
            if (error.kind, error.retry_safe) != (refusal, True):
                raise
            return multiple()
        assert refusal is None
        self.asked.append(asked)
        self.loop.nursery.start_soon(self._wait_for, asked)
        return asked

    def _expected_refusal(self) -> str | None:
        if self.was_ever and not self._is_open():
            return "caller_disconnected"
        pending = sum(asked.outcome is None for asked in self.asked)
        return "limit_exceeded" if pending >= MAX_PENDING else None

    async def _wait_for(self, asked: Asked) -> None:
        assert asked.pending is not None
        with asked.scope:
            try:
                asked.outcome = await self.session.relay.outcome(asked.pending)
            except OublietteError as error:
                asked.outcome = error
        if asked.scope.cancelled_caught:
            asked.outcome = "the agent has gone"

    @rule(asked=requests)
    def agent_cancels(self, asked: Asked) -> None:
        self.loop.do(self._agent_cancels, asked)

    async def _agent_cancels(self, asked: Asked) -> None:
        assert asked.pending is not None
        self.session.relay.cancel(asked.pending)

    @rule(asked=requests)
    def agent_goes(self, asked: Asked) -> None:
        self.loop.do(self._cancel, asked.scope)

    @staticmethod
    async def _cancel(scope: trio.CancelScope) -> None:
        scope.cancel()

    # What callers do

    @rule(target=readers, is_owners=st.booleans(), after=st.sampled_from([None, 0]))
    def open_stream(self, is_owners: bool, after: int | None) -> Reader:
        return self.loop.do(self._open_stream, is_owners, after)  # type: ignore[no-any-return]

    async def _open_stream(self, is_owners: bool, after: int | None) -> Reader:
        stream = self.domain.stream(self.session, OWNER if is_owners else OTHER, after=after)
        reader = Reader(stream, is_owners, self._ended)
        self.was_ever |= is_owners
        self.open_readers.append(reader)
        self.all_readers.append(reader)
        self.loop.nursery.start_soon(reader.read)
        return reader

    @rule(reader=consumes(readers))
    def close_stream(self, reader: Reader) -> None:
        self.open_readers.remove(reader)
        self.loop.do(self._cancel, reader.scope)
        self._note_loss()

    @rule(since=st.sampled_from([0, 10**6]))
    def poll(self, since: int) -> None:
        """A poll that returns at once because there is something, or after its second."""
        page = self.loop.do(self._poll, since)
        reader = Reader(None, True, self._ended)
        reader.take(page["events"])
        self.all_readers.append(reader)
        self.was_ever = True
        self.open_until = max(self.open_until, self._now() + POLL_GRACE)

    async def _poll(self, since: int) -> Any:
        arguments = {"session_id": self.session.id, "since_index": since, "wait_seconds": 1.0}
        result: list[Any] = []

        async def ask() -> None:
            result.append(await self.domain.run(OWNER, "session_events", **arguments))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            if not result:
                self.loop.clock.jump(1.0)
        return result[0]

    @rule(asked=requests, outcome=st.sampled_from([{"result": None}, {"result": [1.5]}, {"error": "no"}, {}]))
    def answer(self, asked: Asked, outcome: dict[str, Any]) -> None:
        was_pending = asked.outcome is None
        try:
            self.loop.do(self._answer, OWNER, asked, outcome)
        except InvalidParams:
            assert outcome == {}
        except Conflict:
            assert not was_pending
        else:
            assert was_pending
            assert outcome
            asked.answered = outcome

    @rule(asked=requests)
    def foreign_answer(self, asked: Asked) -> None:
        before = asked.outcome
        for principal, refusal in ((OTHER, Forbidden), (STRANGER, NotFound)):
            try:
                self.loop.do(self._answer, principal, asked, {"result": "stolen"})
                raise AssertionError("a foreign answer was accepted")
            except refusal:
                pass
        assert asked.outcome is before

    async def _answer(self, principal: Any, asked: Asked, outcome: dict[str, Any]) -> None:
        arguments = {"session_id": self.session.id, "request_id": asked.id, **outcome}
        await self.domain.run(principal, "caller_tool_response", **arguments)

    @rule(seconds=st.sampled_from([0.5, 2.9, 3.0, 5.0, 9.9, 15.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.do(self._jump, seconds)

    async def _jump(self, seconds: float) -> None:
        self.loop.clock.jump(seconds)

    # The model

    def _now(self) -> float:
        return self.loop.do(self._current_time)  # type: ignore[no-any-return]

    @staticmethod
    async def _current_time() -> float:
        return trio.current_time()

    def _is_attached(self) -> bool:
        return any(reader.is_owners for reader in self.open_readers)

    def _is_open(self) -> bool:
        return self._is_attached() or trio.current_time() < self.open_until

    def _note_loss(self) -> None:
        if not self._is_attached():
            self.open_until = max(self.open_until, self._now())

    # What must always hold

    @invariant()
    def every_request_is_told_of_truly(self) -> None:
        now = self._now()
        given = {id for reader in self.all_readers if reader.is_owners for id in reader.got_pending}
        closings = self._closings()
        for asked in self.asked:
            assert len(closings[asked.id]) == (asked.outcome is not None), "ends exactly once, and streams hear of it"
            if asked.outcome is None:
                assert now < asked.deadline, "nothing outlives its deadline"
                assert self._may_wait(asked, now), "nothing waits for a caller that has gone"
            else:
                self._check_ended(asked, closings[asked.id][0], asked.id in given)

    def _may_wait(self, asked: Asked, now: float) -> bool:
        if self._is_attached():
            return True
        if not self.was_ever:
            assert asked.pending is not None
            return now < asked.pending.started + ATTACH_GRACE
        return now < self.open_until + DISCONNECT_GRACE

    def _check_ended(self, asked: Asked, closing: Any, was_given: bool) -> None:
        if isinstance(asked.outcome, str):
            assert closing["reason"] == "agent_gone"
        elif isinstance(asked.outcome, bytes):
            assert closing["type"] == "caller_tool_resolved"
            assert asked.answered == {"result": msgspec.json.decode(asked.outcome)}
        elif asked.outcome is not None and asked.outcome.kind == "caller_tool_error":
            assert (closing["is_error"], asked.answered) == (True, {"error": asked.outcome.message})
        elif asked.outcome is not None:
            assert asked.answered is None
            assert asked.outcome.retry_safe is not was_given, "retry_safe is never wrong"
            kinds = {"timeout": "caller_timeout", "disconnected": "caller_disconnected"}
            assert asked.outcome.kind == kinds.get(closing["reason"], "cancelled")

    def _ended(self) -> set[str]:
        return {id for id, closings in self._closings().items() if closings}

    def _closings(self) -> dict[str, list[Any]]:
        closings: dict[str, list[Any]] = {asked.id: [] for asked in self.asked}
        for event in self.domain.records.stored:
            if event.type in ("caller_tool_resolved", "caller_tool_cancelled"):
                decoded = msgspec.json.decode(event.data)
                closings[decoded["request_id"]].append(decoded)
        return closings

    @invariant()
    def no_stream_is_given_a_request_twice(self) -> None:
        for reader in self.all_readers:
            assert len(reader.got) == len(set(reader.got))

    def teardown(self) -> None:
        try:
            self.loop.do(self.domain.sessions.end, self.session)
            assert all(asked.outcome is not None for asked in self.asked), "nothing stays pending"
            self.every_request_is_told_of_truly()
        finally:
            self.loop.close()


RelayMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_relay_machine = RelayMachine.TestCase
