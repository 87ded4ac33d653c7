"""The events of a session as they stand on the wire (WIRE section 5)."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Raw, Struct

CancelReason = Literal["timeout", "disconnected", "agent_cancelled", "agent_gone", "session_ended", "interrupted"]
EndReason = Literal["completed", "failed", "ended", "idle", "shutdown", "interrupted"]

LOGGER: Final = "oubliette.session"
_NOTIFICATION: Final = (
    b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","logger":"%b","data":%%b}}'
    % LOGGER.encode()
)


class Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every event carries: `index` counts from 1 within a session, `ts` is RFC 3339 UTC."""

    session_id: str
    index: int
    ts: str


class SessionStarted(Event, frozen=True, kw_only=True, tag="session_started"):
    project_id: str
    workspace_id: str
    agent: str
    runtime: str
    parent_id: str | None


class Message(Event, frozen=True, kw_only=True, tag="message"):
    role: Literal["user", "assistant"]
    text: str


class ToolCall(Event, frozen=True, kw_only=True, tag="tool_call"):
    """The agent says that it calls a tool; `arguments` as it spelled them."""

    tool: str
    arguments: Raw


class ToolResult(Event, frozen=True, kw_only=True, tag="tool_result"):
    """The agent says how a tool call ended."""

    tool: str
    is_error: bool


class CallerToolRequest(Event, frozen=True, kw_only=True, tag="caller_tool_request"):
    request_id: str
    tool: str
    arguments: Raw
    timeout_seconds: float


class CallerToolResolved(Event, frozen=True, kw_only=True, tag="caller_tool_resolved"):
    request_id: str
    is_error: bool
    duration_ms: int


class CallerToolCancelled(Event, frozen=True, kw_only=True, tag="caller_tool_cancelled"):
    request_id: str
    reason: CancelReason
    duration_ms: int


class TurnCompleted(Event, frozen=True, kw_only=True, tag="turn_completed"):
    text: str
    usage: dict[str, int] | None


class ErrorEvent(Event, frozen=True, kw_only=True, tag="error"):
    kind: str
    message: str


class SessionEnded(Event, frozen=True, kw_only=True, tag="session_ended"):
    reason: EndReason
    exit_code: int | None


class EventsPurged(Struct, frozen=True, kw_only=True, tag_field="type", tag="events_purged"):
    """Not an event of the session: tells one reader that what it asked for is gone. It has no index."""

    session_id: str
    since_index: int
    first_index: int
    ts: str


def as_notification(event: bytes) -> bytes:
    """Returns the MCP log message that carries an encoded event (WIRE section 4.1)."""
    return _NOTIFICATION % event
