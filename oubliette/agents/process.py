"""The runtime `process`: a subprocess in a session and process group of its own, gone with whoever waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from oubliette.protocol.lines import CLOSED, NEED_DATA, OVERSIZED, LineReader

# How long a process may take over SIGTERM before its group gets SIGKILL, in seconds.
POLITE: Final = 2.0
# After the exit: how long what is left in the pipes may take to arrive.
DRAIN: Final = 1.0
# A longer line of output is left out, with a note: lines become events, and events stay in memory.
MAX_LINE: Final = 256 * 1024
# The end of stderr is kept for the error message.
MAX_COMPLAINT: Final = 4096
_CHUNK: Final = 64 * 1024

LineHandler = Callable[[str], Awaitable[None]]


async def run_process(
    argv: Sequence[str], *, folder: Path, environment: Mapping[str, str], stdin: bytes, on_line: LineHandler
) -> tuple[int, str]:
    """Runs `argv` and hands each line of its stdout to `on_line`; returns its exit code and the end of its stderr.

    The exit ends it: processes that it left in its group are killed. So is the whole group when this is cancelled, in
    bounded time. Raises `OSError` where it cannot be started.
    """
    process = await trio.lowlevel.open_process(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=dict(environment),
        start_new_session=True,
    )
    complaint = _Tail(MAX_COMPLAINT)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, process.stdin, stdin)
            nursery.start_soon(_read_lines, process.stdout, on_line)
            nursery.start_soon(complaint.read, process.stderr)
            exit_code = await process.wait()
            _signal_group(process, signal.SIGKILL)
            nursery.cancel_scope.deadline = trio.current_time() + DRAIN
    finally:
        await _stop(process)
    return exit_code, complaint.text


async def _stop(process: trio.Process) -> None:
    """Ends the group, politely then by force. Returns with no process left to wait for."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + POLITE + DRAIN):
        if process.returncode is None:
            _signal_group(process, signal.SIGTERM)
            with trio.move_on_after(POLITE):
                await process.wait()
        _signal_group(process, signal.SIGKILL)
        await process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                await trio.aclose_forcefully(stream)


def _signal_group(process: trio.Process, number: signal.Signals) -> None:
    # Nobody left in the group is what was wanted.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _write(stream: trio.abc.SendStream | None, data: bytes) -> None:
    assert stream is not None
    # A program need not read what it is given.
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async with stream:
            await stream.send_all(data)


async def _read_lines(stream: trio.abc.ReceiveStream | None, on_line: LineHandler) -> None:
    assert stream is not None
    lines = LineReader(MAX_LINE, keeps_blank=True)
    while True:
        line = lines.next_event()
        if line is NEED_DATA:
            lines.receive_data(bytes(await stream.receive_some(_CHUNK)))
        elif line is CLOSED:
            return
        elif line is OVERSIZED:
            await on_line(f"[a line of more than {MAX_LINE} bytes was left out]")
        elif isinstance(line, bytes):
            await on_line(line.decode(errors="replace").rstrip("\r"))


class _Tail:
    """The last bytes of a stream."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: deque[int] = deque(maxlen=size)

    async def read(self, stream: trio.abc.ReceiveStream | None) -> None:
        assert stream is not None
        async for chunk in stream:
            self._kept.extend(chunk[-self._size :])

    @property
    def text(self) -> str:
        return bytes(self._kept).decode(errors="replace").strip()
