"""One session: its state, its turns, and the nursery in which everything of it lives (WIRE section 5).

`run` is the whole life. It opens the link's socket, works through the turns, and, once `end` was called, goes out by
one way: the agent is stopped, the caller is told, the links give their last answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
import trio
from msgspec import Struct

from oubliette import clock
from oubliette.agents.base import Agent, Transcript, Turn, TurnResult
from oubliette.agents.environment import Environment, agent_environment
from oubliette.declarations import Declaration
from oubliette.errors import AgentFailed, Conflict, LimitExceeded, OublietteError
from oubliette.events import EventLog, Journal
from oubliette.log import get as get_logger
from oubliette.protocol.events import EndReason, ErrorEvent, Message, SessionEnded, SessionStarted, TurnCompleted
from oubliette.records import SessionRecord
from oubliette.relay import Relay, RelayLimits

Status = Literal["starting", "running", "idle", "completed", "failed", "ended", "interrupted"]
STATUS_AFTER: Final[dict[EndReason, Status]] = {
    "completed": "completed",
    "failed": "failed",
    "ended": "ended",
    "idle": "completed",
    "shutdown": "interrupted",
    "interrupted": "interrupted",
}
# WIRE section 5: "A message while a turn runs is queued (at most 100)".
MAX_QUEUED: Final = 100

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


async def no_variables() -> Environment:
    """The `env` of a session that starts no agent."""
    return Environment()


class TurnInLine:
    """A message that waits for its turn, or has it. `done` is set at its end, however it ended."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.text = ""
        self.error: OublietteError | None = None


class ToolName(Struct, frozen=True):
    """As much of a declared tool as a list of sessions shows."""

    name: str


class Caller(Struct, frozen=True, kw_only=True):
    """As much of a declaration as a list of sessions shows."""

    caller_id: str | None = None
    caller_tools: list[ToolName] = []


class Session:
    """A session that is under way in this process, or one of earlier days that is only read.

    `record` says who and where; `agent` is None for the profile `external`, which starts nothing. `variables` returns
    the `env` of the workspace and its project, asked for at each turn.
    """

    def __init__(
        self,
        record: SessionRecord,
        journal: Journal,
        limits: RelayLimits,
        *,
        agent: Agent | None,
        folder: Path,
        variables: Callable[[], Awaitable[Environment]] = no_variables,
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
        self._agent = agent
        self._folder = folder
        self._variables = variables
        self._recorded_caller = record.caller
        self._line, self._turns = trio.open_memory_channel[TurnInLine](MAX_QUEUED)
        self._current: TurnInLine | None = None
        self._end_reason: EndReason = "ended"
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
        return self._agent is None

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
        waiting = self._line.statistics().current_buffer_used
        if waiting >= MAX_QUEUED and not interrupt:
            raise LimitExceeded(f"{MAX_QUEUED} messages are queued already; wait for a turn to end, or interrupt it")

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
            self._interrupt()
        self.log.append(Message, role="user", text=text)
        if self.is_external:
            return None
        turn = TurnInLine(text)
        self._line.send_nowait(turn)
        return turn

    def end(self, reason: EndReason, exit_code: int | None = None) -> None:
        """Begins the end; `over` is set when it is done. The first reason counts."""
        if self.ending.is_set():
            return
        self._end_reason, self._exit_code = reason, exit_code
        self.status = STATUS_AFTER[reason]
        self.ended_at = clock.now()
        self.relay.close()
        self.ending.set()
        self._working.cancel()

    # Its life

    async def run(self, listener: Listener, records: Records) -> None:
        """Lives the session: from the open socket to the last event."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.serve)
                with self._working:
                    await self._work(records)
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
        for turn in self._drain_line():
            self._fail(turn, Conflict(f"session {self.id!r} has ended before this message had its turn"))
        self.log.append(SessionEnded, reason=self._end_reason, exit_code=self._exit_code)
        self.log.close()
        records.post_session(self.record)
        log.info("session ended", session=self.id, reason=self._end_reason, exit_code=self._exit_code)

    async def _work(self, records: Records) -> None:
        if self._agent is None:
            self._set_status("running", records)
        # Nobody sends turns to an external session: it waits here for its end.
        async for turn in self._turns:
            assert self._agent is not None
            self._current = turn
            self._set_status("running", records)
            await self._take_turn(turn, self._agent, records)
            self._current = None
            self._set_status("idle", records)

    async def _take_turn(self, turn: TurnInLine, agent: Agent, records: Records) -> None:
        assert self.socket is not None
        said = Transcript()

        async def say(text: str) -> None:
            # An agent that talks faster than its events can be recorded waits, in its own pipe.
            await records.wait_for_room()
            self.log.append(Message, role="assistant", text=text)
            said.add(text)

        environment = agent_environment(
            session_id=self.id, project_id=self.project_id, folder=self._folder, socket=self.socket
        )
        try:
            with turn.scope:
                variables = await self._variables()
                work = Turn(
                    prompt=turn.prompt, folder=self._folder, environment=environment, variables=variables, say=say
                )
                self._finish(turn, await agent.run(work))
            if turn.scope.cancelled_caught:
                self._finish(turn, TurnResult(text=said.text))
        # A program that is missing, a NUL in an argument, or an `env` that cannot be read.
        except (OSError, ValueError, OublietteError) as error:
            self._agent_failed(turn, f"the agent {self.agent_name!r} cannot be started: {error}", None)
        except Exception:
            log.exception("a turn failed", session=self.id)
            self._agent_failed(turn, "the turn failed for a reason that is in the daemon's log", None)
        finally:
            self._fail(turn, Conflict(f"session {self.id!r} has ended during this turn"))

    def _finish(self, turn: TurnInLine, result: TurnResult) -> None:
        if result.exit_code != 0:
            said = f": {result.complaint}" if result.complaint else ""
            sentence = f"the agent {self.agent_name!r} exited with code {result.exit_code}{said}"
            return self._agent_failed(turn, sentence, result.exit_code)
        self.log.append(TurnCompleted, text=result.text, usage=result.usage)
        turn.text = result.text
        turn.done.set()

    def _agent_failed(self, turn: TurnInLine, sentence: str, exit_code: int | None) -> None:
        self.log.append(ErrorEvent, kind=AgentFailed.kind, message=sentence)
        self._fail(turn, AgentFailed(sentence))
        self.end("failed", exit_code)

    def _fail(self, turn: TurnInLine, error: OublietteError) -> None:
        if not turn.done.is_set():
            turn.error = error
            turn.done.set()

    def _interrupt(self) -> None:
        for waiting in self._drain_line():
            self._fail(waiting, Conflict("the message was interrupted before its turn"))
        if self._current is not None:
            self._current.scope.cancel()

    def _drain_line(self) -> list[TurnInLine]:
        turns = []
        while self._line.statistics().current_buffer_used:
            turns.append(self._turns.receive_nowait())
        return turns

    def _set_status(self, status: Status, records: Records) -> None:
        if not self.ending.is_set():
            self.status = status
            records.post_session(self.record)
