"""A crowd: one daemon with 2,000 sessions, of which 5 % are busy, beside one with 8 sessions that are all busy.

`python -m benchmarks.crowd [--sessions 2000] [--busy 100] [--rate 2] [--door http] [--rounds 3] [--seconds 30] [--json]
[--quick]`

Every session has a link and a stream. The aim: the p99 of a call among the 2,000 is less than 5 times that among the 8.

What is compared. A busy session is one whose agent calls some times a second, each time with one call, as an agent does
that thinks in between; the crowd has 100 such sessions and the other daemon 8, at the same rate each. The times are
random (a Poisson process for each link, the same in every round) and do not wait for answers: an open loop, in which
the crowd asks 12.5 times as much of the daemon, and what it lets wait makes nobody ask less. So the ratio holds what
2,000 sessions cost by being there (timers, keep-alive comments, tables) and what 100 cost by queueing for one core. It
is the honest reading as long as the core is not saturated, and the column `core` says so: near 100 % the p99 says only
how long the window was. To tell the two parts apart there are also 8 sessions that together call as often as the 100.

A closed loop, each answer followed at once by the next call, saturates the core at 8 sessions already. Then 100 wait
12.5 times as long as 8 in any daemon, by Little's law alone: with one call in flight each, the latency is the number of
calls in flight over the calls per second. Those rows show whether the crowd costs throughput; they are not judged.

A window should be a multiple of 15 s, in which every idle stream has one keep-alive comment.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, Literal

import msgspec
import trio

from benchmarks.doors import Server
from benchmarks.idle import descriptors_for, open_idle
from benchmarks.load import (
    DAEMON_HTTP,
    DAEMON_MCP,
    DAEMON_SOCKET,
    Kind,
    Level,
    Measurement,
    Window,
    load,
    measurement,
    started,
)
from benchmarks.meters import allow_descriptors
from benchmarks.process import run_to_end
from benchmarks.rounds import Row, judge, line, summary

DOORS: Final = {"http": DAEMON_HTTP, "mcp": DAEMON_MCP, "ws": DAEMON_SOCKET}
FEW: Final = 8
AIM: Final = 5.0
WARM_UP_SECONDS: Final = 2.0
QUICK: Final = Window(warm_up_seconds=0.1, seconds=0.3)

Role = Literal["few", "crowd", "other"]


class Case(msgspec.Struct, frozen=True):
    """What is measured: the load of the busy sessions, and how many idle ones there are beside them."""

    title: str
    level: Level
    idle: int
    role: Role = "other"


async def measure_case(kind: Kind, case: Case, window: Window) -> Measurement:
    """Returns the figures of one window. Raises as `load.measure` does."""
    configuration = f"sessions: {{max_active_per_project: {case.level.sessions + case.idle}}}\n"
    async with load() as clients, started(kind, configuration=configuration) as system:
        with ExitStack() as stack:
            server = Server(system.url, system.token)
            await trio.to_thread.run_sync(partial(open_idle, server, case.idle, stack))
            sessions = await clients.open_sessions(system, case.level, window)
            return measurement(*await clients.run(system, sessions, case.level, window))


def cases(sessions: int, busy: int, rate: float) -> list[Case]:
    """Returns what is measured, in the order of the table."""
    idle = sessions - busy
    return [
        Case(f"{FEW} sessions", Level(FEW, 1, calls_per_second=rate), 0, "few"),
        Case(f"{sessions} sessions, {busy} busy", Level(busy, 1, calls_per_second=rate), idle, "crowd"),
        Case(f"{FEW} sessions, as many calls", Level(FEW, 1, calls_per_second=rate * busy / FEW), 0),
        Case(f"closed loop: {FEW} sessions", Level(FEW, 1), 0),
        Case(f"closed loop: {sessions}, {busy} busy", Level(busy, 1), idle),
    ]


async def run(kind: Kind, measured: Sequence[Case], rounds: int, window: Window) -> dict[Case, Row]:
    """Measures everything, in turns, so that a slow minute of the machine hits them all."""
    seen: dict[Case, list[Measurement]] = {case: [] for case in measured}
    for _ in range(rounds):
        for case in measured:
            seen[case].append(await measure_case(kind, case, window))
    return {case: summary(found) for case, found in seen.items()}


async def run_quickly(kind: Kind) -> dict[Case, Row]:
    """Returns one short round of 20 sessions, of which 2 are busy."""
    [_, crowd, *_] = cases(20, 2, rate=50)
    return await run(kind, [crowd], 1, QUICK)


def table(rows: Mapping[Case, Row]) -> Iterator[str]:
    """Yields the lines of the table, and the verdict."""
    yield line("", ("calls/s", "p50 ms", "p99 ms", "CPU µs/call", "core", "load µs/call"))
    for case, row in rows.items():
        figures = f"{row.calls_per_second:.0f} {row.p50_ms:.2f} {row.p99_ms:.2f} {row.cpu_us_per_call:.0f}"
        yield line(case.title, [*figures.split(), f"{row.cpu_share:.0%}", f"{row.load_cpu_us_per_call:.0f}"])
    judged = {case.role: (case, row) for case, row in rows.items()}
    if "few" in judged and "crowd" in judged:
        (few, theirs), (crowd, row) = judged["few"], judged["crowd"]
        yield judge(f"{crowd.title} beside {few.title}", row.p99_ms / theirs.p99_ms, AIM)


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--busy", type=int, default=100, help="how many of them have calls")
    parser.add_argument("--rate", type=float, default=2.0, help="calls a second of each busy session")
    parser.add_argument("--door", choices=DOORS, default="http", help="how busy sessions are answered")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each window")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="20 sessions for a moment, for tests")
    given = parser.parse_args()
    # Answers have connections of their own, two for each call in flight.
    allow_descriptors(descriptors_for(given.sessions + given.busy))
    kind, window = DOORS[given.door], Window(WARM_UP_SECONDS, given.seconds)
    measured = cases(given.sessions, given.busy, given.rate)
    rows = run_to_end(run_quickly, kind) if given.quick else run_to_end(run, kind, measured, given.rounds, window)
    as_json = msgspec.json.encode({case.title: row for case, row in rows.items()}).decode()
    print(as_json if given.json else "\n".join(table(rows)))


if __name__ == "__main__":
    main()
