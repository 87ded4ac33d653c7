"""The load of a benchmark: the systems under test, and two processes that make agents and callers of them.

`measure` starts one system, the callers (`benchmarks.callers`) and the agents (`benchmarks.links`), each a process of
its own, and returns what the agents saw in one window. The load is the same code for every system. It is a closed
loop, sessions × calls in flight, each answer followed at once by the next call, unless a `Level` gives a rate.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

from benchmarks.callers import CallerPlan, CallerReport
from benchmarks.doors import Started
from benchmarks.links import DRAIN_SECONDS, AgentPlan, AgentReport
from benchmarks.process import Lines, running

# An import of the SDK takes seconds on a machine that has not run it before.
START_SECONDS: Final = 30.0
# For the load to start its sessions, 100 of them at most here, and to report.
SLACK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A system under test: a module that is run with `--data-dir`, and the door that its callers use."""

    label: str
    command: tuple[str, ...]
    door: Literal["mcp", "http", "ws"] = "mcp"
    has_token: bool = False


_DAEMON: Final = ("oubliette", "serve", "--port", "0")
FLOOR: Final = Kind("floor", ("benchmarks.floor",))
FLOOR_SOCKET: Final = Kind("floor, WebSocket", ("benchmarks.floor",), door="ws")
ONE_BY_ONE: Final = Kind("one by one", ("benchmarks.floor", "--one-by-one"))
SDK: Final = Kind("SDK relay", ("benchmarks.sdk_relay",))
DAEMON_MCP: Final = Kind("daemon, MCP", _DAEMON, has_token=True)
DAEMON_SOCKET: Final = Kind("daemon, WebSocket", _DAEMON, door="ws", has_token=True)
DAEMON_HTTP: Final = Kind("daemon, HTTP", _DAEMON, door="http", has_token=True)


@dataclass(frozen=True, slots=True)
class Level:
    """How much is asked at once: `sessions` × calls `in_flight` in each, every tool taking `delay_seconds`.

    With `calls_per_second` it is an open loop: each session's calls come at random times, so many a second.
    """

    sessions: int
    in_flight: int
    delay_seconds: float = 0.0
    calls_per_second: float | None = None

    def __str__(self) -> str:
        return f"{self.sessions}×{self.in_flight}"


@dataclass(frozen=True, slots=True)
class Window:
    """How long is measured, after how much that is not, in seconds."""

    warm_up_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class System:
    """A system that runs: what it is, its process, where it listens, and the token that it made."""

    kind: Kind
    process: Lines
    url: str
    token: str | None


class Measurement(msgspec.Struct, frozen=True):
    """One window of one system, per call where it says so; the load's own CPU tells whether it was in the way."""

    calls_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_call: float
    load_cpu_us_per_call: float


class Load:
    """The callers and the agents: two processes that wait to be told what to do."""

    def __init__(self, callers: Lines, agents: Lines) -> None:
        self._callers = callers
        self._agents = agents

    async def open_sessions(self, system: System, level: Level, window: Window) -> list[Started]:
        """Has the callers start the sessions of `level`, and answer in them."""
        plan = CallerPlan(
            url=system.url,
            door=system.kind.door,
            sessions=level.sessions,
            in_flight=level.in_flight,
            at_most_seconds=at_most(window),
            token=system.token,
            delay_seconds=level.delay_seconds,
        )
        await self._callers.write(msgspec.json.encode(plan))
        return msgspec.json.decode(await self._callers.read(seconds=SLACK_SECONDS), type=list[Started])

    async def run(
        self, system: System, sessions: Sequence[Started], level: Level, window: Window
    ) -> tuple[AgentReport, CallerReport]:
        """Has the agents call in `sessions`, and returns what both saw."""
        plan = AgentPlan(
            sockets=[session.socket for session in sessions],
            in_flight=level.in_flight,
            warm_up_seconds=window.warm_up_seconds,
            seconds=window.seconds,
            pid=system.process.pid,
            calls_per_second=level.calls_per_second,
        )
        await self._agents.write(msgspec.json.encode(plan))
        seen = msgspec.json.decode(await self._agents.read(seconds=at_most(window)), type=AgentReport)
        await self._callers.close_stdin()
        return seen, msgspec.json.decode(await self._callers.read(seconds=SLACK_SECONDS), type=CallerReport)


@asynccontextmanager
async def load() -> AsyncIterator[Load]:
    """Runs the load processes for the length of the block. They start while the system under test does."""
    async with load_process("benchmarks.callers") as callers, load_process("benchmarks.links") as agents:
        yield Load(callers, agents)


@asynccontextmanager
async def load_process(module: str) -> AsyncIterator[Lines]:
    """Runs one load process for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp") as folder:
        async with running([sys.executable, "-m", module], Path(folder)) as process:
            yield process


async def measure(kind: Kind, level: Level, window: Window) -> Measurement:
    """Starts a fresh system of `kind`, loads it at `level`, and returns what one `window` showed.

    Raises `ProcessFailedError` when a process fails, gives a wrong answer, or takes too long.
    """
    async with load() as clients, started(kind) as system:
        sessions = await clients.open_sessions(system, level, window)
        return measurement(*await clients.run(system, sessions, level, window))


async def measure_at_once(kinds: Sequence[Kind], level: Level, window: Window) -> dict[Kind, Measurement]:
    """Measures all `kinds` at the same time, for tests: the figures mean nothing. Raises as `measure` does."""
    seen: dict[Kind, Measurement] = {}

    async def add(kind: Kind) -> None:
        seen[kind] = await measure(kind, level, window)

    async with trio.open_nursery() as nursery:
        for kind in kinds:
            nursery.start_soon(add, kind)
    return {kind: seen[kind] for kind in kinds}


def measurement(agents: AgentReport, callers: CallerReport) -> Measurement:
    """Returns the figures of one window."""
    return Measurement(
        calls_per_second=agents.calls / agents.seconds,
        p50_ms=agents.p50_ms,
        p99_ms=agents.p99_ms,
        cpu_us_per_call=agents.cpu_seconds / agents.calls * 1e6,
        load_cpu_us_per_call=agents.load_cpu_seconds / agents.calls * 1e6
        + callers.load_cpu_seconds / callers.answers * 1e6,
    )


def at_most(window: Window) -> float:
    """Returns after how many seconds a load process that is still at `window` has failed."""
    return window.warm_up_seconds + window.seconds + DRAIN_SECONDS + SLACK_SECONDS


@asynccontextmanager
async def started(kind: Kind, *, configuration: str = "{}\n") -> AsyncIterator[System]:
    """Runs a system of `kind` for the length of the block, in a temporary folder of its own.

    `configuration` is the daemon's, as YAML. Raises `ProcessFailedError` when it does not come up.
    """
    # sun_path holds 108 bytes: the folder's path must be short.
    with tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp") as name:
        folder = Path(name)
        command = [sys.executable, "-m", *kind.command, "--data-dir", str(folder / "d")]
        (folder / "d").mkdir(mode=0o700)
        async with running(command, folder, environment=_environment(folder, configuration)) as process:
            line = await process.read(seconds=START_SECONDS)
            token = (folder / "d" / "admin.token").read_text().strip() if kind.has_token else None
            yield System(kind, process, line.decode().removeprefix("listening on "), token)


def _environment(folder: Path, configuration: str) -> dict[str, str]:
    path = folder / "oubliette.yaml"
    path.write_text(configuration)
    return os.environ | {"OUBLIETTE_CONFIG": str(path)}
