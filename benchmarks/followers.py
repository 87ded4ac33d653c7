"""The streams that follow one session, in one process, and the check that each of them is given every event.

`python -m benchmarks.followers` reads a `FollowerPlan` as one line of stdin, opens the streams, prints an empty line,
follows, and when a second line of stdin says how many calls there were, waits until every stream has had the request
and the end of each one, and prints a `FollowerReport`. A session's events are numbered without gaps (WIRE section 5):
a stream on which a number is missing, doubled or out of turn is an error.
"""

from __future__ import annotations

import gc
import sys
from typing import Final, Literal

import msgspec

from benchmarks import loop
from benchmarks.doors import Server, request_stream
from benchmarks.http1 import EventReader
from benchmarks.meters import own_cpu_seconds
from benchmarks.sockets import McpSocket

_INDEX: Final = b'"index":'
_REQUEST: Final = b'"caller_tool_request"'
_RESOLVED: Final = b'"caller_tool_resolved"'
# How often it is looked at whether the last stream has had the last event.
_LOOK_SECONDS: Final = 0.01


class FollowerPlan(msgspec.Struct, frozen=True):
    """What shall be followed: the session `session_id` of the server at `url`, by so many `streams` of its owner."""

    url: str
    door: Literal["http", "ws"]
    token: str
    session_id: str
    streams: int
    at_most_seconds: float


class FollowerReport(msgspec.Struct, frozen=True):
    """What the streams were given, all together, and the CPU time it took the load to read it."""

    events: int
    load_cpu_seconds: float


class Follower:
    """One stream, by the events that it is given."""

    def __init__(self) -> None:
        self.requests = 0
        self.resolved = 0
        self._last: int | None = None

    def take(self, events: list[bytes]) -> None:
        """Takes events, each as JSON. Raises `ValueError` where one is missing before, or comes again."""
        for event in events:
            at = event.index(_INDEX) + len(_INDEX)
            index = int(event[at : event.index(b",", at)])
            if self._last is not None and index != self._last + 1:
                raise ValueError(f"event {index} was given behind event {self._last}")
            self._last = index
            self.requests += _REQUEST in event
            self.resolved += _RESOLVED in event


def follow_over_http(plan: FollowerPlan, server: Server, events: loop.Loop, follower: Follower) -> None:
    """Opens a stream of the session's events as SSE."""
    stream, reader = server.connect(), EventReader()
    stream.sendall(request_stream(server, plan.session_id))
    while reader.status is None:
        follower.take(reader.feed(loop.receive(stream)))
    stream.setblocking(False)
    events.watch(stream, lambda: follower.take(reader.feed(loop.receive(stream))))


def follow_over_websocket(plan: FollowerPlan, server: Server, events: loop.Loop, follower: Follower) -> None:
    """Opens a WebSocket that follows the session since it has asked for it (WIRE section 4.1)."""
    stream = McpSocket(server)
    stream.ask("tools/call", {"name": "session_get", "arguments": {"session_id": plan.session_id}})
    stream.stop_blocking()
    events.watch(stream, lambda: follower.take(stream.receive()))


def run(plan: FollowerPlan) -> FollowerReport:
    """Follows until every stream has had everything. Raises `TimeoutError` where one does not get it."""
    server, events = Server(plan.url, plan.token), loop.Loop()
    followers = [Follower() for _ in range(plan.streams)]
    follow = follow_over_websocket if plan.door == "ws" else follow_over_http
    for follower in followers:
        follow(plan, server, events, follower)
    print(flush=True)
    used = own_cpu_seconds()
    # Nothing but the number of calls is written to stdin now.
    events.watch(sys.stdin, lambda: _leave_when_complete(events, followers, int(sys.stdin.buffer.readline())))
    events.run(at_most_seconds=plan.at_most_seconds)
    return FollowerReport(sum(it.requests + it.resolved for it in followers), own_cpu_seconds() - used)


def _leave_when_complete(events: loop.Loop, followers: list[Follower], calls: int) -> None:
    def look() -> None:
        if all((it.requests, it.resolved) == (calls, calls) for it in followers):
            events.stop()
        else:
            events.call_later(_LOOK_SECONDS, look)

    look()


def main() -> None:
    """Runs the plan that comes on stdin."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=FollowerPlan)
    # A collection of the load's own garbage would be measured as the system's latency.
    gc.disable()
    print(msgspec.json.encode(run(plan)).decode(), flush=True)


if __name__ == "__main__":
    main()
