"""Connections: Hypercorn's HTTP/1.1 protocol, driven by tasks of our own.

Hypercorn's own trio worker lets an error of one connection end the process, shields its writes without a deadline, and
speaks h2c to whoever asks. What it does with one connection's bytes is sound, so that part (`H11Protocol`) is used, and
the tasks around it are here:

- a connection's errors end that connection (`_handle`);
- a write has a deadline that grows with its size, so that a reader that stalls or trickles is cut off;
- one deadline on the reading scope stands for the keep-alive and header timers, without a task for either;
- one accept empties the listening queue, so that many callers who connect at once do not wait for each other.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final

import h11
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from oubliette.errors import InvalidRequest
from oubliette.log import get as get_logger

App = Callable[[dict[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

# WIRE section 4: "Keep-alive 75 s".
KEEP_ALIVE: Final = 75.0
# From the first byte of a request to the end of its headers, in seconds.
HEADER_TIMEOUT: Final = 10.0
# What a write may take: so long, and the time that its bytes take at this rate. A slower reader resumes later.
WRITE_TIMEOUT: Final = 10.0
WRITE_RATE: Final = 64 * 1024
# The kernel gives up on data that nobody acknowledges after so many milliseconds: a half-open peer.
USER_TIMEOUT_MS: Final = 10_000
BACKLOG: Final = 1024
# Accepted in one go before other tasks have their turn.
_ACCEPT_BURST: Final = 64
# Between two attempts when the process has no file descriptor left, in seconds.
_ACCEPT_RETRY: Final = 0.1
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_CHUNK: Final = 64 * 1024

log = get_logger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises `InvalidRequest` in words where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        listener.setblocking(False)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        message = f"cannot listen on {host}:{port}: {error}; choose another with --host and --port"
        raise InvalidRequest(message, field="server.port") from error
    return listener


class HttpServer:
    """Serves `app` on a listening socket."""

    def __init__(self, app: App, listener: socket.socket) -> None:
        self._app = app
        self._listener = listener
        self._config = _hypercorn_config()
        self._context = WorkerContext(None)
        self._accepting = trio.CancelScope()
        self._connections: set[_Connection] = set()

    async def serve(self) -> None:
        """Serves until `stop`; then until the last connection has gone, or this is cancelled."""
        with self._listener:
            async with trio.open_nursery() as nursery:
                with self._accepting:
                    await self._accept(nursery)

    async def stop(self) -> None:
        """Accepts no more, and lets every connection go after the response that it is at."""
        self._accepting.cancel(reason="the server is stopping")
        await self._context.terminated.set()
        for connection in self._connections:
            connection.leave_if_idle()

    async def _accept(self, nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._listener)
            try:
                for _ in range(_ACCEPT_BURST):
                    accepted, _ = self._listener.accept()
                    nursery.start_soon(self._handle, accepted)
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("cannot accept connections", reason=str(error))
                await trio.sleep(_ACCEPT_RETRY)

    async def _handle(self, accepted: socket.socket) -> None:
        """One connection's task. Nothing that a peer sends may end more than its own connection."""
        accepted.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        connection = _Connection(self._app, self._config, self._context, stream)
        self._connections.add(connection)
        try:
            await connection.run()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the peer has gone
        except* (h11.ProtocolError, UnicodeError, ValueError) as group:
            log.warning("a connection was closed", reason=repr(group.exceptions[0]))
        except* Exception:
            log.exception("a connection failed")
        finally:
            self._connections.discard(connection)
            await trio.aclose_forcefully(stream)


class _Connection:
    """One peer: a reader that feeds Hypercorn's protocol, and the tasks of its requests."""

    def __init__(self, app: App, config: HypercornConfig, context: WorkerContext, stream: trio.SocketStream) -> None:
        self._app = app
        self._config = config
        self._context = context
        self._stream = stream
        self._sending = trio.Lock()
        self._reading = trio.CancelScope(deadline=trio.current_time() + KEEP_ALIVE)

    async def run(self) -> None:
        """Serves the peer until either side closes."""
        async with trio.open_nursery() as nursery:
            # Hypercorn's types name its own task group and application wrapper; what it calls of them is here.
            make: Any = _PlainH11Protocol
            protocol: H11Protocol = make(
                self._app,
                self._config,
                self._context,
                _Tasks(self._app, nursery),
                ConnectionState({}),
                False,
                _address(self._stream.socket.getpeername()),
                _address(self._stream.socket.getsockname()),
                self._send,
            )
            with self._reading:
                await self._read(protocol)
            await protocol.handle(Closed())
            await trio.aclose_forcefully(self._stream)

    def leave_if_idle(self) -> None:
        """Closes the connection where no request is under way."""
        if self._reading.deadline != inf:
            self._reading.cancel(reason="the server is stopping")

    async def _read(self, protocol: H11Protocol) -> None:
        while data := await self._stream.receive_some(_CHUNK):
            if self._reading.deadline != inf:
                # Headers that drip in get no more time with each byte.
                self._reading.deadline = min(self._reading.deadline, trio.current_time() + HEADER_TIMEOUT)
            await protocol.handle(RawData(bytes(data)))

    async def _send(self, event: RawData | Closed | Updated) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Updated):
            self._reading.deadline = trio.current_time() + KEEP_ALIVE if event.idle else inf
        else:
            await self._close()

    async def _write(self, data: bytes) -> None:
        async with self._sending:
            try:
                with trio.fail_after(WRITE_TIMEOUT + len(data) / WRITE_RATE):
                    await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                await self._close()
            except trio.Cancelled:
                # Half a message may be out: nothing that follows it could be read.
                await trio.aclose_forcefully(self._stream)
                raise

    async def _close(self) -> None:
        """Ends the reading; `run` closes the rest."""
        self._reading.cancel(reason="the connection is closed")
        await trio.aclose_forcefully(self._stream)


class _PlainH11Protocol(H11Protocol):
    """HTTP/1.1 and nothing else: `Upgrade: h2c` and prior knowledge are ignored, as RFC 9110, section 7.8 allows."""

    async def _check_protocol(self, event: h11.Request) -> None:
        return None


class _Tasks:
    """What Hypercorn calls a task group: it runs the application in the connection's nursery."""

    def __init__(self, app: App, nursery: trio.Nursery) -> None:
        self._app = app
        self._nursery = nursery

    async def spawn_app(
        self, app: App, config: HypercornConfig, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any], Awaitable[None]]:
        to_app, from_peer = trio.open_memory_channel[Any](config.max_app_queue_size)
        self._nursery.start_soon(self._run, scope, from_peer.receive, send)
        return to_app.send

    async def _run(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            # Hypercorn's word for "the application has returned".
            await send(None)

    def spawn(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._nursery.start_soon(function, *arguments)


def _hypercorn_config() -> HypercornConfig:
    """Only what `H11Protocol` and its streams read; the timers are ours."""
    config = HypercornConfig()
    config.include_server_header = False
    config.keep_alive_max_requests = 2**63
    config.h11_max_incomplete_size = 32 * 1024
    config.accesslog = None
    config.errorlog = None
    return config


def _address(name: Any) -> tuple[str, int] | None:
    return (name[0], name[1]) if isinstance(name, tuple) else None
