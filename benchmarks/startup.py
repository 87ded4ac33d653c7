"""Start-up: how soon the daemon is ready, how soon the client answers `tools/list`, and what memory the client needs.

`python -m benchmarks.startup [--runs 10] [--json] [--quick]`

The daemon: from exec, on a fresh data directory, to `listening on …`, with `/ready` answered by 200 right after. The
client: from exec, through `initialize`, to its answer to `tools/list`, on the socket of a session with one caller tool;
its memory is the highest resident set until then. One run before the others is not counted: it writes the `.pyc` files.

The aims, for the slowest run: the daemon ready within 1 s; the client within 300 ms and at most 30 MiB.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import trio

from benchmarks.doors import HELLO, Server, rpc_request, start_http
from benchmarks.load import DAEMON_HTTP, START_SECONDS, started
from benchmarks.meters import memory_kib
from benchmarks.process import Lines, run_to_end, running

DAEMON_AIM_MS: Final = 1000.0
CLIENT_AIM_MS: Final = 300.0
CLIENT_AIM_MIB: Final = 30.0
_INITIALIZE: Final = rpc_request("initialize", HELLO, 1)
_INITIALIZED: Final = {"jsonrpc": "2.0", "method": "notifications/initialized"}
_LIST: Final = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}

Figure = TypeVar("Figure")


class Result(msgspec.Struct, frozen=True):
    """The runs: milliseconds until ready, and the client's memory in MiB."""

    daemon_ms: list[float]
    client_ms: list[float]
    client_mib: list[float]


async def run(runs: int, *, warm_up: bool) -> Result:
    """Starts the daemon, and the client beside it, `runs` times each, and once before where there is a `warm_up`."""
    skipped = 1 if warm_up else 0
    daemon = await _repeat(runs, skipped, time_daemon)
    async with started(DAEMON_HTTP) as system:
        door = await trio.to_thread.run_sync(start_http, Server(system.url, system.token))
        client = await _repeat(runs, skipped, lambda: time_client(door.session.socket))
    return Result(daemon, [milliseconds for milliseconds, _ in client], [mib for _, mib in client])


async def _repeat(runs: int, skipped: int, once: Callable[[], Awaitable[Figure]]) -> list[Figure]:
    return [await once() for _ in range(skipped + runs)][skipped:]


async def time_daemon() -> float:
    """Returns the milliseconds from the daemon's exec until it is ready."""
    begun = trio.current_time()
    async with started(DAEMON_HTTP) as system:
        ready = trio.current_time()
        await trio.to_thread.run_sync(Server(system.url, None).get, "/ready")
        return (ready - begun) * 1000


async def time_client(path: str) -> tuple[float, float]:
    """Returns the milliseconds from the client's exec to its tools, and the MiB that it took until then."""
    with tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp") as folder:
        begun = trio.current_time()
        async with running([sys.executable, "-m", "oubliette_client", "--socket", path], Path(folder)) as client:
            await _ask(client, _INITIALIZE)
            await client.write(msgspec.json.encode(_INITIALIZED))
            answer = await _ask(client, _LIST)
            elapsed = trio.current_time() - begun
            assert any(tool["name"] == "bench_echo" for tool in answer["result"]["tools"]), answer
            return elapsed * 1000, memory_kib(client.pid, "VmHWM") / 1024


async def _ask(client: Lines, request: dict[str, Any]) -> dict[str, Any]:
    await client.write(msgspec.json.encode(request))
    while True:
        message: dict[str, Any] = msgspec.json.decode(await client.read(seconds=START_SECONDS))
        if message.get("id") == request["id"]:
            return message


def table(result: Result) -> str:
    """Returns the figures beside their aims."""
    return "\n".join(
        [
            _line("daemon ready", "ms", result.daemon_ms, DAEMON_AIM_MS),
            _line("client answers tools/list", "ms", result.client_ms, CLIENT_AIM_MS),
            _line("client memory", "MiB", result.client_mib, CLIENT_AIM_MIB),
        ]
    )


def _line(title: str, unit: str, values: Sequence[float], aim: float) -> str:
    median, worst = statistics.median(values), max(values)
    verdict = "met" if worst <= aim else "MISSED"
    return f"{title:<26} median {median:7.1f} {unit}, slowest or largest {worst:7.1f} of at most {aim:g}: {verdict}"


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="one run each and none before it, for tests")
    given = parser.parse_args()
    result = run_to_end(partial(run, 1 if given.quick else given.runs, warm_up=not given.quick))
    print(msgspec.json.encode(result).decode() if given.json else table(result))


if __name__ == "__main__":
    main()
