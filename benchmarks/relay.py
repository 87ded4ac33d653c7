"""The relay: calls per second, latency, and the daemon's CPU per call, beside the official SDK and the floor.

`python -m benchmarks.relay [--rounds 3] [--seconds 4] [--levels 8x4] [--systems sdk,mcp] [--json] [--quick]`

Agents call `echo` with some 200 bytes over their links; callers answer over MCP (streamable HTTP, events on the GET
stream) or, with the daemon, over plain HTTP. Four systems take turns, a fresh process each time, at 1×1, 8×4 and 64×4
sessions × calls in flight: the floor (`benchmarks.floor`), the SDK relay (`benchmarks.sdk_relay`), and the daemon
through either door. Load and system share the machine, so calls/s says what this machine can do with both; the CPU per
call is the system's own, from /proc. Figures are medians over the rounds; ± is half their range. The last column is the
CPU that the load itself took, which should stay well below the system's.

The aims: at 8×4 at most the SDK relay's CPU per call and at most 1.5 × the floor's; at 64×4 a p99 below the SDK's.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from benchmarks.load import DAEMON_HTTP, DAEMON_MCP, FLOOR, SDK, Kind, Level, Measurement, Window, measure
from benchmarks.process import run_to_end

SYSTEMS: Final = {"floor": FLOOR, "sdk": SDK, "mcp": DAEMON_MCP, "http": DAEMON_HTTP}
BUSY: Final = Level(8, 4)
CROWDED: Final = Level(64, 4)
LEVELS: Final = "1x1,8x4,64x4"
# The aim: what checks and records may cost on top of the bare minimum.
FLOOR_FACTOR: Final = 1.5
QUICK: Final = Window(warm_up_seconds=0.1, seconds=0.3)

Results = dict[Level, dict[Kind, "Row"]]


class Row(msgspec.Struct, frozen=True):
    """One system at one level: medians over the rounds, and how far the CPU per call strayed from its own."""

    calls_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_call: float
    cpu_spread: float
    load_cpu_us_per_call: float


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured, and how often."""

    kinds: Sequence[Kind]
    levels: Sequence[Level]
    rounds: int
    window: Window


async def run(options: Options) -> Results:
    """Measures everything, the systems taking turns so that a slow minute of the machine hits them all."""
    seen: dict[tuple[Level, Kind], list[Measurement]] = {}
    for _ in range(options.rounds):
        for level in options.levels:
            for kind in options.kinds:
                seen.setdefault((level, kind), []).append(await measure(kind, level, options.window))
    return {level: {kind: summary(seen[level, kind]) for kind in options.kinds} for level in options.levels}


def summary(rounds: Sequence[Measurement]) -> Row:
    """Returns the medians of one system's rounds at one level."""
    cpu = [one.cpu_us_per_call for one in rounds]
    return Row(
        calls_per_second=statistics.median(one.calls_per_second for one in rounds),
        p50_ms=statistics.median(one.p50_ms for one in rounds),
        p99_ms=statistics.median(one.p99_ms for one in rounds),
        cpu_us_per_call=statistics.median(cpu),
        cpu_spread=(max(cpu) - min(cpu)) / 2 / statistics.median(cpu),
        load_cpu_us_per_call=statistics.median(one.load_cpu_us_per_call for one in rounds),
    )


def table(results: Results) -> Iterator[str]:
    """Yields the lines of the table, with each system's CPU per call as a share of the SDK relay's and the floor's."""
    titles = ("calls/s", "p50 ms", "p99 ms", "CPU µs/call", "±", "× SDK", "× floor", "load µs/call")
    for level, rows in results.items():
        yield f"{level!s:<14}" + "".join(f"{title:>13}" for title in titles)
        for kind, row in rows.items():
            yield f"{kind.label:<14}" + "".join(f"{cell:>13}" for cell in _cells(row, rows))
        yield ""


def _cells(row: Row, rows: Mapping[Kind, Row]) -> Iterator[str]:
    yield f"{row.calls_per_second:.0f}"
    yield f"{row.p50_ms:.2f}"
    yield f"{row.p99_ms:.2f}"
    yield f"{row.cpu_us_per_call:.0f}"
    yield f"{row.cpu_spread:.0%}"
    for peer in (SDK, FLOOR):
        yield f"{row.cpu_us_per_call / rows[peer].cpu_us_per_call:.2f}" if peer in rows else "-"
    yield f"{row.load_cpu_us_per_call:.0f}"


def verdicts(results: Results) -> Iterator[str]:
    """Yields a line for each aim that the measured systems and levels allow to judge."""
    for kind in (DAEMON_MCP, DAEMON_HTTP):
        for title, value, bound in _aims(results, kind):
            yield f"{kind.label}: {title}: {value:.2f} of at most {bound:g}: {'met' if value <= bound else 'MISSED'}"


def _aims(results: Results, kind: Kind) -> Iterator[tuple[str, float, float]]:
    busy, crowded = results.get(BUSY, {}), results.get(CROWDED, {})
    if kind in busy and SDK in busy:
        yield f"CPU per call at {BUSY} ÷ the SDK relay's", busy[kind].cpu_us_per_call / busy[SDK].cpu_us_per_call, 1
    if kind in busy and FLOOR in busy:
        share = busy[kind].cpu_us_per_call / busy[FLOOR].cpu_us_per_call
        yield f"CPU per call at {BUSY} ÷ the floor's", share, FLOOR_FACTOR
    if kind in crowded and SDK in crowded:
        yield f"p99 at {CROWDED} ÷ the SDK relay's", crowded[kind].p99_ms / crowded[SDK].p99_ms, 1


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
    parser.add_argument("--quick", action="store_true", help="one round at 2×2, for tests: the figures mean nothing")
    given = parser.parse_args()
    kinds = [SYSTEMS[name] for name in given.systems.split(",")]
    window = Window(given.seconds / 4, given.seconds)
    levels = [Level(*map(int, level.split("x"))) for level in given.levels.split(",")]
    options = Options(kinds, [Level(2, 2)], 1, QUICK) if given.quick else Options(kinds, levels, given.rounds, window)
    results = run_to_end(run, options)
    print("\n".join([as_json(results)] if given.json else [_sdk_runs_on(), "", *table(results), *verdicts(results)]))


def _sdk_runs_on() -> str:
    found = [name for name in ("uvloop", "httptools") if importlib.util.find_spec(name)]
    return f"The SDK relay runs on uvicorn with {' and '.join(found) or 'asyncio and h11, as mcp installs it'}."


if __name__ == "__main__":
    main()
