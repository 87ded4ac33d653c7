"""Programs of this host: started, heard, and gone with whoever waits for them. Every runtime's programs are such.

    async with started(Process(popen)):     two tasks beside the block
        watch                               waits for the exit, kills what is left of the group, tells why it ended
        read the complaint                  stderr, all the time, its end kept
    leaving the block                       SIGTERM, `POLITE` seconds, then by force

They are spawned by the main thread, never by `trio.lowlevel.open_process`, which forks in a thread of trio's cache:
the signal of PR_SET_PDEATHSIG (`bwrap --die-with-parent`) is sent when the thread ends that forked, and those do.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import trio

from oubliette.agents.base import Program, Sandbox
from oubliette.protocol.lines import CLOSED, NEED_DATA, OVERSIZED, LineReader

# How long a process may take over SIGTERM before its group gets SIGKILL, in seconds.
POLITE: Final = 1.5
# How long ending it by force may take, in seconds: an engine has to be asked, and the kernel has to tidy up.
FORCE: Final = 10.0
# After the exit: how long what is left in the pipes may take to arrive.
DRAIN: Final = 1.0
# After the exit: how long it may take to find out why.
_POST_MORTEM: Final = 5.0
# A longer line of output is left out, with a note: lines become events, and events stay in memory.
MAX_LINE: Final = 256 * 1024
# The end of stderr is kept for the error message.
MAX_COMPLAINT: Final = 4096
_CHUNK: Final = 64 * 1024

LineHandler = Callable[[str], Awaitable[None]]


class Process:
    """A program in a session and process group of its own; what `Running` asks for, and how it is ended.

    A runtime whose programs are ended in other ways overrides `ask_to_end`, `force_to_end` and `post_mortem`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str],
        pass_fds: Collection[int] = (),
    ) -> None:
        """Starts `argv`, looked up in the PATH of `environment`. Raises `OSError`, and `ValueError` for a NUL."""
        with ExitStack() as theirs, ExitStack() as ours:
            stdin, self.stdin = pipe_to_child(theirs, ours)
            self.stdout, stdout = pipe_from_child(theirs, ours)
            self._stderr, stderr = pipe_from_child(theirs, ours)
            self._popen = subprocess.Popen(  # noqa: S603  # no shell, and one argument stays one
                list(argv),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=folder,
                env=dict(environment),
                pass_fds=pass_fds,
                start_new_session=True,
            )
            ours.callback(_kill_at_once, self._popen)
            self._pidfd = os.pidfd_open(self.pid)
            ours.pop_all()
        self._complaint = _Tail(MAX_COMPLAINT)
        self._reason = ""
        self._exited, self._told = trio.Event(), trio.Event()
        # Its deadline comes with `end`, which always comes.
        self._watching = trio.CancelScope(shield=True)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def has_exited(self) -> bool:
        return self._exited.is_set()

    @property
    def complaint(self) -> str:
        """The end of its stderr so far, and after its exit the reason of it where that is known."""
        return "\n".join(filter(None, (self._complaint.text, self._reason)))

    async def wait(self) -> int:
        """Returns the exit code, negative for a signal. Processes that it left in its group are gone then, and
        `complaint` is complete, unless somebody beyond reach holds the pipe open.
        """
        await self._told.wait()
        return self._exit_code

    @property
    def _exit_code(self) -> int:
        assert self._popen.returncode is not None
        return self._popen.returncode

    # What runs beside the block that holds it

    async def watch(self) -> None:
        """Waits for the exit, ends what is left of the group, and finds out why it ended."""
        # A cancellation is for the program's block, which ends the program: that is what is waited for here.
        with self._watching:
            await trio.lowlevel.wait_readable(self._pidfd)
            # Not reaped yet, so the group's number is nobody else's.
            self.signal_group(signal.SIGKILL)
            self._popen.wait()
            self._exited.set()
        with trio.move_on_after(DRAIN):
            await self._complaint.complete.wait()
        if self.has_exited:
            await self._find_reason()
            self._told.set()

    async def _find_reason(self) -> None:
        # Where the end was asked for, that is the reason.
        if math.isinf(self._watching.deadline):
            # A reason that cannot be found is none; the exit code stands.
            with trio.move_on_after(_POST_MORTEM), suppress(OSError):
                self._reason = await self.post_mortem(self._exit_code)

    async def read_complaint(self) -> None:
        await self._complaint.read(self._stderr)

    # Its end

    async def end(self) -> None:
        """Ends it, politely then by force. Returns with no process left to wait for."""
        self._watching.deadline = trio.current_time() + POLITE + FORCE
        with trio.CancelScope(shield=True, deadline=self._watching.deadline):
            if not self.has_exited:
                self.ask_to_end()
                with trio.move_on_after(POLITE):
                    await self._exited.wait()
            await self.force_to_end()
            await self._exited.wait()

    def close(self) -> None:
        """Closes its pipes."""
        os.close(self._pidfd)
        for stream in (self.stdin, self.stdout, self._stderr):
            stream.close()

    def ask_to_end(self) -> None:
        self.signal_group(signal.SIGTERM)

    async def force_to_end(self) -> None:
        """Ends what still runs; called once, also for one that has exited."""
        if not self.has_exited:
            self.signal_group(signal.SIGKILL)

    async def post_mortem(self, exit_code: int) -> str:
        """Returns why it ended, in words, where that is known and stderr does not say it."""
        return ""

    def signal_group(self, number: signal.Signals) -> None:
        """Sends a signal to the group of a process that was not reaped yet."""
        # Nobody left in the group is what was wanted.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _kill_at_once(popen: subprocess.Popen[bytes]) -> None:
    popen.kill()
    popen.wait()


P = TypeVar("P", bound=Process)


@asynccontextmanager
async def started(process: P) -> AsyncIterator[P]:
    """Hears a process as long as the block; leaving it ends the process, in bounded time."""
    try:
        async with beside(process.watch, process.read_complaint):
            try:
                yield process
            finally:
                await process.end()
    finally:
        process.close()


@asynccontextmanager
async def beside(*tasks: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Runs tasks as long as the block. What the block raises comes out as it is, and not in a group with one member."""
    raised: Exception | None = None
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        try:
            yield
        except Exception as error:
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


async def run_lines(
    sandbox: Sandbox, program: Program, stdin: bytes, on_line: LineHandler, *, max_line: int = MAX_LINE
) -> tuple[int, str]:
    """Runs a program in a sandbox and hands each line of its stdout to `on_line`; of one that is longer than
    `max_line` bytes, `oversized_note` in its place.

    Returns its exit code and the end of its stderr. Its exit ends it, as a cancellation does: what it started is gone
    when this returns, in bounded time. Raises `OSError` or `ValueError` where it cannot be started.
    """
    async with sandbox.start(program) as running:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, running.stdin, stdin)
            nursery.start_soon(_read_lines, running.stdout, on_line, max_line)
            exit_code = await running.wait()
            nursery.cancel_scope.deadline = trio.current_time() + DRAIN
        return exit_code, running.complaint


def oversized_note(max_line: int) -> str:
    """Returns what stands in the place of a line of output that is longer than `max_line` bytes."""
    return f"[a line of more than {max_line} bytes was left out]"


def pipe_to_child(theirs: ExitStack, ours: ExitStack) -> tuple[int, trio.lowlevel.FdStream]:
    """Returns a pipe's two ends, each closed by the stack of its side: what a child reads, and what writes to it."""
    reader, writer = os.pipe()
    theirs.callback(os.close, reader)
    stream = trio.lowlevel.FdStream(writer)
    ours.callback(stream.close)
    return reader, stream


def pipe_from_child(theirs: ExitStack, ours: ExitStack) -> tuple[trio.lowlevel.FdStream, int]:
    """Returns a pipe's two ends, each closed by the stack of its side: what reads of a child, and what it writes to."""
    reader, writer = os.pipe()
    theirs.callback(os.close, writer)
    stream = trio.lowlevel.FdStream(reader)
    ours.callback(stream.close)
    return stream, writer


async def _write(stream: trio.abc.SendStream, data: bytes) -> None:
    # A program need not read what it is given.
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async with stream:
            await stream.send_all(data)


async def _read_lines(stream: trio.abc.ReceiveStream, on_line: LineHandler, max_line: int) -> None:
    lines = LineReader(max_line, keeps_blank=True)
    while True:
        line = lines.next_event()
        if line is NEED_DATA:
            lines.receive_data(bytes(await stream.receive_some(_CHUNK)))
        elif line is CLOSED:
            return
        elif line is OVERSIZED:
            await on_line(oversized_note(max_line))
        elif isinstance(line, bytes):
            await on_line(line.decode(errors="replace").rstrip("\r"))


class _Tail:
    """The last bytes of a stream; `complete` is set at its end."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: deque[int] = deque(maxlen=size)
        self.complete = trio.Event()

    async def read(self, stream: trio.abc.ReceiveStream) -> None:
        async for chunk in stream:
            self._kept.extend(chunk[-self._size :])
        self.complete.set()

    @property
    def text(self) -> str:
        return bytes(self._kept).decode(errors="replace").strip()
