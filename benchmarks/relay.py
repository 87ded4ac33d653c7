"""The relay: calls per second, latency, and the daemon's CPU per call, beside the official SDK and the floor.

`python -m benchmarks.relay [--rounds 3] [--seconds 4] [--levels 8x4] [--systems sdk,mcp] [--json] [--quick]`

Agents call `echo` with some 200 bytes over their links; callers answer over MCP (streamable HTTP, events on the GET
stream), over MCP through one WebSocket each, or, with the daemon, over plain HTTP. Six systems take turns, a fresh
process each time, at 1×1, 8×4 and 64×4 sessions × calls in flight: the SDK relay (`benchmarks.sdk_relay`), the floor
(`benchmarks.floor`) over HTTP and over WebSocket, and the daemon through all three doors. A system is compared with the
floor that speaks as it does, and with the SDK relay, which speaks HTTP. Load and system share the machine, so calls/s
says what this machine can do with both; the CPU per call is the system's own, from /proc. Figures are medians over the
rounds; ± is half their range. The last column is the CPU that the load itself took, which should stay well below the
system's.

The aims are `AIMS`: the CPU per call at 8×4, the p50 at 1×1, the p99 at 64×4.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from benchmarks.load import (
    DAEMON_HTTP,
    DAEMON_MCP,
    DAEMON_SOCKET,
    FLOOR,
    FLOOR_SOCKET,
    SDK,
    Kind,
    Level,
    Measurement,
    Window,
    measure,
    measure_at_once,
)
from benchmarks.process import run_to_end
from benchmarks.rounds import Row, summary

SYSTEMS: Final = {
    "floor": FLOOR,
    "sdk": SDK,
    "mcp": DAEMON_MCP,
    "http": DAEMON_HTTP,
    "ws-floor": FLOOR_SOCKET,
    "ws": DAEMON_SOCKET,
}
ALONE: Final = Level(1, 1)
SMALL: Final = Level(2, 2)
BUSY: Final = Level(8, 4)
CROWDED: Final = Level(64, 4)
LEVELS: Final = "1x1,8x4,64x4"
QUICK: Final = Window(warm_up_seconds=0.1, seconds=0.3)

Results = dict[Level, dict[Kind, Row]]


@dataclass(frozen=True, slots=True)
class Aim:
    """That a figure at `level` is at most `bound` times that of `peer`."""

    level: Level
    figure: Literal["cpu_us_per_call", "p50_ms", "p99_ms"]
    peer: Kind
    bound: float

    def judge(self, row: Row, peer: Row) -> str:
        """Returns the verdict in words."""
        share = getattr(row, self.figure) / getattr(peer, self.figure)
        verdict = "met" if share <= self.bound else "MISSED"
        return f"{self.figure} at {self.level} is {share:.2f} × {self.peer.label}, of at most {self.bound:g}: {verdict}"


# What checks and records may cost, and what a system without them may not be better at.
AIMS: Final = {
    DAEMON_MCP: (
        Aim(BUSY, "cpu_us_per_call", SDK, 0.85),
        Aim(BUSY, "cpu_us_per_call", FLOOR, 1.25),
        Aim(ALONE, "p50_ms", SDK, 0.8),
        Aim(CROWDED, "p99_ms", SDK, 1),
    ),
    DAEMON_HTTP: (
        Aim(BUSY, "cpu_us_per_call", SDK, 1),
        Aim(BUSY, "cpu_us_per_call", FLOOR, 1.5),
        Aim(CROWDED, "p99_ms", SDK, 1),
    ),
    DAEMON_SOCKET: (
        Aim(BUSY, "cpu_us_per_call", SDK, 0.4),
        Aim(BUSY, "cpu_us_per_call", FLOOR_SOCKET, 1.25),
    ),
}


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured, and how often."""

    kinds: Sequence[Kind]
    levels: Sequence[Level]
    rounds: int
    window: Window


async def run_quickly(kinds: Sequence[Kind]) -> Results:
    """Returns one short round, in which all systems run at once."""
    seen = await measure_at_once(kinds, SMALL, QUICK)
    return {SMALL: {kind: summary([one]) for kind, one in seen.items()}}


async def run(options: Options) -> Results:
    """Measures everything, the systems taking turns so that a slow minute of the machine hits them all."""
    seen: dict[tuple[Level, Kind], list[Measurement]] = {}
    for _ in range(options.rounds):
        for level in options.levels:
            for kind in options.kinds:
                seen.setdefault((level, kind), []).append(await measure(kind, level, options.window))
    return {level: {kind: summary(seen[level, kind]) for kind in options.kinds} for level in options.levels}


def table(results: Results) -> Iterator[str]:
    """Yields the lines of the table, with each system's CPU per call as a share of the SDK relay's and its floor's."""
    titles = ("calls/s", "p50 ms", "p99 ms", "CPU µs/call", "±", "× SDK", "× floor", "load µs/call")
    for level, rows in results.items():
        yield f"{level!s:<18}" + "".join(f"{title:>13}" for title in titles)
        for kind, row in rows.items():
            yield f"{kind.label:<18}" + "".join(f"{cell:>13}" for cell in _cells(kind, row, rows))
        yield ""


def _floor_of(kind: Kind) -> Kind:
    return FLOOR_SOCKET if kind.door == "ws" else FLOOR


def _cells(kind: Kind, row: Row, rows: Mapping[Kind, Row]) -> Iterator[str]:
    yield f"{row.calls_per_second:.0f}"
    yield f"{row.p50_ms:.2f}"
    yield f"{row.p99_ms:.2f}"
    yield f"{row.cpu_us_per_call:.0f}"
    yield f"{row.cpu_spread:.0%}"
    for peer in (SDK, _floor_of(kind)):
        yield f"{row.cpu_us_per_call / rows[peer].cpu_us_per_call:.2f}" if peer in rows else "-"
    yield f"{row.load_cpu_us_per_call:.0f}"


def verdicts(results: Results) -> Iterator[str]:
    """Yields a line for each aim that the measured systems and levels allow to judge."""
    for kind, aims in AIMS.items():
        for aim in aims:
            rows = results.get(aim.level, {})
            if kind in rows and aim.peer in rows:
                yield f"{kind.label}: {aim.judge(rows[kind], rows[aim.peer])}"


def as_json(results: Results) -> str:
    """Returns the results as one line of JSON: level, then system, then figures."""
    lines = {str(level): {kind.label: row for kind, row in rows.items()} for level, rows in results.items()}
    return msgspec.json.encode(lines).decode()


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window; a quarter more warms up")
    parser.add_argument("--levels", default=LEVELS, help=f"of sessions x calls in flight; {LEVELS} without it")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="one round at 2×2, all systems at once, for tests")
    given = parser.parse_args()
    kinds = [SYSTEMS[name] for name in given.systems.split(",")]
    window = Window(given.seconds / 4, given.seconds)
    levels = [Level(*map(int, level.split("x"))) for level in given.levels.split(",")]
    options = Options(kinds, levels, given.rounds, window)
    results = run_to_end(run_quickly, kinds) if given.quick else run_to_end(run, options)
    print("\n".join([as_json(results)] if given.json else [_sdk_runs_on(), "", *table(results), *verdicts(results)]))


def _sdk_runs_on() -> str:
    found = [name for name in ("uvloop", "httptools") if importlib.util.find_spec(name)]
    return f"The SDK relay runs on uvicorn with {' and '.join(found) or 'asyncio and h11, as mcp installs it'}."


if __name__ == "__main__":
    main()
