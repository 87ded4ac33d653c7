"""Connections: Hypercorn's HTTP/1.1 protocol, driven by tasks of our own.

Hypercorn's own trio worker lets an error of one connection end the process, shields its writes without a deadline, and
speaks h2c to whoever asks. What it does with one connection's bytes is sound, so that part (`H11Protocol`) is used, and
the tasks around it are here:

- a connection's errors end that connection (`HttpServer._handle`);
- a write has a deadline that grows with its size, so that a reader that stalls or trickles is cut off;
- one deadline on the reading scope stands for the keep-alive and header timers, without a task for either;
- a request may take its connection over (`UPGRADE`): its task then has the stream, and nothing in between;
- one accept empties the listening queue, so that many callers who connect at once do not wait for each other;
- where connections or descriptors run out, those without a request under way make room.
"""

from __future__ import annotations

import errno
import resource
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from math import inf
from typing import Any, Final

import h11
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from oubliette import errors
from oubliette.errors import InvalidRequest
from oubliette.http.request import UPGRADE, Header, Upgrade
from oubliette.http.upgrade import UpgradableH11Protocol
from oubliette.log import get as get_logger
from oubliette.outbox import Outbox
from oubliette.receiving import receive

Address = tuple[str, int]
App = Callable[[dict[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

# WIRE section 4: "Keep-alive 75 s".
KEEP_ALIVE: Final = 75.0
# From the first byte of a request to the end of its headers, in seconds.
HEADER_TIMEOUT: Final = 10.0
# What a connection that never asked anything may take over it when connections are to go, in seconds.
FIRST_REQUEST: Final = 0.5
# What the headers of a request may weigh together while they are incomplete: one read more comes in, at the most.
MAX_HEADERS: Final = 32 * 1024
# What a write may take: so long, and the time that its bytes take at this rate. A slower reader resumes later.
WRITE_TIMEOUT: Final = 10.0
WRITE_RATE: Final = 64 * 1024
# The kernel gives up on data that nobody acknowledges after so many milliseconds: a half-open peer.
USER_TIMEOUT_MS: Final = 10_000
BACKLOG: Final = 1024
# An idle connection weighs 10 KiB, one with a reader that stalls 60 KiB: 600 MiB at the most.
MAX_CONNECTIONS: Final = 10_000
# Pieces of a body that wait for the application, each of one read at the most. With them the reading waits.
MAX_PIECES: Final = 10
# Accepted in one go before other tasks have their turn.
_ACCEPT_BURST: Final = 64
# Between two attempts when no connection can be accepted, in seconds.
_ACCEPT_RETRY: Final = 0.1
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
    """Serves `app` on a listening socket, `max_connections` of them at a time.

    The default leaves half of the process's descriptors to sessions, their links and their agents.
    """

    def __init__(self, app: App, listener: socket.socket, max_connections: int | None = None) -> None:
        self._app = app
        self._listener = listener
        self._address: Address = listener.getsockname()[:2]
        self._max_connections = max_connections or _most_connections()
        self._context = WorkerContext(None)
        self._accepting = trio.CancelScope()
        self._connections: set[Connection] = set()

    async def serve(self) -> None:
        """Serves until `stop`, or until this is cancelled."""
        with self._listener:
            async with trio.open_nursery() as nursery:
                with self._accepting:
                    await self._accept(nursery)

    async def stop(self) -> None:
        """Lets every connection go after the response that it is at; returns when the last one has gone.

        That takes as long as responses take: the deadline is the caller's. Who connects meanwhile is answered too.
        """
        await self._context.terminated.set()
        leaving = list(self._connections)
        self._shed()
        for connection in leaving:
            await connection.gone.wait()
        self._accepting.cancel(reason="the server has stopped")

    async def _accept(self, nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._listener)
            try:
                for _ in range(min(_ACCEPT_BURST, self._room())):
                    connection = self._accept_one()
                    self._connections.add(connection)
                    nursery.start_soon(self._handle, connection)
            except BlockingIOError:
                continue  # the queue is empty
            except OSError as error:
                # Most likely EMFILE. Whatever it is, it must not end the daemon: accept(2), "Error handling".
                log.error("cannot accept connections", reason=str(error), idle_closed=self._shed())
                await trio.sleep(_ACCEPT_RETRY)

    def _room(self) -> int:
        """How many connections more there may be. Raises `OSError` for none."""
        room = self._max_connections - len(self._connections)
        if room <= 0:
            raise OSError(errno.EMFILE, f"{self._max_connections} connections are open, as many as there may be")
        return room

    def _accept_one(self) -> Connection:
        accepted, peer = self._listener.accept()
        accepted.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        return Connection(self._app, self._context, stream, client=peer[:2], server=self._address)

    def _shed(self) -> int:
        """Closes the connections on which no request is under way: whoever needs one connects again."""
        return sum([connection.leave_if_idle() for connection in self._connections])

    async def _handle(self, connection: Connection) -> None:
        """One connection's task. Nothing that a peer sends may end more than its own connection."""
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
            connection.gone.set()


class Connection:
    """One peer on `stream`: a reader that feeds Hypercorn's protocol, and the tasks of its requests.

    `gone` is set by whoever runs it, when it is over. `client` and `server` are the two addresses, where there are any.
    """

    def __init__(
        self,
        app: App,
        context: WorkerContext,
        stream: trio.abc.Stream,
        *,
        client: Address | None = None,
        server: Address | None = None,
    ) -> None:
        self.gone = trio.Event()
        self._app = app
        self._context = context
        self._stream = stream
        self._client = client
        self._server = server
        self._outbox = Outbox(stream, seconds=WRITE_TIMEOUT, rate=WRITE_RATE)
        self._has_asked = False
        self._reading = trio.CancelScope(deadline=trio.current_time() + KEEP_ALIVE)

    async def run(self) -> None:
        """Serves the peer until either side closes."""
        try:
            async with trio.open_nursery() as nursery:
                protocol = self._make_protocol(nursery)
                # A write that failed has closed the stream under the reader.
                with self._reading, suppress(trio.ClosedResourceError):
                    await self._read(protocol)
                await protocol.handle(Closed())
                await trio.aclose_forcefully(self._stream)
        finally:
            await trio.aclose_forcefully(self._stream)

    def leave_if_idle(self) -> bool:
        """Closes the connection where no request is under way; returns whether that is so."""
        is_idle = self._reading.deadline != inf
        if is_idle and self._has_asked:
            self._reading.cancel(reason="the connection makes room")
        elif is_idle:
            # It is new: its first request may be on the way, and would be lost.
            self._reading.deadline = min(self._reading.deadline, trio.current_time() + FIRST_REQUEST)
        return is_idle

    def _make_protocol(self, nursery: trio.Nursery) -> H11Protocol:
        # Hypercorn's types name its own task group and application wrapper; what it calls of them is here.
        make: Any = _PlainH11Protocol

        async def upgrade(headers: Iterable[Header]) -> tuple[trio.abc.Stream, bytes]:
            return self._stream, await protocol.upgrade(headers)

        tasks, state = _Tasks(self._app, nursery, upgrade), ConnectionState({})
        protocol: _PlainH11Protocol = make(
            self._app, _CONFIG, self._context, tasks, state, False, self._client, self._server, self._send
        )
        return protocol

    async def _read(self, protocol: H11Protocol) -> None:
        while data := await receive(self._stream, _CHUNK):
            if self._reading.deadline != inf:
                # Headers that drip in get no more time with each byte.
                self._reading.deadline = min(self._reading.deadline, trio.current_time() + HEADER_TIMEOUT)
            await protocol.handle(RawData(data))

    async def _send(self, event: RawData | Closed | Updated) -> None:
        if isinstance(event, RawData):
            self._outbox.put(event.data)
            await self._flush()
        elif isinstance(event, Updated):
            self._has_asked = True
            self._reading.deadline = trio.current_time() + KEEP_ALIVE if event.idle else inf
        else:
            await self._flush()
            await self._close()

    async def _flush(self) -> None:
        try:
            await self._outbox.flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._close()
        except trio.TooSlowError:
            log.info("a peer that does not read was cut off", client=self._client)
            await self._close()

    async def _close(self) -> None:
        """Ends the reading; `run` closes the rest."""
        self._reading.cancel(reason="the connection is closed")
        await trio.aclose_forcefully(self._stream)


class _PlainH11Protocol(UpgradableH11Protocol):
    """HTTP/1.1 and nothing else: `Upgrade: h2c` and prior knowledge are ignored, as RFC 9110, section 7.8 allows."""

    async def _check_protocol(self, event: h11.Request) -> None:
        return None

    async def _create_stream(self, request: h11.Request) -> None:
        names = {name for name, _ in request.headers}
        if b"transfer-encoding" in names and b"content-length" in names:
            # RFC 9112, section 6.1: "ought to be handled as an error", and the connection closed: another server on
            # the way may see the body end elsewhere.
            await self._send_error_response(400)
            await self.send(Closed())
        else:
            await super()._create_stream(request)

    async def _send_error_response(self, status_code: int) -> None:
        """Refuses what never became a request, in the words of WIRE section 7."""
        log.warning("what a peer sent is not HTTP/1.1", client=self.client, status=status_code)
        body = errors.as_http(InvalidRequest("the request is malformed, or its headers are too long"))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class _Tasks:
    """What Hypercorn calls a task group: it runs the application in the connection's nursery."""

    def __init__(self, app: App, nursery: trio.Nursery, upgrade: Upgrade) -> None:
        self._app = app
        self._nursery = nursery
        self._upgrade = upgrade

    async def spawn_app(
        self, app: App, config: HypercornConfig, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any], Awaitable[None]]:
        scope["extensions"][UPGRADE] = self._upgrade
        inbox = _Inbox()
        self._nursery.start_soon(self._run, scope, inbox, send)
        return inbox.put

    async def _run(self, scope: Any, inbox: _Inbox, send: Callable[[Any], Awaitable[None]]) -> None:
        try:
            await self._app(scope, inbox.get, send)
        finally:
            # Hypercorn's word for "the application has returned".
            await send(None)

    def spawn(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._nursery.start_soon(function, *arguments)


class _Inbox:
    """What one run of the application receives. It is bounded, but for the last message, which always fits.

    Hypercorn puts that one from the application's own task too: in a full queue it would wait for itself.
    """

    def __init__(self) -> None:
        self._pieces: deque[Any] = deque()
        self._last: Any = None
        self._readers, self._writers = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()

    async def put(self, message: Any) -> None:
        """Takes a message; waits where the application does not keep up. One that nobody will get is dropped."""
        if message["type"] == "http.disconnect":
            self._last = message
            self._writers.unpark_all()
        else:
            while len(self._pieces) >= MAX_PIECES and self._last is None:
                await self._writers.park()
            if self._last is None:
                self._pieces.append(message)
        self._readers.unpark_all()

    async def get(self) -> Any:
        """Returns the next message; the last one again and again."""
        while not self._pieces:
            if self._last is not None:
                return self._last
            await self._readers.park()
        self._writers.unpark()
        return self._pieces.popleft()


def _most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft // 2)


def _hypercorn_config() -> HypercornConfig:
    """Only what `H11Protocol` and its streams read; the timers are ours."""
    config = HypercornConfig()
    config.include_server_header = False
    config.keep_alive_max_requests = 2**63
    config.h11_max_incomplete_size = MAX_HEADERS
    config.accesslog = None
    config.errorlog = None
    return config


_CONFIG: Final = _hypercorn_config()
