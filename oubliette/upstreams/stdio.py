"""A proxied server as a process of ours: its messages on stdin and stdout, a line each.

The SDK has such a transport too. This one bounds a line, sees the process end also where a child of it holds the pipes,
and passes its stderr to the log: a server is not trusted with the daemon's memory, time or terminal.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from oubliette.agents.environment import PASSED_ON
from oubliette.log import get as get_logger
from oubliette.protocol.lines import CLOSED, NEED_DATA, LineReader
from oubliette.upstreams.connection import Fate, RemoteError, ServerConfig
from oubliette.upstreams.messages import MAX_MESSAGE_BYTES, Ledger, UnreadableError, read_untrusted, write
from oubliette.upstreams.text import clean_line

# MCP, "Lifecycle", shutdown over stdio: its stdin is closed, then SIGTERM, then SIGKILL. In seconds; together they
# bound how long a server can hold up a stop.
EOF_GRACE: Final = 0.5
TERM_GRACE: Final = 1.0
KILL_GRACE: Final = 1.0
# Of the end of the process and the end of its output one is seen first; so long the other may take, in seconds.
DRAIN: Final = 0.2
# Messages to a server that does not read: calls that were given up leave their notice there. As many as there may be
# calls, and as many notices.
BACKLOG: Final = 128
# Of a line of stderr; longer ones are left out.
MAX_STDERR_LINE: Final = 4 * 1024
# A shorter value of `env` is no secret, and would be found in any text.
MIN_SECRET: Final = 4
_CHUNK: Final = 64 * 1024

log = get_logger(__name__)
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def open_stdio(config: ServerConfig, fate: Fate, ledger: Ledger) -> AsyncIterator[Streams]:
    """Starts the server's process; yields the streams that a session of the SDK runs on.

    `fate` ends with the process, with its output, or with a message that cannot be read. Leaving it ends the process
    and its group within EOF_GRACE + TERM_GRACE + KILL_GRACE. Raises RemoteError where it cannot be started.
    """
    process = await _start(config)
    into, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, out_of = anyio.create_memory_object_stream[SessionMessage](BACKLOG)
    pipes = _Pipes(process, fate, ledger)
    try:
        with into, incoming, outgoing, out_of:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pipes.read, into)
                nursery.start_soon(pipes.write, out_of)
                nursery.start_soon(pipes.watch)
                nursery.start_soon(pipes.log_complaints, _Redactor(config.env))
                try:
                    yield incoming, outgoing
                finally:
                    nursery.cancel_scope.cancel()
    finally:
        await _stop(process)


async def _start(config: ServerConfig) -> trio.Process:
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | dict(config.env)
    try:
        return await trio.lowlevel.open_process(
            [config.command or "", *config.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        raise RemoteError(f"{config.command!r} cannot be started: {_cause(error)}") from None


def _cause(error: OSError | ValueError) -> str:
    return error.strerror or "the system refuses" if isinstance(error, OSError) else str(error)


class _Pipes:
    """The tasks at the three pipes of a process, and at its end."""

    def __init__(self, process: trio.Process, fate: Fate, ledger: Ledger) -> None:
        self._process = process
        self._fate = fate
        self._ledger = ledger
        self._output_ended = trio.Event()

    async def read(self, into: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Hands on what the server says. The session sees its end only once `fate` has the reason."""
        assert self._process.stdout is not None
        lines = LineReader(MAX_MESSAGE_BYTES)
        with into, suppress(anyio.BrokenResourceError):
            try:
                await _each_line(self._process.stdout, lines, lambda line: self._hand_on(line, into))
            except UnreadableError as error:
                self._fate.end(f"it sent {error}")
            self._output_ended.set()
            await self._gone("it closed its stdout")

    async def write(self, out_of: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Passes on what the session says."""
        assert self._process.stdin is not None
        try:
            with out_of:
                async for message in out_of:
                    await self._process.stdin.send_all(write(message.message) + b"\n")
                    self._ledger.leave(message.message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._gone("it closed its stdin")

    async def watch(self) -> None:
        """Sees the process end, also where a child of it still holds the pipes."""
        code = await self._process.wait()
        with trio.move_on_after(DRAIN):
            await self._output_ended.wait()
        self._fate.end(
            f"its process was ended by signal {-code}" if code < 0 else f"its process ended with code {code}"
        )

    async def log_complaints(self, redactor: _Redactor) -> None:
        """Passes stderr to the log, at debug."""
        assert self._process.stderr is not None

        async def note(line: bytes | None) -> None:
            await trio.lowlevel.checkpoint()
            text = f"a line of over {MAX_STDERR_LINE} bytes" if line is None else redactor.redacted(line)
            log.debug("stderr", line=text)

        await _each_line(self._process.stderr, LineReader(MAX_STDERR_LINE), note)

    async def _hand_on(self, line: bytes | None, into: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        if line is None:
            raise UnreadableError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
        message = read_untrusted(line, self._ledger)
        if message is None:
            # Programs print where they should not; the protocol goes on with the next line.
            log.debug("not a message", bytes=len(line))
        else:
            await into.send(SessionMessage(message))

    async def _gone(self, otherwise: str) -> None:
        """A pipe ended. If that is because the process did, `watch` says so."""
        with trio.move_on_after(DRAIN):
            await self._process.wait()
        if self._process.returncode is None:
            self._fate.end(otherwise)
        await self._fate.wait()


async def _each_line(
    stream: trio.abc.ReceiveStream, lines: LineReader, take: Callable[[bytes | None], Awaitable[None]]
) -> None:
    """Hands each line to `take`, and None for one that is too long."""
    while (event := lines.next_event()) is not CLOSED:
        if event is NEED_DATA:
            lines.receive_data(bytes(await stream.receive_some(_CHUNK)))
        else:
            await take(event if isinstance(event, bytes) else None)


class _Redactor:
    """Takes the values of a server's `env` out of what it writes."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._secrets = sorted((value for value in env.values() if len(value) >= MIN_SECRET), key=len, reverse=True)

    def redacted(self, line: bytes) -> str:
        text = line.decode(errors="replace")
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return clean_line(text, MAX_STDERR_LINE)


async def _stop(process: trio.Process) -> None:
    """Ends the process and its group. Returns with none of them left to wait for."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + EOF_GRACE + TERM_GRACE + KILL_GRACE):
        await _close(process.stdin)
        with trio.move_on_after(EOF_GRACE):
            await process.wait()
        if process.returncode is None:
            _signal_group(process, signal.SIGTERM)
            with trio.move_on_after(TERM_GRACE):
                await process.wait()
        _signal_group(process, signal.SIGKILL)
        await _close(process.stdout)
        await _close(process.stderr)
        await process.wait()


async def _close(stream: trio.abc.AsyncResource | None) -> None:
    assert stream is not None
    await trio.aclose_forcefully(stream)


def _signal_group(process: trio.Process, number: signal.Signals) -> None:
    # Nobody left in the group is what was wanted.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
