"""Waiting for what no event tells of: other processes, files, the daemon's log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

LIMIT = 20  # seconds; far more than anything takes


async def until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Returns when `condition` holds. Raises `TooSlowError` after `limit` seconds."""
    with trio.fail_after(limit):
        while not condition():  # noqa: ASYNC110  # another process sets no event here
            await trio.sleep(0.005)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet reaped, by whomever, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_gone(pid: int, limit: float = LIMIT) -> None:
    """Returns when a process that was told to end has ended."""
    await until(lambda: not is_running(pid), limit)
