"""Processes of a benchmark: started with an owner, spoken to by lines, ended by their id."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

import trio

# How long a process may take to end after SIGTERM; the daemon's own grace is 5 s (WIRE section 8).
STOP_SECONDS: Final = 8.0
# A report of a load process holds every latency's digest, never the latencies: far below this.
MAX_LINE_BYTES: Final = 1024 * 1024
_TAIL_CHARACTERS: Final = 2000


Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class ProcessFailedError(Exception):
    """A process of the benchmark ended, or did not say what it should; the end of its stderr is in the message."""

    def __init__(self, pid: int, message: str) -> None:
        super().__init__(message)
        self.pid = pid


class Lines:
    """A child process that is spoken to by lines of stdin and stdout."""

    def __init__(self, process: trio.Process, errors: Path) -> None:
        self._process = process
        self._errors = errors
        self._buffer = b""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def write(self, line: bytes) -> None:
        """Sends one line, without its line end. Raises `ProcessFailedError` when the process has ended."""
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(line + b"\n")
        except trio.BrokenResourceError:
            raise self.failure("has ended") from None

    async def close_stdin(self) -> None:
        """Tells the process that nothing more comes."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()

    async def read(self, *, seconds: float) -> bytes:
        """Returns the next line of stdout, without its line end.

        Raises `ProcessFailedError` when none comes within `seconds`, or when the process has ended.
        """
        with trio.move_on_after(seconds):
            while b"\n" not in self._buffer:
                self._buffer += await self._read_some()
            line, _, self._buffer = self._buffer.partition(b"\n")
            return line
        raise self.failure(f"said nothing for {seconds:g} s")

    async def _read_some(self) -> bytes:
        assert self._process.stdout is not None
        data = await self._process.stdout.receive_some()
        if not data or len(self._buffer) > MAX_LINE_BYTES:
            raise self.failure("has ended or says too much")
        return bytes(data)

    def failure(self, what: str) -> ProcessFailedError:
        """Returns the error that says `what` happened to this process, with the end of its stderr."""
        tail = self._errors.read_text(errors="replace")[-_TAIL_CHARACTERS:]
        return ProcessFailedError(self.pid, f"{self._process.args!r} {what}\n{tail}")


@asynccontextmanager
async def running(
    command: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Lines]:
    """Runs `command` for the length of the block; its stderr goes to a file in `folder`.

    The process is ended when the block is left, also by an error: SIGTERM first, SIGKILL after `STOP_SECONDS`.
    """
    sink, errors = tempfile.mkstemp(prefix="stderr-", dir=folder)
    try:
        process = await trio.lowlevel.open_process(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, env=environment
        )
    finally:
        os.close(sink)
    lines = Lines(process, Path(errors))
    try:
        yield lines
    except ProcessFailedError as error:
        if error.pid != lines.pid:
            error.add_note(str(lines.failure("ran beside it")))
        raise
    finally:
        await _stop(process)


async def _stop(process: trio.Process) -> None:
    process.terminate()
    with _bounded_shield() as patience:
        await process.wait()
    if patience.cancelled_caught:
        process.kill()
    # SIGKILL cannot be refused; the deadline is for a machine that is out of breath.
    with _bounded_shield():
        await process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            await trio.aclose_forcefully(pipe)


def run_to_end(main: Callable[[*Arguments], Awaitable[Result]], *arguments: *Arguments) -> Result:
    """Returns what `main(*arguments)` returns in trio; SIGTERM ends it as Ctrl-C does, so that no process is left."""
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    return trio.run(main, *arguments)


def _bounded_shield() -> trio.CancelScope:
    return trio.CancelScope(deadline=trio.current_time() + STOP_SECONDS, shield=True)
