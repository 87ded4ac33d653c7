"""The relay: a session's pending caller-tool requests, each ended exactly once (WIRE section 3).

Every decision is made in plain synchronous code: admit, resolve, cancel, give up. A request that ends leaves the table,
gets its closing event, and its outcome is set, which wakes its one waiting task; whoever comes second finds it gone.
The task waits within a cancel scope whose deadline is the earlier of the request's own and the moment at which the
caller counts as disconnected. When streams come and go the deadlines of those scopes are moved: no timer task exists.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from typing import Final

import trio
from msgspec import Raw, Struct

from oubliette.declarations import CallerTool, Declaration
from oubliette.errors import (
    CallerDisconnected,
    CallerTimeout,
    CallerToolError,
    Conflict,
    InvalidParams,
    LimitExceeded,
    NotFound,
    OublietteError,
    RequestCancelled,
)
from oubliette.events import Entry, EventLog
from oubliette.presence import Presence
from oubliette.protocol.events import CallerToolCancelled, CallerToolRequest, CallerToolResolved, CancelReason
from oubliette.protocol.jsonrpc import compact
from oubliette.schemas import ViolationError

# WIRE section 3, "Answers": "the last 1,000 of a session are remembered".
REMEMBERED: Final = 1000
# How many characters of a name that an agent made up come back to it: enough to recognise it.
QUOTED: Final = 64

Outcome = bytes | OublietteError


class RelayLimits(Struct, frozen=True, kw_only=True):
    """The `relay` section of the configuration, as far as one session's requests go; times in seconds."""

    attach_grace: float = 10
    disconnect_grace: float = 0
    max_pending: int = 1000


class Progress(Struct, frozen=True, kw_only=True):
    """What a caller reports of a request under way. It does not extend the deadline."""

    progress: float
    total: float | None = None
    message: str | None = None


ProgressListener = Callable[[Progress], None]


class Pending:
    """One request that has not ended. `given` says whether a stream of the owner was handed it."""

    def __init__(self, tool: CallerTool, entry: Entry, request_id: str, on_progress: ProgressListener) -> None:
        self.tool = tool
        self.entry = entry
        self.request_id = request_id
        self.on_progress = on_progress
        self.given = False
        self.started = trio.current_time()
        self.deadline = self.started + tool.timeout_seconds
        self.scope = trio.CancelScope(deadline=self.deadline)
        self.has_ended = trio.Event()
        self._outcome: Outcome = b""

    def end(self, outcome: Outcome) -> None:
        """Sets the outcome, once: whoever comes second finds the request gone from the table."""
        self._outcome = outcome
        self.has_ended.set()

    @property
    def outcome(self) -> Outcome:
        """What it ended with, once it `has_ended`."""
        assert self.has_ended.is_set()
        return self._outcome

    @property
    def duration_ms(self) -> int:
        return round((trio.current_time() - self.started) * 1000)


class Relay:
    """The caller-tool requests of one session."""

    def __init__(self, log: EventLog, limits: RelayLimits) -> None:
        self.declaration: Declaration | None = None
        self._log = log
        self._closed = False
        self._limits = limits
        self._presence = Presence(attach_grace=limits.attach_grace, grace=limits.disconnect_grace)
        self._pending: dict[str, Pending] = {}
        self._by_index: dict[int, Pending] = {}
        self._ended: deque[str] = deque(maxlen=REMEMBERED)

    # What an agent's link asks

    def begin(
        self, tool: str, arguments: Raw | bytes, on_progress: ProgressListener = lambda progress: None
    ) -> Pending:
        """Admits a request and appends its event; `outcome` must be awaited on what it returns.

        Raises `InvalidParams` for a tool that is not declared and for arguments against its schema ("the caller never
        hears of it"), `CallerDisconnected` where no stream is open, `LimitExceeded` beyond `max_pending`, and
        `Conflict` in a session that has ended.
        """
        declared = self._declared(tool)
        _check_arguments(declared, bytes(arguments))
        self._admit(tool)
        request_id = str(uuid.uuid4())
        entry = self._log.append(
            CallerToolRequest,
            request_id=request_id,
            tool=tool,
            arguments=Raw(compact(arguments)),
            timeout_seconds=declared.timeout_seconds,
        )
        pending = Pending(declared, entry, request_id, on_progress)
        self._pending[request_id] = self._by_index[entry.index] = pending
        self._set_deadline(pending)
        return pending

    async def outcome(self, pending: Pending) -> bytes:
        """Waits for the end of a request and returns the caller's result as JSON text.

        Raises the error of section 3's table that the request ended with. A task that is cancelled here ends the
        request with reason `agent_gone`.
        """
        try:
            with pending.scope:
                await pending.has_ended.wait()
                return _unwrap(pending.outcome)
            self._give_up(pending)
            # An answer that was accepted before the deadline was noticed has won: its caller was told so.
            return _unwrap(pending.outcome)
        finally:
            self._cancel(pending, "agent_gone", "the agent's connection was closed")

    def cancel(self, pending: Pending) -> None:
        """Ends a request that the agent cancelled; one that has ended already is left alone."""
        self._cancel(pending, "agent_cancelled", "the agent cancelled the request")

    # What a caller says

    def declare(self, declaration: Declaration) -> None:
        """Replaces the declaration. Requests under way go on under the old one."""
        self.declaration = declaration

    def resolve(self, request_id: str, outcome: bytes | CallerToolError) -> None:
        """Ends a request with the caller's result, JSON text, or its error.

        Raises `NotFound` for an unknown request and `Conflict` for one that has ended; both change nothing.
        """
        pending = self._find(request_id)
        is_error = isinstance(outcome, CallerToolError)
        if isinstance(outcome, CallerToolError):
            outcome.retry_safe = False
        self._end(pending, outcome if isinstance(outcome, CallerToolError) else compact(outcome))
        self._log.append(CallerToolResolved, request_id=request_id, is_error=is_error, duration_ms=pending.duration_ms)

    def progress(self, request_id: str, progress: Progress) -> None:
        """Passes progress on to the agent's link. Raises as `resolve` does."""
        self._find(request_id).on_progress(progress)

    # What streams do

    def attach(self) -> None:
        """Counts in a stream of the owner. Whoever calls this owes a `detach`."""
        self._presence.attach()
        self._set_deadlines()

    def detach(self, linger: float = 0) -> None:
        """Counts out a stream of the owner; a poll lingers for some seconds (WIRE section 3, "Polling counts")."""
        self._presence.detach(trio.current_time(), linger)
        self._set_deadlines()

    def lose_owner(self) -> None:
        """Ends every request as `disconnected`, and refuses those to come: the owner's token is worthless."""
        self._presence.end()
        self._set_deadlines()

    @property
    def is_attached(self) -> bool:
        """Whether a stream of the owner is open, or a poll lingers."""
        return self._presence.is_open(trio.current_time())

    def give(self, index: int) -> None:
        """Notes that the event `index` was handed to a stream of the owner: from here on its tool may have run."""
        pending = self._by_index.get(index)
        if pending is not None:
            pending.given = True

    def pending_entries(self) -> list[Entry]:
        """Returns the events of the requests that are pending, in index order: what a new stream begins with."""
        return [pending.entry for pending in self._by_index.values()]

    # What a session does

    def close(self) -> None:
        """Ends every request, and refuses those to come: the session ends."""
        self._closed = True
        for pending in list(self._pending.values()):
            self._cancel(pending, "session_ended", "the session has ended")

    def _declared(self, tool: str) -> CallerTool:
        declared = self.declaration.tools if self.declaration else {}
        if tool not in declared:
            names = ", ".join(declared) or "none"
            message = f"unknown caller tool {tool[:QUOTED]!r}; declared: {names}"
            raise InvalidParams(message, field="tool", retry_safe=True)
        return declared[tool]

    def _admit(self, tool: str) -> None:
        if self._closed:
            raise Conflict("the session has ended; the tool was not called", retry_safe=True)
        if self._presence.was_ever and not self.is_attached:
            raise _disconnected(given=False)
        if len(self._pending) >= self._limits.max_pending:
            most = self._limits.max_pending
            raise LimitExceeded(f"{most} requests are pending already; {tool!r} was not called", retry_safe=True)
        if not self._log.has_room:
            raise LimitExceeded(f"the records cannot keep up; {tool!r} was not called", retry_safe=True)

    def _set_deadlines(self) -> None:
        for pending in list(self._pending.values()):
            self._set_deadline(pending)

    def _set_deadline(self, pending: Pending) -> None:
        now = trio.current_time()
        # Before the very first stream the grace counts from the request, not from now.
        gone_at = self._presence.gone_at(now if self._presence.was_ever else pending.started)
        deadline = min(pending.deadline, gone_at)
        if deadline != pending.scope.deadline:  # trio takes its time over a deadline, also over the same one
            pending.scope.deadline = deadline
        if gone_at <= now:
            self._give_up(pending)

    def _give_up(self, pending: Pending) -> None:
        """Ends a request whose time is over: its own, or that of the caller to come back."""
        if trio.current_time() >= pending.deadline:
            self._cancel_with(pending, "timeout", _timed_out(pending))
        else:
            self._cancel_with(pending, "disconnected", _disconnected(given=pending.given))

    def _cancel(self, pending: Pending, reason: CancelReason, sentence: str) -> None:
        if pending.request_id in self._pending:
            error = RequestCancelled(f"{sentence}; {_in_words(pending.given)}", retry_safe=not pending.given)
            self._cancel_with(pending, reason, error)

    def _cancel_with(self, pending: Pending, reason: CancelReason, error: OublietteError) -> None:
        if pending.request_id not in self._pending:
            return
        self._end(pending, error)
        self._log.append(
            CallerToolCancelled, request_id=pending.request_id, reason=reason, duration_ms=pending.duration_ms
        )

    def _end(self, pending: Pending, outcome: Outcome) -> None:
        """The one way out of the table."""
        del self._pending[pending.request_id]
        del self._by_index[pending.entry.index]
        self._ended.append(pending.request_id)
        pending.end(outcome)

    def _find(self, request_id: str) -> Pending:
        pending = self._pending.get(request_id)
        if pending is not None:
            return pending
        if request_id in self._ended:
            raise Conflict(f"request {request_id!r} has already ended", field="request_id")
        raise NotFound(f"no request {request_id!r} in this session", field="request_id")


def _check_arguments(tool: CallerTool, arguments: bytes) -> None:
    try:
        tool.schema.check(arguments)
    except ViolationError as violation:
        message = f"arguments of {tool.name!r}: {violation}; the tool was not called"
        raise InvalidParams(message, field="arguments", retry_safe=True) from None


def _unwrap(outcome: Outcome) -> bytes:
    if isinstance(outcome, OublietteError):
        raise outcome
    return outcome


def _in_words(given: bool) -> str:
    """What `retry_safe` says, in words."""
    return "the tool may already have run" if given else "the caller never got the request, it is safe to retry"


def _timed_out(pending: Pending) -> CallerTimeout:
    seconds = f"{pending.tool.timeout_seconds:g}"
    message = f"caller tool {pending.tool.name!r} timed out after {seconds} s; {_in_words(pending.given)}"
    return CallerTimeout(message, retry_safe=not pending.given)


def _disconnected(*, given: bool) -> CallerDisconnected:
    return CallerDisconnected(f"caller disconnected; {_in_words(given)}", retry_safe=not given)
