"""Short commands that answer a question or do one thing, in bounded time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import trio
from msgspec import Struct

from oubliette.agents.process import Process, started

# Of an answer no more than this is read: a list of containers is some KiB.
MAX_ANSWER: Final = 1024 * 1024
TIMED_OUT: Final = 124


class Answer(Struct, frozen=True, kw_only=True):
    """How a command ended: its exit code (`TIMED_OUT` where it had to be ended), stdout, and the end of its stderr."""

    exit_code: int
    text: str
    complaint: str


async def ask(argv: Sequence[str], seconds: float) -> Answer:
    """Runs a command of the host in the daemon's own environment, for `seconds` at most. Raises `OSError`."""
    async with started(Process(argv, environment=os.environ)) as process:
        await process.stdin.aclose()
        text = bytearray()
        with trio.move_on_after(seconds):
            async for chunk in process.stdout:
                text += chunk[: MAX_ANSWER - len(text)]
            return Answer(
                exit_code=await process.wait(), text=text.decode(errors="replace"), complaint=process.complaint
            )
        complaint = f"{argv[0]} did not answer within {seconds:g} s"
        return Answer(exit_code=TIMED_OUT, text=text.decode(errors="replace"), complaint=complaint)
