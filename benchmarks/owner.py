"""A caller that starts sessions, answers what their agents ask at once, and keeps what they say: one WebSocket.

It blocks, so it has a thread of its own; and it is one loop without tasks, so an answer goes out as soon as its request
is read.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from benchmarks.doors import Server, rpc_request
from benchmarks.sockets import McpSocket
from benchmarks.subjects import CALLER_ID, TOOL

# 50 sandboxes that start at once on two cores take some 20 s; this is for a machine that has more to do.
TURN_SECONDS: Final = 180.0
_EVENT: Final = b'"notifications/message"'
_CONTEXT: Final = {"caller_id": CALLER_ID, "caller_tools": [TOOL]}


class Told(msgspec.Struct):
    """One session as its caller saw it: when it was asked for, in ns of the monotonic clock, what its agent said.

    `relayed_ms` is how long each request was the daemon's and the caller's, as the daemon says it.
    """

    begun: int = 0
    ended: int = 0
    said: list[str] = msgspec.field(default_factory=list)
    relayed_ms: list[int] = msgspec.field(default_factory=list)


class _Event(msgspec.Struct):
    type: str
    session_id: str = ""
    request_id: str = ""
    role: str = ""
    text: str = ""
    message: str = ""
    duration_ms: int = 0
    arguments: msgspec.Raw = msgspec.Raw()


class _Params(msgspec.Struct):
    data: _Event


class _Notification(msgspec.Struct):
    params: _Params


class _Session(msgspec.Struct):
    session_id: str = ""


class _Result(msgspec.Struct):
    isError: bool = False
    structuredContent: _Session | None = None


class _Response(msgspec.Struct):
    id: int
    result: _Result


_decode_event: Final = msgspec.json.Decoder(_Notification).decode
_decode_response: Final = msgspec.json.Decoder(_Response).decode


class Owner:
    """A caller with one connection. Raises `ValueError` where the server refuses something or an agent fails."""

    def __init__(self, server: Server) -> None:
        self._socket = McpSocket(server)
        self._told: defaultdict[str, Told] = defaultdict(Told)
        self._asked_for: dict[int, int] = {}

    def run(self, prompts: Sequence[str]) -> list[Told]:
        """Starts a session for each prompt, all at once, and ends them when each has had its turn.

        Raises `TimeoutError` where one has not within `TURN_SECONDS`.
        """
        self._told.clear()
        for prompt in prompts:
            self._start(prompt)
        deadline = time.monotonic() + TURN_SECONDS
        while self._asked_for or not all(told.ended for told in self._told.values()):
            for message in self._socket.receive():
                self._take(message)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._unfinished} of {len(prompts)} sessions have not finished")
        for session in self._told:
            self._socket.ask("tools/call", {"name": "session_end", "arguments": {"session_id": session}})
        return list(self._told.values())

    @property
    def _unfinished(self) -> int:
        return len(self._asked_for) + sum(not told.ended for told in self._told.values())

    def _start(self, prompt: str) -> None:
        begun = time.monotonic_ns()
        self._asked_for[self._call("session_message", {"message": prompt, "context": _CONTEXT})] = begun

    def _call(self, tool: str, arguments: object) -> int:
        number = self._socket.next_id()
        call = rpc_request("tools/call", {"name": tool, "arguments": arguments}, number)
        self._socket.send(msgspec.json.encode(call))
        return number

    def _take(self, message: bytes) -> None:
        if _EVENT in message:
            self._take_event(_decode_event(message).params.data)
        elif b'"result"' in message or b'"error"' in message:
            self._take_response(message)

    def _take_response(self, message: bytes) -> None:
        try:
            response = _decode_response(message)
        except msgspec.ValidationError:
            raise ValueError(f"the daemon refused: {message!r}") from None
        if response.result.isError or response.result.structuredContent is None:
            raise ValueError(f"the daemon refused: {message!r}")
        if (begun := self._asked_for.pop(response.id, None)) is not None:
            self._told[response.result.structuredContent.session_id].begun = begun

    def _take_event(self, event: _Event) -> None:
        told = self._told[event.session_id]
        match event.type:
            case "caller_tool_request":
                place = {"session_id": event.session_id, "request_id": event.request_id}
                self._call("caller_tool_response", {**place, "result": event.arguments})
            case "caller_tool_resolved":
                told.relayed_ms.append(event.duration_ms)
            case "message" if event.role == "assistant":
                told.said.append(event.text)
            case "turn_completed":
                told.ended = time.monotonic_ns()
            case "error":
                raise ValueError(f"a session failed: {event.message}")
