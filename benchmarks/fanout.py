"""Fan-out: one session whose events 100 streams of its owner follow, beside the same session with one stream.

`python -m benchmarks.fanout [--streams 100] [--in-flight 4] [--rounds 3] [--seconds 4] [--json] [--quick]`

An agent has 4 calls of `echo` in flight, each answer followed at once by the next call. The caller that answers is one
of the streams. The others only read, in a process of their own, which checks that each of them is given every event:
the request and the end of every call, none missing, doubled or out of turn. That is measured over SSE (plain HTTP,
where the caller answers by POST) and over WebSocket, in turns.

The CPU per call is the daemon's. The CPU per event is the same, over what it has delivered for the call: two events to
each stream. The p99 is held against that of 8 sessions with a stream each and as many calls in flight in each: the aim
is less than 5 times as much, although each call of theirs is delivered to one stream only.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import trio

from benchmarks.followers import FollowerPlan, FollowerReport
from benchmarks.load import (
    DAEMON_HTTP,
    DAEMON_SOCKET,
    SLACK_SECONDS,
    Kind,
    Level,
    Measurement,
    Window,
    at_most,
    load,
    load_process,
    measurement,
    started,
)
from benchmarks.process import run_to_end
from benchmarks.rounds import Row, judge, line, summary

SYSTEMS: Final = {"SSE": DAEMON_HTTP, "WebSocket": DAEMON_SOCKET}
AIM: Final = 5.0
# A call's request and its end.
EVENTS_PER_CALL: Final = 2
OTHERS: Final = 8
QUICK: Final = Window(warm_up_seconds=0.1, seconds=0.3)


class Case(msgspec.Struct, frozen=True):
    """What is measured: so many `streams` of each session, at a load."""

    title: str
    kind: Kind
    level: Level
    streams: int


async def measure_case(case: Case, window: Window) -> Measurement:
    """Returns the figures of one window. Raises `ProcessFailedError`, also where a stream is not given every event."""
    async with load() as clients, load_process("benchmarks.followers") as followers, started(case.kind) as system:
        sessions = await clients.open_sessions(system, case.level, window)
        assert system.token is not None
        plan = FollowerPlan(
            url=system.url,
            door="ws" if case.kind.door == "ws" else "http",
            token=system.token,
            session_id=sessions[0].session_id,
            streams=case.streams - 1,
            at_most_seconds=at_most(window),
        )
        await followers.write(msgspec.json.encode(plan))
        await followers.read(seconds=SLACK_SECONDS)
        agents, callers = await clients.run(system, sessions, case.level, window)
        await followers.write(b"%d" % agents.all_calls)
        report = msgspec.json.decode(await followers.read(seconds=SLACK_SECONDS), type=FollowerReport)
    seen = measurement(agents, callers)
    reading = report.load_cpu_seconds / agents.all_calls * 1e6
    return msgspec.structs.replace(seen, load_cpu_us_per_call=seen.load_cpu_us_per_call + reading)


def cases(streams: int, in_flight: int) -> list[Case]:
    """Returns what is measured, in the order of the table."""
    return [
        case
        for title, kind in SYSTEMS.items()
        for case in (
            Case(f"{title}, {OTHERS} sessions", kind, Level(OTHERS, in_flight), 1),
            Case(f"{title}, 1 stream", kind, Level(1, in_flight), 1),
            Case(f"{title}, {streams} streams", kind, Level(1, in_flight), streams),
        )
    ]


async def run(measured: list[Case], rounds: int, window: Window) -> dict[Case, Row]:
    """Measures everything, in turns, so that a slow minute of the machine hits them all."""
    seen: dict[Case, list[Measurement]] = {case: [] for case in measured}
    for _ in range(rounds):
        for case in measured:
            seen[case].append(await measure_case(case, window))
    return {case: summary(found) for case, found in seen.items()}


async def run_quickly() -> dict[Case, Row]:
    """Returns one short round of three streams, both systems at once."""
    seen: dict[Case, Row] = {}

    async def add(case: Case) -> None:
        seen[case] = summary([await measure_case(case, QUICK)])

    async with trio.open_nursery() as nursery:
        for title, kind in SYSTEMS.items():
            nursery.start_soon(add, Case(f"{title}, 3 streams", kind, Level(1, 2), 3))
    return seen


def table(rows: Mapping[Case, Row]) -> Iterator[str]:
    """Yields the lines of the table, and the verdicts."""
    yield line("", ("calls/s", "p50 ms", "p99 ms", "CPU µs/call", "CPU µs/event", "load µs/call"))
    for case, row in rows.items():
        per_event = row.cpu_us_per_call / (EVENTS_PER_CALL * case.streams)
        figures = f"{row.calls_per_second:.0f} {row.p50_ms:.2f} {row.p99_ms:.2f} {row.cpu_us_per_call:.0f}"
        yield line(case.title, [*figures.split(), f"{per_event:.1f}", f"{row.load_cpu_us_per_call:.0f}"])
    for case, row in rows.items():
        if case.streams > 1:
            yield from _verdict(case, row, rows)


def _verdict(case: Case, row: Row, rows: Mapping[Case, Row]) -> Iterator[str]:
    for other, theirs in rows.items():
        if other.kind is case.kind and other.level.sessions == OTHERS:
            yield judge(f"{case.title} beside {other.title}", row.p99_ms / theirs.p99_ms, AIM)


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--in-flight", type=int, default=4, help="calls of a session at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window; a quarter more warms up")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="three streams, all systems at once, for tests")
    given = parser.parse_args()
    window = Window(given.seconds / 4, given.seconds)
    measured = cases(given.streams, given.in_flight)
    rows = run_to_end(run_quickly) if given.quick else run_to_end(run, measured, given.rounds, window)
    as_json = msgspec.json.encode({case.title: row for case, row in rows.items()}).decode()
    print(as_json if given.json else "\n".join(table(rows)))


if __name__ == "__main__":
    main()
