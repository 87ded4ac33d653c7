"""Agents: how soon one that is asked for has its tools, and how 50 of them fare at once.

`python -m benchmarks.agents [--runtimes process,bubblewrap,podman] [--agent example] [--rounds 15] [--sessions 50]
[--calls 10] [--crowd process] [--json] [--quick]`

The start, in each runtime: from the moment at which a caller sends `session_message` to the one at which the agent's
first `tools/list` is answered. Beside it the same agent by hand (`benchmarks.starts`): the same program with the same
client in the same sandbox, against a socket that says which tools there are, from the program's start alone. The two
take turns; a round has one start of each, and the difference is the median over the rounds of the differences within
one, so that a slow minute of the machine hits both. One round before the others is not counted.

The aims: at most 150 ms more for `process` and `bubblewrap`, at most 300 ms more for `podman`.

The crowd: `--sessions` of the example agent, asked for at once over one WebSocket, each of which calls its caller's
tool `--calls` times, each answer followed at once by the next call. The caller answers at once. `call` is how long a
call took at the agent, client and all; `relay` is the part of it between the daemon's reading of the request and its
reading of the caller's answer, in whole ms. No call is left out: not those made while other agents still start, nor
those made while others end. Where the machine has more than two cores, the crowd and its daemon have two of them.

The aims: all finish, and the p99 of the calls stays under 250 ms.

A real agent, `--agent claude`, is started in the same way: there the moment is that at which its model, a scripted one,
is first shown the caller's tool. The crowd is the example agent's, whatever `--agent` says.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from benchmarks.meters import cpu_seconds, percentile
from benchmarks.owner import Told
from benchmarks.process import run_to_end
from benchmarks.rounds import line
from benchmarks.starts import ByDaemon, ByHand, by_daemon, by_hand
from benchmarks.subjects import SUBJECTS, TOOL_INSIDE, Example, Subject, configuration, numbers
from oubliette.errors import InternalError
from oubliette.runtimes.base import Kind
from tests.helpers.sandboxed import podman_here

RUNTIMES: Final[tuple[Kind, ...]] = ("process", "bubblewrap", "podman")
# What the daemon may take longer than by hand, in ms.
MORE_AIMS: Final[Mapping[Kind, float]] = {"process": 150.0, "bubblewrap": 150.0, "podman": 300.0}
P99_AIM_MS: Final = 250.0
CORES: Final = 2
_CALL: Final = f'call {TOOL_INSIDE} {{"text": "The quick brown fox jumps over the lazy dog."}}'


class Options(msgspec.Struct, frozen=True):
    """What is measured: starts of `agent` in `runtimes`, and a crowd in one of them. Without `rounds` or `sessions`
    the one or the other is left out.
    """

    runtimes: Sequence[Kind]
    agent: str
    rounds: int
    sessions: int
    calls: int
    crowd: Kind
    warm_up: int = 1


class Starts(msgspec.Struct, frozen=True):
    """The starts in one runtime, in ms until the agent had its tools, a round each."""

    daemon_ms: list[float]
    hand_ms: list[float]

    @property
    def more_ms(self) -> float:
        """What the daemon takes longer than by hand."""
        return statistics.median(daemon - hand for daemon, hand in zip(self.daemon_ms, self.hand_ms, strict=True))


class Crowd(msgspec.Struct, frozen=True):
    """Sessions at once: when the first and the last of them had their tools, and when the last had ended, in s; their
    calls, in ms, the shortest first.
    """

    sessions: int
    finished: int
    first_listed: float
    last_listed: float
    seconds: float
    cpu_seconds: float
    call_ms: list[float]
    relay_ms: list[float]


class Result(msgspec.Struct, frozen=True):
    """Everything: a runtime that does not work here is in `missing`, with the reason."""

    starts: dict[Kind, Starts]
    missing: dict[Kind, str]
    crowd: Crowd | None


async def run(options: Options) -> Result:
    """Measures everything that works here."""
    starts: dict[Kind, Starts] = {}
    missing: dict[Kind, str] = {}
    with SUBJECTS[options.agent]() as subject:
        for kind in options.runtimes if options.rounds else ():
            try:
                starts[kind] = await time_starts(kind, subject, options)
            except InternalError as error:
                missing[kind] = str(error)
    return Result(starts, missing, await time_crowd(options) if options.sessions else None)


async def time_starts(kind: Kind, subject: Subject, options: Options) -> Starts:
    """Returns the starts in one runtime. Raises `InternalError` where it does not work here."""
    seen = []
    async with both(configured(kind, subject, 1)) as (daemon, hand):
        for number in range(options.warm_up + options.rounds):
            # Neither is always the one behind the other's end.
            if number % 2:
                seen.append((await daemon.start(subject), await hand.start(subject)))
            else:
                by_hand_ms = await hand.start(subject)
                seen.append((await daemon.start(subject), by_hand_ms))
    counted = seen[options.warm_up :]
    return Starts([daemon_ms for daemon_ms, _ in counted], [hand_ms for _, hand_ms in counted])


@asynccontextmanager
async def both(text: str) -> AsyncIterator[tuple[ByDaemon, ByHand]]:
    """Gets both ways of starting an agent ready, by the same configuration."""
    async with by_hand(text) as hand, by_daemon(text) as daemon:
        yield daemon, hand


async def time_crowd(options: Options) -> Crowd:
    """Returns what many sessions at once showed. Raises `InternalError` where its runtime does not work here."""
    # The processes that are started from here on have no others.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    async with by_daemon(configured(options.crowd, Example(), options.sessions)) as daemon:
        await daemon.run([_CALL] * options.warm_up)
        used = cpu_seconds(daemon.system.process.pid)
        told = await daemon.run(["\n".join([_CALL] * options.calls)] * options.sessions)
        return crowd(told, cpu_seconds(daemon.system.process.pid) - used)


def crowd(told: Sequence[Told], used: float) -> Crowd:
    """Returns the figures of sessions that began together; the daemon has `used` so many seconds of CPU for them."""
    begun = min(one.begun for one in told)
    listed = sorted((numbers("listed", one.said)[0] - begun) / 1e9 for one in told)
    took = (microseconds / 1000 for one in told for microseconds in numbers("took", one.said))
    return Crowd(
        sessions=len(told),
        finished=sum(bool(one.ended) for one in told),
        first_listed=listed[0],
        last_listed=listed[-1],
        seconds=(max(one.ended for one in told) - begun) / 1e9,
        cpu_seconds=used,
        call_ms=sorted(took),
        relay_ms=sorted(map(float, chain.from_iterable(one.relayed_ms for one in told))),
    )


def configured(kind: Kind, subject: Subject, sessions: int) -> str:
    """Returns a configuration for this machine. Raises `InternalError` where podman needs what is not here."""
    image = ""
    if kind == "podman":
        image, environment, missing = podman_here()
        if missing:
            raise InternalError(missing)
        # For the daemon, and for what is started by hand.
        os.environ.update(environment)
    return configuration(kind, subject, image, sessions)


def table(result: Result) -> Iterator[str]:
    """Yields the figures beside their aims."""
    if result.starts:
        yield line("ms until the agent has its tools", ("daemon", "by hand", "more", "of at most"))
    for kind, starts in result.starts.items():
        yield _start_line(kind, starts)
    for kind, reason in result.missing.items():
        yield f"{kind}: not measured: {reason}"
    if result.crowd is not None:
        yield from _crowd_lines(result.crowd)


def _start_line(kind: Kind, starts: Starts) -> str:
    figures = [statistics.median(starts.daemon_ms), statistics.median(starts.hand_ms), starts.more_ms]
    aim = MORE_AIMS[kind]
    verdict = "met" if starts.more_ms <= aim else "MISSED"
    return line(kind, [*(f"{figure:.0f}" for figure in figures), f"{aim:g}"]) + f"  {verdict}"


def _crowd_lines(seen: Crowd) -> Iterator[str]:
    yield (
        f"{seen.finished} of {seen.sessions} sessions finished in {seen.seconds:.1f} s, with their tools after "
        f"{seen.first_listed:.1f} to {seen.last_listed:.1f} s; the daemon took {seen.cpu_seconds:.1f} s of CPU"
    )
    for name, ordered in (("call", seen.call_ms), ("relay", seen.relay_ms)):
        p50, p99 = percentile(ordered, 0.5), percentile(ordered, 0.99)
        yield f"{name}: {len(ordered)}, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {ordered[-1]:.1f} ms"
    verdict = "met" if percentile(seen.call_ms, 0.99) < P99_AIM_MS else "MISSED"
    yield f"p99 of a call among {seen.sessions} sessions, of less than {P99_AIM_MS:g} ms: {verdict}"


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtimes", default=",".join(RUNTIMES), help=f"of {', '.join(RUNTIMES)}")
    parser.add_argument("--agent", choices=SUBJECTS, default="example", help="whose starts are measured")
    parser.add_argument("--rounds", type=int, default=15, help="of starts; 0: none")
    parser.add_argument("--sessions", type=int, default=50, help="at once; 0: none")
    parser.add_argument("--calls", type=int, default=10, help="of each of them")
    parser.add_argument("--crowd", choices=RUNTIMES, default="process", help="the runtime in which they are")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="one round, and few sessions, in `process`, for tests")
    given = parser.parse_args()
    kinds = [next(kind for kind in RUNTIMES if kind == name) for name in given.runtimes.split(",")]
    options = Options(kinds, given.agent, given.rounds, given.sessions, given.calls, given.crowd)
    if given.quick:
        options = Options(["process"], "example", 1, 3, 2, "process", warm_up=0)
    result = run_to_end(partial(run, options))
    print(msgspec.json.encode(result).decode() if given.json else "\n".join(table(result)))


if __name__ == "__main__":
    main()
