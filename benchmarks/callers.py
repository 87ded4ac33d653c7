"""The callers of a benchmark, in one process: each starts one session, follows its events, and answers its requests.

`python -m benchmarks.callers` reads a `CallerPlan` as one line of stdin, starts the sessions, prints them as one line
of stdout (a JSON array), answers until stdin is closed, and prints a `CallerReport`. An answer is the echo of the
request's arguments. Over HTTP it goes out on one of the caller's keep-alive connections, beside the stream; over
WebSocket there is one connection, and each answer is a write of its own, as a task of its own would make it. Every
acceptance is checked.
"""

from __future__ import annotations

import gc
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Literal

import msgspec

from benchmarks import loop
from benchmarks.doors import START_CALL, Event, Server, Started, ToolResult, start_http, start_mcp
from benchmarks.http1 import EventReader, Response, ResponseReader
from benchmarks.meters import own_cpu_seconds
from benchmarks.sockets import McpSocket, decode_response

SETTLE_SECONDS: Final = 0.2
_CALLER_TOOL_REQUEST: Final = b'"caller_tool_request"'
_ANSWER: Final = (
    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"caller_tool_response","arguments":'
    b'{"session_id":"%b","request_id":"%b","result":%b}}}'
)


class CallerPlan(msgspec.Struct, frozen=True):
    """What the callers shall do: answer in `sessions` sessions of `url`, each request `delay_seconds` after it came."""

    url: str
    door: Literal["mcp", "http", "ws"]
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
_decode_params: Final = msgspec.json.Decoder(_Notification).decode


def _decode_notification(message: bytes) -> Event:
    return _decode_params(message).params.data


_DOORS: Final = {"mcp": (start_mcp, _decode_notification), "http": (start_http, _decode_event)}


class Caller(ABC):
    """One caller: the session that it has started, and how many of its `answers` were accepted."""

    def __init__(self, plan: CallerPlan, session: Started, events: loop.Loop) -> None:
        self.session = session
        self.answers = 0
        self._delay_seconds = plan.delay_seconds
        self._loop = events

    @abstractmethod
    def answer(self, event: Event) -> None:
        """Sends the answer to a request."""

    def take(self, event: Event) -> None:
        """Takes a request, which is answered when its tool has taken its time."""
        if self._delay_seconds:
            self._loop.call_later(self._delay_seconds, partial(self.answer, event))
        else:
            self.answer(event)

    def accept(self, body: bytes) -> None:
        """Takes what an answer was answered with. Raises `ValueError` where it was refused."""
        if b'"isError":true' in body or b'"error":' in body:
            raise ValueError(f"an answer was refused: {body!r}")
        self.answers += 1


class HttpCaller(Caller):
    """A caller with a stream, and a pool of connections for its answers."""

    def __init__(self, plan: CallerPlan, server: Server, events: loop.Loop) -> None:
        start, self._decode = _DOORS[plan.door]
        self._door = start(server)
        super().__init__(plan, self._door.session, events)
        self._reader = EventReader()
        self._pool = Pool(server, plan.in_flight, events, self.accept)
        self._stream = server.connect()
        self._open_stream()

    def answer(self, event: Event) -> None:
        """Sends the answer to a request."""
        self._pool.post(self._door.answer(event))

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
                self.take(self._decode(event))


class SocketCaller(Caller):
    """A caller with one WebSocket, which carries everything."""

    def __init__(self, plan: CallerPlan, server: Server, events: loop.Loop) -> None:
        self._socket = McpSocket(server)
        started = msgspec.json.decode(self._socket.ask("tools/call", START_CALL), type=ToolResult)
        super().__init__(plan, started.structuredContent, events)
        self._waiting: set[int] = set()
        self._socket.stop_blocking()
        events.watch(self._socket, self._on_readable)

    def answer(self, event: Event) -> None:
        """Sends the answer to a request."""
        id = self._socket.next_id()
        self._waiting.add(id)
        self._socket.send(_ANSWER % (id, event.session_id.encode(), event.request_id.encode(), event.arguments))

    def _on_readable(self) -> None:
        for message in self._socket.receive():
            if _CALLER_TOOL_REQUEST in message:
                self.take(_decode_notification(message))
            elif (id := decode_response(message).id) is not None:
                self._waiting.remove(id)
                self.accept(message)


class Pool:
    """Keep-alive connections of one caller, one request in flight on each.

    An agent may have its answer, and so its next request out, before the caller has read that its answer was accepted:
    so up to twice `in_flight` connections are opened, as a client's pool would; beyond that answers wait for one.
    """

    def __init__(self, server: Server, in_flight: int, events: loop.Loop, accept: Callable[[bytes], None]) -> None:
        self._server = server
        self._accept = accept
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
        if response.status not in (200, 204):
            raise ValueError(f"an answer was refused: {response}")
        self._accept(response.body)
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
    kind = SocketCaller if plan.door == "ws" else HttpCaller
    callers = [kind(plan, server, events) for _ in range(plan.sessions)]
    # The head of a stream may be out before the system has noted the stream; an SDK session drops what comes between.
    time.sleep(SETTLE_SECONDS)
    print(msgspec.json.encode([caller.session for caller in callers]).decode(), flush=True)
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
