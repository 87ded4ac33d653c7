"""Bytes between the ports of a sandbox and the daemon's model socket, for as many connections as one loop can hold.

A selector says who is ready, plain code moves the bytes, and nothing but the selector waits. A connection has two ways,
one for each direction. A way reads again only when what it read last is written, so whoever does not read is not read
from. The end of one direction is carried as such (shutdown(2), `SHUT_WR`); a connection is over when both are.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import time

# `typing` takes a fourth of the launcher's time, which every turn of an agent waits for.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

# What a way holds at most; a connection has two, so all of them together hold 8 MiB.
CHUNK_BYTES: Final = 64 * 1024
# As many as the daemon takes of one session (`oubliette.link.model.MAX_CONNECTIONS`). More wait to be accepted.
MAX_CONNECTIONS: Final = 64
# Once the daemon has ended: how long the agent may take to read what it said and to end too, in seconds. To close at
# once what the agent is still sending to is to reset it (tcp(7)), and the answer might be lost.
LINGER_SECONDS: Final = 30.0
# When the system has no descriptor or memory for one connection more: how long nobody asks again, in seconds.
_EXHAUSTED_SECONDS: Final = 0.1
_BACKLOG: Final = 128
_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE
_HEAD_END: Final = b"\r\n\r\n"
_GRANTED: Final = b"HTTP/1.1 200 "


def note(text: str) -> None:
    """Says `text` in one line on stderr, for whoever looks after the sandbox."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in f"oubliette-launch: {text}")
    try:
        os.write(2, line.encode("utf-8", "replace")[: select.PIPE_BUF - 1] + b"\n")
    except OSError:  # nobody is left to read it
        return


class Way:
    """One direction: what was read of `source` and is not yet written to `sink`, where `waiting` goes first."""

    def __init__(self, source: socket.socket, sink: socket.socket, waiting: bytes = b"") -> None:
        self._source = source
        self._sink = sink
        self._waiting = waiting
        self._has_ended = False
        self.is_broken = False
        """the sink takes nothing any more: what comes is thrown away"""
        self.is_over = False
        """the source has ended, and nothing waits"""

    @property
    def interest(self) -> tuple[int, int]:
        """What the selector is to watch for: of the source, of the sink."""
        return (0, _WRITE) if self._waiting else (0 if self._has_ended else _READ, 0)

    def read(self) -> None:
        """Takes what the source has, and passes it on. Raises `OSError` where the source is lost."""
        try:
            data = self._receive()
        except BlockingIOError:
            return
        self._has_ended = not data
        if not self.is_broken:
            self._waiting = self._heard(data)
        self.write()

    def write(self) -> None:
        """Passes on what the sink takes, and behind the last of it that the source has ended."""
        try:
            if self._waiting:
                self._waiting = self._waiting[self._sink.send(self._waiting) :]
            self.is_over = self._has_ended and not self._waiting
            if self.is_over:
                self._sink.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            # What the sink still says may be the reason: the other way goes on.
            self.is_broken, self._waiting = True, b""

    def _receive(self) -> bytes:
        return self._source.recv(CHUNK_BYTES)

    def _heard(self, data: bytes) -> bytes:
        return data


class WayBack(Way):
    """From the daemon. Where we asked for the connection (`asked`), the head that grants it is not the agent's.

    Any other answer is: an agent that speaks HTTP to a base URL reads there why it was refused.
    """

    def __init__(self, model: socket.socket, agent: socket.socket, *, asked: bool) -> None:
        super().__init__(model, agent)
        self._head: bytes | None = b"" if asked else None

    def _receive(self) -> bytes:
        try:
            return super()._receive()
        except ConnectionResetError:  # the daemon closed, as it does, without reading what it had refused (unix(7))
            return b""

    def _heard(self, data: bytes) -> bytes:
        if self._head is None:
            return data
        self._head += data
        if data and _HEAD_END not in self._head and len(self._head) < CHUNK_BYTES:
            return b""
        head, self._head = self._head, None
        return head.partition(_HEAD_END)[2] if head.startswith(_GRANTED) else head


class Connection:
    """One connection of the agent, and the one to the daemon that carries it. `opening` goes to the daemon first."""

    def __init__(
        self, selector: selectors.BaseSelector, agent: socket.socket, model: socket.socket, opening: bytes
    ) -> None:
        self._selector = selector
        self._agent = agent
        self._model = model
        self._out = Way(agent, model, opening)
        self._back = WayBack(model, agent, asked=bool(opening))
        self._watched = {agent: 0, model: 0}
        self.deadline: float | None = None
        """when it is closed whatever is under way, on the clock `time.monotonic`"""
        self.is_closed = False
        self._watch()

    def serve(self, ready: object) -> None:
        """Moves what can be moved now that one end is ready. Raises `OSError` where the agent has gone."""
        to_ready, from_ready = (self._back, self._out) if ready is self._agent else (self._out, self._back)
        if to_ready.interest[1]:
            to_ready.write()
        if from_ready.interest[0]:
            from_ready.read()
        if (self._out.is_over and self._back.is_over) or self._back.is_broken:
            self.close()
        else:
            if self._back.is_over and self.deadline is None:
                self.deadline = time.monotonic() + LINGER_SECONDS
            self._watch()

    def close(self) -> None:
        """Closes both ends."""
        self.is_closed = True
        for end in self._watched:
            self._expect(end, 0)
            end.close()

    def _watch(self) -> None:
        (out_read, out_write), (back_read, back_write) = self._out.interest, self._back.interest
        self._expect(self._agent, out_read | back_write)
        self._expect(self._model, back_read | out_write)

    def _expect(self, end: socket.socket, events: int) -> None:
        known, self._watched[end] = self._watched[end], events
        if known == events:
            return
        if not known:
            self._selector.register(end, events, self)
        elif events:
            self._selector.modify(end, events, self)
        else:
            self._selector.unregister(end)


class Carrier:
    """The open ports of a sandbox and the connections that came through them; each is carried to the socket `path`."""

    def __init__(self, selector: selectors.BaseSelector, path: str) -> None:
        self._selector = selector
        self._path = path
        self._ports: dict[socket.socket, bytes] = {}
        self._connections: set[Connection] = set()

    def open_proxy(self, port: int) -> None:
        """Opens an HTTP proxy on 127.0.0.1. A port that cannot be opened is said on stderr."""
        self._open("127.0.0.1", port, b"")

    def open_forward(self, host: str, port: int) -> None:
        """Opens the same address in the sandbox where `host` is of the loopback; else there is nothing to open."""
        opening = f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
        for address in _loopback_addresses(host):
            self._open(address, port, opening.encode("ascii"))

    def serve(self, key: selectors.SelectorKey) -> None:
        """Does what can be done now that what `key` stands for is ready. An error ends one connection alone."""
        connection = key.data
        if connection is None:
            self._accept(key.fileobj)
        elif not connection.is_closed:
            try:
                connection.serve(key.fileobj)
            except Exception as error:  # whatever it is, it must not end the sandbox
                if not isinstance(error, OSError):
                    note(f"a connection failed: {error!r}")
                connection.close()
            self._forget(connection)

    def patience(self) -> float | None:
        """Closes what is overdue. Returns how long the selector may wait, in seconds, None for as long as it takes."""
        now = time.monotonic()
        deadlines = []
        for connection in [one for one in self._connections if one.deadline is not None]:
            if connection.deadline is not None and connection.deadline > now:
                deadlines.append(connection.deadline - now)
            else:
                connection.close()
                self._forget(connection)
        return min(deadlines, default=None)

    def _open(self, address: str, port: int, opening: bytes) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listening = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            return note(f"{address}:{port} cannot be opened in the sandbox: {os.strerror(error.errno or 0)}")
        listening.setblocking(False)
        self._ports[listening] = opening
        self._selector.register(listening, _READ)

    def _accept(self, listening: object) -> None:
        assert isinstance(listening, socket.socket)
        if len(self._connections) >= MAX_CONNECTIONS:  # another port was ready in the same moment
            return
        try:
            agent, _ = listening.accept()
        except (BlockingIOError, ConnectionError):  # it has gone again
            return
        except OSError:
            return time.sleep(_EXHAUSTED_SECONDS)
        try:
            self._carry(agent, self._ports[listening])
        except OSError:  # it has gone again, or there is no descriptor for the way on
            agent.close()

    def _carry(self, agent: socket.socket, opening: bytes) -> None:
        agent.setblocking(False)
        agent.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(Connection(self._selector, agent, self._reach_daemon(), opening))
        if len(self._connections) == MAX_CONNECTIONS:
            for port in self._ports:
                self._selector.unregister(port)

    def _forget(self, connection: Connection) -> None:
        if not connection.is_closed:
            return
        if len(self._connections) == MAX_CONNECTIONS:
            for port in self._ports:
                self._selector.register(port, _READ)
        self._connections.discard(connection)

    def _reach_daemon(self) -> socket.socket:
        model = socket.socket(socket.AF_UNIX)
        model.setblocking(False)
        try:
            model.connect(self._path)
        except OSError as error:
            model.close()
            return _answering(f"the daemon cannot be reached at {self._path}: {error.strerror or error}")
        return model


def _loopback_addresses(host: str) -> tuple[str, ...]:
    if host.lower().rstrip(".") == "localhost":
        return "127.0.0.1", "::1"
    address = host.removeprefix("[").removesuffix("]")
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            shown = socket.inet_ntop(family, socket.inet_pton(family, address))
        except OSError:
            continue
        return (shown,) if shown == "::1" or shown.startswith("127.") else ()
    return ()


def _answering(reason: str) -> socket.socket:
    """Returns the end of a connection whose other end has answered that there is none, and closed."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    body = f"{reason}\n".encode("utf-8", "replace")
    head = f"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    theirs.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
    theirs.close()
    return ours
