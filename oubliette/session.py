"""One session: its state, its turns, and the nursery in which everything of it lives (WIRE section 5).

`run` is the whole life. It opens the link's socket and the agent's workplace, works through the turns, and, once `end`
was called, goes out by one way: the agent is stopped, the caller is told, the links give their last answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
import trio
from msgspec import Struct

from oubliette import clock
from oubliette.agents.base import Conversation, Turn, TurnResult
from oubliette.declarations import Declaration
from oubliette.errors import AgentFailed, Conflict
from oubliette.events import EventLog, Journal
from oubliette.log import get as get_logger
from oubliette.protocol.events import (
    EndReason,
    ErrorEvent,
    Message,
    SessionEnded,
    SessionStarted,
    TurnCompleted,
)
from oubliette.records import SessionRecord
from oubliette.relay import Relay, RelayLimits
from oubliette.telling import Telling, exit_in_words, failure_in_words
from oubliette.turns import TurnInLine, TurnLine
from oubliette.workplace import Workplace

Status = Literal["starting", "running", "idle", "completed", "failed", "ended", "interrupted"]
STATUS_AFTER: Final[dict[EndReason, Status]] = {
    "completed": "completed",
    "failed": "failed",
    "ended": "ended",
    "idle": "completed",
    "shutdown": "interrupted",
    "interrupted": "interrupted",
}
log = get_logger(__name__)


class Listener(Protocol):
    """A session's socket, open and listening."""

    @property
    def path(self) -> Path: ...

    async def serve(self) -> None:
        """Serves the session's clients until it is `ending`, and their last answers after that, in bounded time."""
        ...

    def close(self) -> None:
        """Closes a socket that is not served."""
        ...


class Records(Protocol):
    """Where sessions are recorded."""

    async def save_session(self, record: SessionRecord) -> None: ...
    def post_session(self, record: SessionRecord) -> None: ...
    async def wait_for_room(self) -> None: ...


class ToolName(Struct, frozen=True):
    """As much of a declared tool as a list of sessions shows."""

    name: str


class Caller(Struct, frozen=True, kw_only=True):
    """As much of a declaration as a list of sessions shows."""

    caller_id: str | None = None
    caller_tools: list[ToolName] = []


class Session:
    """A session that is under way in this process, or one of earlier days that is only read.

    `record` says who and where; `workplace` is None for the profile `external`, which starts nothing. `children` are
    those that are not yet over.
    """

    def __init__(
        self,
        record: SessionRecord,
        journal: Journal,
        limits: RelayLimits,
        workplace: Workplace | None = None,
    ) -> None:
        self.id = record.session_id
        self.owner = record.owner
        self.project_id = record.project_id
        self.workspace_id = record.workspace_id
        self.parent_id = record.parent_id
        self.depth = record.depth
        self.agent_name = record.agent
        self.runtime = record.runtime
        self.created_at = record.created_at
        self.ended_at = record.ended_at
        self.status: Status = record.status  # type: ignore[assignment]  # written by this class alone
        self.socket: Path | None = None
        self.log = EventLog(record.session_id, journal, record.last_index)
        self.relay = Relay(self.log, limits)
        self.ending = trio.Event()
        self.over = trio.Event()
        self.on_declared: list[Callable[[], None]] = []
        self.children: list[Session] = []
        self.end_reason: EndReason = "ended"
        self.has_lost_owner = False
        self._workplace = workplace
        self._recorded_caller = record.caller
        self._turns = TurnLine()
        self._exit_code: int | None = None
        self._working = trio.CancelScope()
        if self.status in STATUS_AFTER.values():
            self._close_archived()

    def _close_archived(self) -> None:
        """A session of earlier days: it can be read, and nothing else."""
        self.relay.close()
        self.log.close()
        self.ending.set()
        self.over.set()

    @property
    def is_external(self) -> bool:
        return self._workplace is None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its runtime cannot enforce."""
        return () if self._workplace is None else self._workplace.runtime.warnings

    @property
    def completed(self) -> bool:
        """Whether no turn is under way or waits, and none has failed."""
        return self.status in ("idle", "completed", "ended")

    @property
    def failed(self) -> bool:
        """Whether it failed or was interrupted."""
        return self.status in ("failed", "interrupted")

    @property
    def declaration(self) -> Declaration | None:
        return self.relay.declaration

    @property
    def caller(self) -> Caller:
        """Who offers which tools, also in a session of earlier days."""
        if self.declaration is not None:
            return Caller(caller_id=self.declaration.caller_id, caller_tools=[*map(ToolName, self.declaration.tools)])
        return Caller() if self._recorded_caller is None else msgspec.json.decode(self._recorded_caller, type=Caller)

    @property
    def record(self) -> SessionRecord:
        """What is kept for good of the session as it is now."""
        return SessionRecord(
            session_id=self.id,
            project_id=self.project_id,
            workspace_id=self.workspace_id,
            status=self.status,
            agent=self.agent_name,
            runtime=self.runtime,
            owner=self.owner,
            parent_id=self.parent_id,
            depth=self.depth,
            caller=self.declaration.source if self.declaration else self._recorded_caller,
            created_at=self.created_at,
            ended_at=self.ended_at,
            last_index=self.log.last_index,
        )

    @property
    def descendants(self) -> list[Session]:
        """The sessions under way beneath this one, each parent before its children."""
        found = list(self.children)
        for child in found:  # which grows as it goes
            found += child.children
        return found

    # What callers ask

    def declare(self, declaration: Declaration) -> None:
        """Replaces the caller's tools, and tells the clients of the session."""
        self.relay.declare(declaration)
        for tell in self.on_declared:
            tell()

    def check_open(self) -> None:
        """Raises `Conflict` in a session that has ended or is ending."""
        if self.ending.is_set():
            raise Conflict(f"session {self.id!r} has ended (status {self.status})", field="session_id")

    def check_line(self, *, interrupt: bool) -> None:
        """Raises `LimitExceeded` where no further message can be queued."""
        self._turns.check(interrupt=interrupt)

    def lose_owner(self) -> None:
        """Says that the owner cannot come back: nobody answers what the agent asks, nor what its children's ask."""
        self.has_lost_owner = True
        self.relay.lose_owner()

    def started(self, socket: Path) -> None:
        """Appends the first event of a session whose clients come through `socket`."""
        self.socket = socket
        if self.is_external:
            self.status = "running"
        self.log.append(
            SessionStarted,
            project_id=self.project_id,
            workspace_id=self.workspace_id,
            agent=self.agent_name,
            runtime=self.runtime,
            parent_id=self.parent_id,
        )

    def message(self, text: str, *, interrupt: bool = False) -> TurnInLine | None:
        """Takes a message of the owner: the agent's next turn. Returns None where there is no agent to take it.

        With `interrupt` the turn that runs, and those that wait, end first.
        """
        self.check_open()
        self.check_line(interrupt=interrupt)
        if interrupt:
            self._turns.interrupt()
        self.log.append(Message, role="user", text=text)
        if self.is_external:
            return None
        if self.status == "idle":
            # Whoever asks from here on must not be told that there is nothing under way.
            self.status = "running"
        return self._turns.add(text)

    def end(self, reason: EndReason, exit_code: int | None = None) -> None:
        """Begins the end; `over` is set when it is done. The first reason counts."""
        if self.ending.is_set():
            return
        self.end_reason, self._exit_code = reason, exit_code
        self.status = STATUS_AFTER[reason]
        self.ended_at = clock.now()
        self.relay.close()
        self.ending.set()
        self._working.cancel()
        # The one place where a session's end, whatever it is, becomes that of its children (HAZARDS F35).
        for child in list(self.children):
            child.end("ended" if reason == "failed" else reason)

    # Its life

    async def run(self, listener: Listener, records: Records) -> None:
        """Lives the session: from the open socket to the last event."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.serve)
                with self._working:
                    await self._work(records)
                for child in list(self.children):
                    await child.over.wait()
                self._take_leave(records)
        except Exception:
            # A fault of ours: nobody may go on waiting for what will not come.
            self.end("failed")
            self._take_leave(records)
            raise
        finally:
            self.over.set()

    def abandon(self, records: Records | None) -> None:
        """Ends a session instead of `run`. Its end is recorded where there are `records`."""
        self.end("failed")
        if records is None:
            self.log.close()
        else:
            self._take_leave(records)
        self.over.set()

    def _take_leave(self, records: Records) -> None:
        if self.log.closed:
            return
        self._turns.close(f"session {self.id!r}")
        self.log.append(SessionEnded, reason=self.end_reason, exit_code=self._exit_code)
        self.log.close()
        records.post_session(self.record)
        log.info("session ended", session=self.id, reason=self.end_reason, exit_code=self._exit_code)

    async def _work(self, records: Records) -> None:
        if self._workplace is None:
            self._set_status("running", records)
            await trio.sleep_forever()
        try:
            await self._take_turns(self._workplace, records)
        except* Exception as failures:
            # The workplace could not be opened, or what runs in it all the time has ended.
            self._agent_broke(failures)

    async def _take_turns(self, workplace: Workplace, records: Records) -> None:
        turn = await self._turns.next()
        assert self.socket is not None
        async with workplace.open(self.id, self.project_id, self.socket) as conversation:
            while True:
                self._set_status("running", records)
                await self._take_turn(turn, workplace, conversation, records)
                if self._turns.is_empty:
                    self._set_status("idle", records)
                turn = await self._turns.next()

    async def _take_turn(
        self, turn: TurnInLine, workplace: Workplace, conversation: Conversation, records: Records
    ) -> None:
        telling = Telling(self.log, records)
        try:
            with turn.scope:
                variables = await workplace.variables()
                work = Turn(prompt=turn.prompt, say=telling.say, report=telling.report, variables=variables)
                self._finish(turn, await conversation.turn(work))
            if turn.scope.cancelled_caught:
                self._finish(turn, TurnResult(text=telling.said.text))
        except Exception as failure:
            self._agent_broke(failure)

    def _finish(self, turn: TurnInLine, result: TurnResult) -> None:
        if result.exit_code != 0:
            said = f": {result.complaint}" if result.complaint else ""
            sentence = f"the agent {self.agent_name!r} {exit_in_words(result.exit_code)}{said}"
            return self._agent_failed(sentence, result.exit_code)
        self.log.append(TurnCompleted, text=result.text, usage=result.usage)
        turn.finish(result.text)

    def _agent_broke(self, failure: Exception) -> None:
        sentence = failure_in_words(self.agent_name, failure)
        if sentence is None:
            log.error("an agent failed", session=self.id, exc_info=failure)
        elif self.ending.is_set():
            log.warning("an agent did not end well", session=self.id, reason=sentence)
        self._agent_failed(sentence or "the agent failed for a reason that is in the daemon's log", None)

    def _agent_failed(self, sentence: str, exit_code: int | None) -> None:
        if self.ending.is_set():
            return
        self.log.append(ErrorEvent, kind=AgentFailed.kind, message=sentence)
        self._turns.fail_current(AgentFailed(sentence))
        self.end("failed", exit_code)

    def _set_status(self, status: Status, records: Records) -> None:
        if not self.ending.is_set():
            self.status = status
            records.post_session(self.record)
