"""The load of a benchmark: the systems under test, and two processes that make agents and callers of them.

`measure` starts one system, the callers (`benchmarks.callers`) and the agents (`benchmarks.agents`), each a process of
its own, and returns what the agents saw in one window. The load is the same code for every system. It is a closed
loop: sessions × calls in flight, each answer followed at once by the next call.
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

from benchmarks.agents import DRAIN_SECONDS, AgentPlan, AgentReport
from benchmarks.callers import CallerPlan, CallerReport
from benchmarks.process import Lines, running

# An import of the SDK takes seconds on a machine that has not run it before.
START_SECONDS: Final = 30.0
# For the load to start its sessions, 64 of them at most here, and to report.
_SLACK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A system under test: a module that is run with `--data-dir`, and the door that its callers use."""

    label: str
    command: tuple[str, ...]
    door: Literal["mcp", "http"] = "mcp"
    has_token: bool = False


_DAEMON: Final = ("oubliette", "serve", "--port", "0")
FLOOR: Final = Kind("floor", ("benchmarks.floor",))
ONE_BY_ONE: Final = Kind("one by one", ("benchmarks.floor", "--one-by-one"))
SDK: Final = Kind("SDK relay", ("benchmarks.sdk_relay",))
DAEMON_MCP: Final = Kind("daemon, MCP", _DAEMON, has_token=True)
DAEMON_HTTP: Final = Kind("daemon, HTTP", _DAEMON, door="http", has_token=True)


@dataclass(frozen=True, slots=True)
class Level:
    """How much is asked at once: `sessions` × calls `in_flight` in each, every tool taking `delay_seconds`."""

    sessions: int
    in_flight: int
    delay_seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.sessions}×{self.in_flight}"


@dataclass(frozen=True, slots=True)
class Window:
    """How long is measured, after how much that is not, in seconds."""

    warm_up_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class System:
    """A system that runs: its process, where it listens, and the token that it made."""

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


async def measure(kind: Kind, level: Level, window: Window) -> Measurement:
    """Starts a fresh system of `kind`, loads it at `level`, and returns what one `window` showed.

    Raises `ProcessFailedError` when a process fails, gives a wrong answer, or takes too long.
    """
    async with started(kind) as system:
        agents, callers = await _load(system, kind, level, window)
    return Measurement(
        calls_per_second=agents.calls / agents.seconds,
        p50_ms=agents.p50_ms,
        p99_ms=agents.p99_ms,
        cpu_us_per_call=agents.cpu_seconds / agents.calls * 1e6,
        load_cpu_us_per_call=agents.load_cpu_seconds / agents.calls * 1e6
        + callers.load_cpu_seconds / callers.answers * 1e6,
    )


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
            yield System(process, line.decode().removeprefix("listening on "), token)


def _environment(folder: Path, configuration: str) -> dict[str, str]:
    path = folder / "oubliette.yaml"
    path.write_text(configuration)
    return os.environ | {"OUBLIETTE_CONFIG": str(path)}


async def _load(system: System, kind: Kind, level: Level, window: Window) -> tuple[AgentReport, CallerReport]:
    whole = window.warm_up_seconds + window.seconds + DRAIN_SECONDS + _SLACK_SECONDS
    with tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp") as name:
        async with (
            running(_module("benchmarks.callers"), Path(name)) as callers,
            running(_module("benchmarks.agents"), Path(name)) as agents,
        ):
            plan = CallerPlan(
                url=system.url,
                door=kind.door,
                sessions=level.sessions,
                in_flight=level.in_flight,
                at_most_seconds=whole,
                token=system.token,
                delay_seconds=level.delay_seconds,
            )
            await callers.write(msgspec.json.encode(plan))
            sockets = msgspec.json.decode(await callers.read(seconds=_SLACK_SECONDS), type=list[str])
            orders = AgentPlan(sockets, level.in_flight, window.warm_up_seconds, window.seconds, system.process.pid)
            await agents.write(msgspec.json.encode(orders))
            seen = msgspec.json.decode(await agents.read(seconds=whole), type=AgentReport)
            await callers.close_stdin()
            return seen, msgspec.json.decode(await callers.read(seconds=_SLACK_SECONDS), type=CallerReport)


def _module(name: str) -> Sequence[str]:
    return [sys.executable, "-m", name]
