"""Processes that left their group: found by what a session's agents have in their environment, and ended.

A process of the runtime `process` can leave its group (setsid), and outlives a daemon that was killed. What it was
started with stays readable in /proc/PID/environ, and is inherited by all that it starts, unless it clears it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from oubliette.log import get as get_logger
from oubliette.runtimes.folders import agent_uid
from oubliette.runtimes.instance import MARK, is_left

# How long the strays of one sandbox may take to die, in seconds: they are killed, but they may have children meanwhile.
PATIENCE: Final = 2.0
_PAUSE: Final = 0.002
# A stray that starts another and ends may slip through a look. So one that finds nothing is the last only if no process
# was started meanwhile, or after so many.
_LOOKS: Final = 3

Environ = Mapping[bytes, bytes]

log = get_logger(__name__)


async def end_strays(is_stray: Callable[[Environ], bool]) -> int:
    """Kills the processes whose environment `is_stray`, until none is found. Returns how many they were.

    Only processes of this user, and of agents', are looked at. Within `PATIENCE` seconds, also when it is cancelled.
    """
    count = 0
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * PATIENCE):
        count = await trio.to_thread.run_sync(_end_strays, is_stray)
    return count


async def end_left(data_dir: Path) -> int:
    """Kills what an earlier daemon of the same data directory ran outside of its sandboxes. Returns how many."""

    def is_stray(environ: Environ) -> bool:
        return is_left(data_dir, os.fsdecode(environ.get(os.fsencode(MARK), b"")))

    return await end_strays(is_stray)


def _end_strays(is_stray: Callable[[Environ], bool]) -> int:
    deadline = time.monotonic() + PATIENCE
    killed: set[int] = set()
    in_vain = 0
    while in_vain < _LOOKS:
        youngest = _youngest()
        found = set(_killed(is_stray))
        killed |= found
        if not found and _youngest() == youngest:
            break
        in_vain = 0 if found else in_vain + 1
        if time.monotonic() > deadline:
            log.warning("processes of an ended session are still there", pids=sorted(found))
            break
        time.sleep(_PAUSE)
    return len(killed)


def _youngest() -> str:
    """Returns the number of the process that was started last: proc(5), the last field of /proc/loadavg."""
    return Path("/proc/loadavg").read_text().split()[-1]


def _killed(is_stray: Callable[[Environ], bool]) -> Iterator[int]:
    """Kills each stray that is there now, the youngest first. Yields those that had not died yet."""
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
        if pid != os.getpid():
            # It has ended meanwhile, or it is somebody else's.
            with suppress(ProcessLookupError, PermissionError, FileNotFoundError):
                if _kill(pid, is_stray):
                    yield pid


def _kill(pid: int, is_stray: Callable[[Environ], bool]) -> bool:
    # The descriptor comes first: whoever has the number when it is read, the signal is for the one that had it before.
    descriptor = os.pidfd_open(pid)
    try:
        if os.stat(f"/proc/{pid}").st_uid not in (os.geteuid(), agent_uid()) or not is_stray(_environ(pid)):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    finally:
        os.close(descriptor)


def _environ(pid: int) -> Environ:
    """Returns what a process was started with; nothing for one that is dead and not yet reaped."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        parts = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    return {name: value for name, _, value in parts}
