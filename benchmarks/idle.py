"""Idle sessions: what 2,000 of them cost, each with a link and an event stream open.

`python -m benchmarks.idle [--sessions 2000] [--seconds 30] [--json] [--quick]`

Sessions of the profile `external` are started over plain HTTP; each gets one link and one stream of its events. Memory
is the growth of the daemon's resident set since it was ready, over the number of sessions; CPU is what the daemon uses
while nothing happens but the keep-alive comments (one every 15 s on each stream: the window should be a multiple).

The aims: at most 100 KiB a session, under 5 % of one core.
"""

from __future__ import annotations

import argparse
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec
import trio

from benchmarks import loop
from benchmarks.doors import SETUP_SECONDS, Server, start_http
from benchmarks.http1 import EventReader
from benchmarks.load import DAEMON_HTTP, started
from benchmarks.meters import allow_descriptors, cpu_seconds, memory_kib
from benchmarks.process import run_to_end

MEMORY_AIM_KIB: Final = 100.0
CPU_AIM_SHARE: Final = 0.05
# A session is acknowledged when it is on the disk: several at once share a commit.
OPENERS: Final = 8
# In the daemon: a listener, a link and a connection for each session; the rest is for what it needs anyway.
_DESCRIPTORS_PER_SESSION: Final = 3
_OTHER_DESCRIPTORS: Final = 200


class Result(msgspec.Struct, frozen=True):
    """What the sessions cost the daemon, all together and each."""

    sessions: int
    kib_per_session: float
    cpu_share: float
    resident_kib: int


def descriptors_for(sessions: int) -> int:
    """Returns how many files a daemon with so many sessions has open, at the most."""
    return sessions * _DESCRIPTORS_PER_SESSION + _OTHER_DESCRIPTORS


async def run(sessions: int, seconds: float) -> Result:
    """Starts the daemon and `sessions` idle sessions, and watches them for `seconds`."""
    configuration = f"sessions: {{max_active_per_project: {sessions}}}\n"
    async with started(DAEMON_HTTP, configuration=configuration) as system:
        pid, server = system.process.pid, Server(system.url, system.token)
        before = memory_kib(pid)
        with ExitStack() as stack:
            await trio.to_thread.run_sync(partial(open_idle, server, sessions, stack))
            used = cpu_seconds(pid)
            await trio.sleep(seconds)
            after = memory_kib(pid)
            return Result(sessions, (after - before) / sessions, (cpu_seconds(pid) - used) / seconds, after)


def open_idle(server: Server, sessions: int, stack: ExitStack) -> None:
    """Starts `sessions` sessions, each with a stream and a link, and leaves them to `stack`. It blocks."""
    with ThreadPoolExecutor(OPENERS) as openers:
        for stream, link in openers.map(lambda _: _open_one(server), range(sessions)):
            stack.enter_context(stream)
            stack.enter_context(link)


def _open_one(server: Server) -> tuple[socket.socket, socket.socket]:
    door = start_http(server)
    return _open_stream(server.connect(), door.stream), _open_link(socket.socket(socket.AF_UNIX), door.session.socket)


def _open_stream(stream: socket.socket, request: bytes) -> socket.socket:
    stream.sendall(request)
    reader = EventReader()
    while reader.status is None:
        reader.feed(loop.receive(stream))
    return stream


def _open_link(link: socket.socket, path: str) -> socket.socket:
    link.settimeout(SETUP_SECONDS)
    link.connect(path)
    received = b""
    # Both configurations are the first things on every link (WIRE section 1): then it is served.
    while received.count(b"\n") < 2:
        received += loop.receive(link)
    return link


def table(result: Result) -> str:
    """Returns the figures beside their aims."""
    memory = "met" if result.kib_per_session <= MEMORY_AIM_KIB else "MISSED"
    cpu = "met" if result.cpu_share < CPU_AIM_SHARE else "MISSED"
    return (
        f"{result.sessions} idle sessions, a link and a stream each: {result.resident_kib / 1024:.0f} MiB resident\n"
        f"memory a session: {result.kib_per_session:.1f} KiB of at most {MEMORY_AIM_KIB:g}: {memory}\n"
        f"CPU: {result.cpu_share:.2%} of one core, of less than {CPU_AIM_SHARE:.0%}: {cpu}"
    )


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long they idle")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="20 sessions for half a second, for tests")
    given = parser.parse_args()
    sessions, seconds = (20, 0.5) if given.quick else (given.sessions, given.seconds)
    allow_descriptors(descriptors_for(sessions))
    result = run_to_end(run, sessions, seconds)
    print(msgspec.json.encode(result).decode() if given.json else table(result))


if __name__ == "__main__":
    main()
