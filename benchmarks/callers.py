"""The callers of a benchmark, in one process: each starts one session, follows its events, and answers its requests.

`python -m benchmarks.callers` reads a `CallerPlan` as one line of stdin, starts the sessions, prints the paths of their
sockets as one line of stdout (a JSON array), answers until stdin is closed, and prints a `CallerReport`. An answer is
the echo of the request's arguments, on one of the caller's keep-alive connections; every acceptance is checked.
"""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections import deque
from typing import Final, Literal

import msgspec

from benchmarks import loop
from benchmarks.agents import own_cpu_seconds
from benchmarks.doors import Door, Event, Server, start_http, start_mcp
from benchmarks.http1 import EventReader, Response, ResponseReader

SETTLE_SECONDS: Final = 0.2
_CALLER_TOOL_REQUEST: Final = b'"caller_tool_request"'


class CallerPlan(msgspec.Struct, frozen=True):
    """What the callers shall do: answer in `sessions` sessions of `url`, each request `delay_seconds` after it came."""

    url: str
    door: Literal["mcp", "http"]
    sessions: int
    in_flight: int
    at_most_seconds: float
    token: str | None = None
    delay_seconds: float = 0.0


class CallerReport(msgspec.Struct, frozen=True):
    """What the callers did: answers that were accepted, and the CPU time it took them."""

    answers: int
    load_cpu_seconds: float


class _Params(msgspec.Struct):
    data: Event


class _Notification(msgspec.Struct):
    params: _Params


_decode_event: Final = msgspec.json.Decoder(Event).decode
_decode_notification: Final = msgspec.json.Decoder(_Notification).decode


class Caller:
    """One caller: its stream, and its pool of connections for answers."""

    def __init__(self, plan: CallerPlan, server: Server, door: Door, events: loop.Loop) -> None:
        self._plan = plan
        self._door = door
        self._loop = events
        self._reader = EventReader()
        self._pool = Pool(server, plan.in_flight, events)
        self._stream = server.connect()
        self._open_stream()

    @property
    def answers(self) -> int:
        """How many answers were accepted."""
        return self._pool.accepted

    def _open_stream(self) -> None:
        self._stream.sendall(self._door.stream)
        while self._reader.status is None:
            self._take(loop.receive(self._stream))
        self._stream.setblocking(False)
        self._loop.watch(self._stream, self._on_readable)

    def _on_readable(self) -> None:
        self._take(loop.receive(self._stream))

    def _take(self, data: bytes) -> None:
        for event in self._reader.feed(data):
            if _CALLER_TOOL_REQUEST in event:
                self._on_request(
                    _decode_notification(event).params.data if self._plan.door == "mcp" else _decode_event(event)
                )

    def _on_request(self, event: Event) -> None:
        if self._plan.delay_seconds:
            self._loop.call_later(self._plan.delay_seconds, lambda: self._pool.post(self._door.answer(event)))
        else:
            self._pool.post(self._door.answer(event))


class Pool:
    """Keep-alive connections of one caller, one request in flight on each.

    An agent may have its answer, and so its next request out, before the caller has read that its answer was accepted:
    so up to twice `in_flight` connections are opened, as a client's pool would; beyond that answers wait for one.
    """

    def __init__(self, server: Server, in_flight: int, events: loop.Loop) -> None:
        self.accepted = 0
        self._server = server
        self._loop = events
        self._room = in_flight * 2
        self._waiting: deque[bytes] = deque()
        self._idle: list[Poster] = []
        for _ in range(in_flight):
            self._idle.append(self._open())

    def post(self, data: bytes) -> None:
        """Sends a whole request on an idle connection, or as soon as there is one."""
        if self._idle:
            self._idle.pop().post(data)
        elif self._room:
            self._open().post(data)
        else:
            self._waiting.append(data)

    def finished(self, poster: Poster, response: Response) -> None:
        """Takes a response: it must say that the answer was accepted. Raises `ValueError` otherwise."""
        if response.status not in (200, 204) or b'"isError":true' in response.body or b'"error":' in response.body:
            raise ValueError(f"an answer was refused: {response}")
        self.accepted += 1
        if self._waiting:
            poster.post(self._waiting.popleft())
        else:
            self._idle.append(poster)

    def _open(self) -> Poster:
        self._room -= 1
        return Poster(self, self._server.connect(), self._loop)


class Poster:
    """One keep-alive connection."""

    def __init__(self, pool: Pool, sock: socket.socket, events: loop.Loop) -> None:
        self._pool = pool
        self._sock = sock
        self._reader = ResponseReader()
        sock.setblocking(False)
        events.watch(sock, self._on_readable)

    def post(self, data: bytes) -> None:
        """Sends a whole request."""
        loop.send(self._sock, data)

    def _on_readable(self) -> None:
        response = self._reader.feed(loop.receive(self._sock))
        if response is not None:
            self._pool.finished(self, response)


def main() -> None:
    """Runs the plan that comes on stdin."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=CallerPlan)
    server, events = Server(plan.url, plan.token), loop.Loop()
    start = {"mcp": start_mcp, "http": start_http}[plan.door]
    doors = [start(server) for _ in range(plan.sessions)]
    callers = [Caller(plan, server, door, events) for door in doors]
    # The head of a stream may be out before the system has noted the stream; an SDK session drops what comes between.
    time.sleep(SETTLE_SECONDS)
    print(msgspec.json.encode([door.session.socket for door in doors]).decode(), flush=True)
    # A collection of the load's own garbage would be measured as the system's latency.
    gc.disable()
    used = own_cpu_seconds()
    # Nothing more is written to stdin: readable means closed.
    events.watch(sys.stdin, events.stop)
    events.run(at_most_seconds=plan.at_most_seconds)
    report = CallerReport(sum(caller.answers for caller in callers), own_cpu_seconds() - used)
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
