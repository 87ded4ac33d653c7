"""The caller's side of a session: it offers tools, follows the events, and answers (WIRE sections 3 and 4.2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

from oubliette.cli.client import DaemonClient, RefusedError
from oubliette.demo.show import Story
from oubliette.protocol.sse import ServerSentEvent

CALLER_ID: Final = "myapp"
_SHORT: Final = 8


class MissingEventError(Exception):
    """The stream ended before the event that had to come."""


class CallerSession:
    """One session and its stream; every hop is told to `story`. Leaving closes the stream and ends the session.

    Methods raise `RefusedError` and `UnreachableError` besides what they say.
    """

    def __init__(self, story: Story, daemon: DaemonClient, tool: dict[str, Any], prompt: str) -> None:
        self._story = story
        self._daemon = daemon
        context = {"caller_id": CALLER_ID, "caller_tools": [tool]}
        story.hop("caller → daemon", f"POST /sessions: offers the tool {tool['name']}; the agent is to {prompt}")
        self.id: str = daemon.request("POST", "/sessions", {"message": prompt, "context": context})["session_id"]
        self._stream = ExitStack()
        self._events: Iterator[ServerSentEvent] = iter(())
        self._last_id = "0"
        self._reader = "caller"
        self.said: list[str] = []
        """what the agent has said, line by line"""

    def __enter__(self) -> Self:
        self.follow(self._daemon, self._reader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.close()
        if kind is None:
            self._daemon.request("DELETE", f"/sessions/{self.id}")

    def follow(self, daemon: DaemonClient, reader: str) -> None:
        """Opens a stream after the last event that was seen. `reader` says in the story whose it is."""
        self._reader = reader
        self._story.hop(f"{reader} → daemon", f"GET /sessions/{self.id[: 4 + _SHORT]}…/events: opens the SSE stream")
        self._events = self._stream.enter_context(daemon.events(f"/sessions/{self.id}/events", self._last_id))

    def close_stream(self) -> None:
        """Hangs up."""
        self._story.hop("caller ✕ daemon", "closes its stream while the call is pending")
        self._stream.close()

    def next_of(self, kind: str) -> Any:
        """Returns the next event of a type, told like those before it. Raises `MissingEventError`."""
        for received in self._events:
            self._last_id = received.id or self._last_id
            event = json.loads(received.data)
            self._tell(event)
            if event["type"] == kind:
                return event
        raise MissingEventError(f"the stream ended without a {kind} event")

    def answer(self, request_id: str, **outcome: Any) -> str:
        """Answers a request with `result` or `error`. Returns the kind of the refusal, where it is refused."""
        self._story.hop("caller → daemon", f"POST …/requests/{request_id[:_SHORT]}…: {json.dumps(outcome)}")
        try:
            self._daemon.request("POST", f"/sessions/{self.id}/requests/{request_id}", outcome)
        except RefusedError as refusal:
            self._story.hop("daemon → caller", f"refuses it: {refusal} ({refusal.kind})")
            return refusal.kind
        return ""

    def _tell(self, event: dict[str, Any]) -> None:
        if event["type"] == "message" and event["role"] == "assistant":
            self.said.append(event["text"])
            self._story.hop("agent", event["text"])
        elif event["type"] in _WORDS:
            self._story.hop(f"daemon → {self._reader}", f"{event['type']}{_WORDS[event['type']](event)}")


def _request(event: dict[str, Any]) -> str:
    return f" {event['request_id'][:_SHORT]}…: {event['tool']} {json.dumps(event['arguments'])}"


def _resolved(event: dict[str, Any]) -> str:
    ending = "with an error" if event["is_error"] else "with a result"
    return f" {event['request_id'][:_SHORT]}…: {ending}, after {event['duration_ms']} ms"


def _cancelled(event: dict[str, Any]) -> str:
    return f" {event['request_id'][:_SHORT]}…: {event['reason']}, after {event['duration_ms']} ms"


# What is told of each type of event; the others are no part of the story.
_WORDS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "caller_tool_request": _request,
    "caller_tool_resolved": _resolved,
    "caller_tool_cancelled": _cancelled,
    "turn_completed": lambda event: "",
    "error": lambda event: f": {event['message']}",
    "session_ended": lambda event: f": {event['reason']}",
}
