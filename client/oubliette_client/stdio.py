"""The three descriptors of the process: which of them is the protocol's, and how anything is said on stderr."""

from __future__ import annotations

import fcntl
import os
import select
from typing import Final

# The first number above stdin, stdout and stderr.
_FIRST_PRIVATE_FD: Final = 3
# A write of at most PIPE_BUF bytes to a pipe that poll(2) calls writable does not block (pipe(7)).
_MAX_NOTE_BYTES: Final = select.PIPE_BUF


def take_over() -> tuple[int, int]:
    """Returns private descriptors of stdin and stdout, and points descriptor 1 at stderr.

    WIRE section 1: "Nothing but protocol goes to stdout". A stray print, a warning or a C library that writes to
    descriptor 1 lands on stderr from here on. Raises `OSError` where stdin or stdout is not open.
    """
    stdin = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _FIRST_PRIVATE_FD)
    stdout = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _FIRST_PRIVATE_FD)
    try:
        os.dup2(2, 1)
    except OSError:  # started without stderr
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return stdin, stdout


def leaf(failure: BaseException) -> BaseException:
    """Returns the failure itself out of the groups that nurseries put it into."""
    return leaf(failure.exceptions[0]) if isinstance(failure, BaseExceptionGroup) else failure


def note(text: str) -> None:
    """Says `text` in one line on stderr, where there is room for it.

    An agent that never reads our stderr must not stall the relay, so a line that would block is dropped. Text of the
    daemon can hold anything: what does not print is replaced.
    """
    line = "".join(char if char.isprintable() else "\ufffd" for char in f"oubliette-client: {text}")
    try:
        if select.select([], [2], [], 0)[1]:
            os.write(2, line.encode("utf-8", "replace")[: _MAX_NOTE_BYTES - 1] + b"\n")
    except OSError:  # nobody is left to read it
        return
