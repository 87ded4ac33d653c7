"""The links of a benchmark, in one process: raw unix sockets in the place of agents, and calls on each.

`python -m benchmarks.links` reads an `AgentPlan` as one line of stdin, calls, and prints an `AgentReport` as one line
of stdout. In a closed loop a fixed number of calls is in flight on each link: each answer is followed by the next call.
In an open loop each link calls at random times, so many a second on average, whether it has been answered or not: what
is slow cannot slow its own load down. Latency is measured here: from a call's line on the link to its answer's. Every
answer is checked: it must be the echo of its own call's arguments.
"""

from __future__ import annotations

import gc
import random
import socket
import sys
import time
from typing import Final

import msgspec

from benchmarks import loop
from benchmarks.meters import cpu_seconds, own_cpu_seconds, percentile

# About 200 bytes of arguments, as the figures have it.
TEXT: Final = "The quick brown fox jumps over the lazy dog. " * 4
# How long the calls in flight may take to come back when the window is over.
DRAIN_SECONDS: Final = 10.0


class AgentPlan(msgspec.Struct, frozen=True):
    """What the agents shall do on each of `sockets`; `pid` is the process whose CPU is measured.

    With `calls_per_second` that many calls of each link, at random times; else `in_flight` calls at any time.
    """

    sockets: list[str]
    in_flight: int
    warm_up_seconds: float
    seconds: float
    pid: int
    calls_per_second: float | None = None


class AgentReport(msgspec.Struct, frozen=True):
    """What the agents saw in the window: answered calls, its length, CPU of the system and of the agents, latencies.

    `all_calls` counts those before and behind it too; all were answered.
    """

    calls: int
    seconds: float
    cpu_seconds: float
    p50_ms: float
    p99_ms: float
    load_cpu_seconds: float
    all_calls: int = 0


class _Echo(msgspec.Struct):
    n: int
    text: str


class _Line(msgspec.Struct):
    id: int | None = None
    result: _Echo | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode: Final = msgspec.json.Decoder(_Line).decode
_CALL: Final = (
    b'{"jsonrpc":"2.0","id":%%d,"method":"caller_tool","params":{"tool":"echo","arguments":{"n":%%d,"text":"%b"}}}\n'
    % TEXT.encode()
)


class Fleet:
    """All agents: their links, what is in flight, and the latencies of what has come back."""

    def __init__(self, plan: AgentPlan) -> None:
        self._plan = plan
        self._loop = loop.Loop()
        self._number = 0
        # The same calls at the same times in every round, for every system.
        self._random = random.Random(1)
        self._sent: dict[int, float] = {}
        self._latencies: list[float] = []
        self._opened = (0.0, 0.0, 0.0)
        self._report: AgentReport | None = None

    def run(self) -> AgentReport:
        """Runs warm-up and window. Raises `TimeoutError` when answers stay away, `ValueError` for a wrong one."""
        links = [Link(self, path, self._loop) for path in self._plan.sockets]
        for link in links:
            self._begin(link)
        self._loop.call_later(self._plan.warm_up_seconds, self._open_window)
        self._loop.call_later(self._plan.warm_up_seconds + self._plan.seconds, self._close_window)
        try:
            self._loop.run(at_most_seconds=self._plan.warm_up_seconds + self._plan.seconds + DRAIN_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"{len(self._sent)} calls have no answer: {error}, the system is saturated") from None
        assert self._report is not None
        return msgspec.structs.replace(self._report, all_calls=self._number)

    def _begin(self, link: Link) -> None:
        if self._plan.calls_per_second is not None:
            return self._call_at_random(link, self._plan.calls_per_second, time.perf_counter())
        for _ in range(self._plan.in_flight):
            self.call(link)

    def _call_at_random(self, link: Link, rate: float, since: float) -> None:
        """Calls on `link` at the times of a Poisson process, as unconnected agents do together."""
        due = since + self._random.expovariate(rate)

        def call() -> None:
            if self._report is None:
                self.call(link)
                self._call_at_random(link, rate, due)

        self._loop.call_at(due, call)

    def call(self, link: Link) -> None:
        """Sends the next call on `link`."""
        self._number += 1
        self._sent[self._number] = time.perf_counter()
        loop.send(link.sock, _CALL % (self._number, self._number))

    def answered(self, link: Link, line: bytes) -> None:
        """Takes a line of `link`: an answer is checked, timed and followed by the next call."""
        answer = _decode(line)
        if answer.id is None:
            return
        if answer.result is None or answer.result.n != answer.id:
            raise ValueError(f"call {answer.id} was answered with {line.decode(errors='replace')}")
        self._latencies.append(time.perf_counter() - self._sent.pop(answer.id))
        if self._report is None:
            self._next(link)
        elif not self._sent:
            self._loop.stop()

    def _next(self, link: Link) -> None:
        if self._plan.calls_per_second is None:
            self.call(link)

    def _open_window(self) -> None:
        self._latencies.clear()
        self._opened = _clocks(self._plan.pid)

    def _close_window(self) -> None:
        wall, cpu, own = (now - then for now, then in zip(_clocks(self._plan.pid), self._opened, strict=True))
        latencies = sorted(self._latencies)
        if not latencies:
            raise TimeoutError("no call came back within the window")
        self._report = AgentReport(
            calls=len(latencies),
            seconds=wall,
            cpu_seconds=cpu,
            p50_ms=percentile(latencies, 0.50) * 1000,
            p99_ms=percentile(latencies, 0.99) * 1000,
            load_cpu_seconds=own,
        )
        if not self._sent:
            self._loop.stop()


class Link:
    """One agent's connection to its session's socket."""

    def __init__(self, fleet: Fleet, path: str, events: loop.Loop) -> None:
        self._fleet = fleet
        self._rest = b""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.sock.setblocking(False)
        events.watch(self.sock, self._on_readable)

    def _on_readable(self) -> None:
        *lines, self._rest = (self._rest + loop.receive(self.sock)).split(b"\n")
        for line in lines:
            self._fleet.answered(self, line)


def _clocks(pid: int) -> tuple[float, float, float]:
    return time.perf_counter(), cpu_seconds(pid), own_cpu_seconds()


def main() -> None:
    """Runs the plan that comes on stdin."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=AgentPlan)
    # A collection of the load's own garbage would be measured as the system's latency.
    gc.disable()
    print(msgspec.json.encode(Fleet(plan).run()).decode(), flush=True)


if __name__ == "__main__":
    main()
