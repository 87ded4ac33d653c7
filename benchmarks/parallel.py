"""Concurrent calls: a session with 16 calls in flight whose tools take 50 ms, beside a relay that takes them in turn.

`python -m benchmarks.parallel [--seconds 4] [--json] [--quick]`

The latter is the floor with `--one-by-one`: it reads a link's next request when the last one was answered, so it serves
at most 20 calls/s however fast it is. The aim: the daemon serves at least 12 times as many (16 would be perfect).
"""

from __future__ import annotations

import argparse
from typing import Final

import msgspec

from benchmarks.load import DAEMON_HTTP, DAEMON_MCP, ONE_BY_ONE, Kind, Level, Window, measure, measure_at_once
from benchmarks.process import run_to_end

LEVEL: Final = Level(1, 16, delay_seconds=0.05)
SYSTEMS: Final = (ONE_BY_ONE, DAEMON_MCP, DAEMON_HTTP)
AIM: Final = 12.0
QUICK: Final = Window(warm_up_seconds=0.1, seconds=0.5)


async def run(window: Window) -> dict[Kind, float]:
    """Returns the calls per second that each system served."""
    return {kind: (await measure(kind, LEVEL, window)).calls_per_second for kind in SYSTEMS}


async def run_quickly() -> dict[Kind, float]:
    """Returns the same of half a second, in which the first two systems run at once."""
    seen = await measure_at_once(SYSTEMS[:2], LEVEL, QUICK)
    return {kind: one.calls_per_second for kind, one in seen.items()}


def table(rates: dict[Kind, float]) -> str:
    """Returns the table, with each system's multiple of the relay that takes calls one by one."""
    lines = [f"{LEVEL}, {LEVEL.delay_seconds * 1000:.0f} ms a tool    calls/s    × one by one"]
    for kind, rate in rates.items():
        times = rate / rates[ONE_BY_ONE]
        verdict = "" if kind is ONE_BY_ONE else f"  of at least {AIM:g}: {'met' if times >= AIM else 'MISSED'}"
        lines.append(f"{kind.label:<20} {rate:>9.1f} {times:>14.2f}{verdict}")
    return "\n".join(lines)


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window; a quarter more warms up")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="half a second, two systems at once, for tests")
    given = parser.parse_args()
    rates = run_to_end(run_quickly) if given.quick else run_to_end(run, Window(given.seconds / 4, given.seconds))
    as_json = msgspec.json.encode({kind.label: rate for kind, rate in rates.items()}).decode()
    print(as_json if given.json else table(rates))


if __name__ == "__main__":
    main()
