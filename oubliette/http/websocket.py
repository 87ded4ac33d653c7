"""One WebSocket connection of text messages, over the stream of the request that asked for it (RFC 6455).

Between a message and whoever handles it there is no other task and no queue: `receive` reads the stream itself and
returns the messages of one read together, `put` and `flush` write what is ready in one write. What can be said of the
connection's end is said by `receive` alone: behind it `put` and `flush` do nothing.

It ends in four ways. The peer closes: its close frame is answered. We do: `close` says so and waits for the peer's.
The peer breaks the protocol: it is told the code, and what it still sends is dropped for a while, so that it sees that.
It goes, or neither reads nor answers any more: the stream is closed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from contextlib import suppress
from enum import Enum
from math import inf
from typing import ClassVar, Final

import trio

from oubliette.errors import InvalidRequest
from oubliette.http.request import Request
from oubliette.http.server import WRITE_RATE, WRITE_TIMEOUT
from oubliette.log import get as get_logger
from oubliette.outbox import Outbox
from oubliette.protocol.frames import (
    NEED_DATA,
    NORMAL,
    Close,
    FrameError,
    FrameReader,
    Ping,
    Signal,
    close_frame,
    ping_frame,
    pong_frame,
    text_frame,
)
from oubliette.receiving import receive as receive_bytes

# A ping after so much silence of the peer's, in seconds, and the end after so much more: half-open peers.
KEEP_ALIVE: Final = 15.0
PONG_TIMEOUT: Final = 15.0
# How long a close waits for the peer's, in seconds.
CLOSE_TIMEOUT: Final = 2.0
_CHUNK: Final = 64 * 1024
# Frames looked at before other tasks have their turn: a chunk may have ten thousand, that take 20 ms.
_BURST: Final = 256
# What says that the peer has gone, or that the stream was closed by another task.
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
# Section 1.3.
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

log = get_logger(__name__)


class UpgradeRequired(InvalidRequest):
    """A version of WebSocket that is not spoken here; the door's answer names the one that is."""

    http_status: ClassVar[int] = 426


class _State(Enum):
    """How far a connection has come. Only an open one takes messages, either way."""

    OPEN = "open"
    CLOSING = "our close frame is out, the peer's is to come"
    FAILED = "our close frame is out, what the peer sends cannot be read"
    ENDED = "nothing comes any more"


_TAKES_FRAMES: Final = frozenset({_State.OPEN, _State.CLOSING})


class WebSocket:
    """A connection whose messages have `max_message` bytes at the most; `received` came behind the handshake.

    One task may `receive`, any may `put`, `flush` and `close`, one runs `keep_alive`. A task that is cancelled in a
    `flush` that waits for the peer ends the connection: half a message may be out.
    """

    def __init__(self, stream: trio.abc.Stream, received: bytes, max_message: int) -> None:
        self._stream = stream
        self._outbox = Outbox(stream, seconds=WRITE_TIMEOUT, rate=WRITE_RATE)
        self._frames = FrameReader(max_message)
        self._frames.receive_data(received)
        self._has_more = bool(received)  # bytes that were read and not looked at
        self._reply = b""  # the frame that answers what was read last
        self._state = _State.OPEN
        self._ended = trio.Event()
        self._is_reading = False  # one task at a time may
        self._waiting_since = inf  # when the read that waits began

    @classmethod
    async def accept(cls, request: Request, *, subprotocol: str, max_message: int) -> WebSocket:
        """Answers the handshake of `request`, and takes its connection over for `subprotocol`.

        `max_message` is in bytes. Raises `UpgradeRequired` for another version of the protocol and `InvalidRequest` for
        what is no handshake, or not for this subprotocol; then nothing is answered yet.
        """
        answer = (
            (b"upgrade", b"websocket"),
            (b"connection", b"upgrade"),
            (b"sec-websocket-accept", _accept_value(_checked_key(request, subprotocol))),
            (b"sec-websocket-protocol", subprotocol.encode()),
        )
        stream, received = await request.upgrade(answer)
        return cls(stream, received, max_message)

    async def receive(self) -> list[bytes]:
        """Returns the messages of one read, UTF-8 and each whole; waits for at least one.

        Returns none once the connection is over. Answers pings, the peer's close frame, and what breaks the protocol.
        """
        if self._state is _State.OPEN:
            self._is_reading = True
            try:
                while self._state in _TAKES_FRAMES:
                    if messages := await self._step():
                        return messages
            finally:
                self._is_reading = False
        if self._state is not _State.CLOSING:
            # Section 7.1.1: "the server MUST close the TCP connection immediately".
            await self.close()
        return []

    def put(self, message: bytes) -> None:
        """Adds a message, in UTF-8, to what the next `flush` writes."""
        if self._state is _State.OPEN:
            self._outbox.put(text_frame(message))

    async def flush(self) -> None:
        """Returns when what was put is written, or the peer is cut off: a write has `WRITE_TIMEOUT` and its size's."""
        try:
            await self._outbox.flush()
        except _GONE:
            self._end()
        except trio.TooSlowError:
            log.info("a peer that does not read was cut off")
            self._end()

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Closes the connection, where it is not over with `code` and `reason` (123 bytes), and the stream.

        Waits for the peer's close frame, `CLOSE_TIMEOUT` at the most. Cancelled, it says what it can without waiting.
        """
        try:
            if self._state is _State.OPEN:
                self._state = _State.CLOSING
                self._outbox.put(close_frame(code, reason))
                await self.flush()
            with trio.move_on_after(CLOSE_TIMEOUT):
                await self._hear_out()
        finally:
            self._end()
            await trio.aclose_forcefully(self._stream)

    async def keep_alive(self) -> None:
        """Asks a silent peer whether it is there, and ends the connection where it is not. Runs as long as that."""
        while self._state is _State.OPEN:
            now = trio.current_time()
            # On a whole second, as with SSE: thousands of idle connections wake the process together.
            due = (min(self._waiting_since, now) + KEEP_ALIVE) // 1
            if now < due:
                await trio.sleep_until(due)
            else:
                await self._probe()

    async def _probe(self) -> None:
        asked = trio.current_time()
        self._outbox.put(ping_frame())
        await self.flush()
        await trio.sleep_until(asked + PONG_TIMEOUT)
        # Where no read has waited since, an answer may be in the kernel.
        if self._waiting_since <= asked:
            log.info("a peer that does not answer was cut off")
            self._end()
            await trio.aclose_forcefully(self._stream)

    async def _step(self) -> list[bytes]:
        """Reads once and answers what is not a message; returns the messages, of a connection that is open."""
        await self._fill()
        was_open = self._state is _State.OPEN
        messages = self._take()
        if not was_open:
            return []
        if self._reply:
            self._outbox.put(self._reply)
            self._reply = b""
            await self.flush()
        return messages

    async def _fill(self) -> None:
        """Gets bytes, unless some are left. Is a checkpoint."""
        if self._has_more:
            return await trio.lowlevel.checkpoint()
        self._waiting_since = trio.current_time()
        try:
            data = await receive_bytes(self._stream, _CHUNK)
        except _GONE:
            data = b""
        finally:
            self._waiting_since = inf
        if data:
            self._frames.receive_data(data)
        else:
            self._end()

    def _take(self) -> list[bytes]:
        """Looks at the frames that are there, up to `_BURST` of them; returns the messages."""
        messages: list[bytes] = []
        try:
            for _ in range(_BURST):
                event = self._frames.next_event()
                if isinstance(event, bytes):
                    messages.append(event)
                elif event is NEED_DATA or self._heard(event):
                    self._has_more = False
                    return messages
            self._has_more = True
        except FrameError as error:
            self._fail(error)
        return messages

    def _heard(self, event: Ping | Close | Signal) -> bool:
        """Takes what is not a message; returns whether it was the last."""
        if isinstance(event, Ping):
            # Section 5.5.3: it "MAY elect to send a Pong frame for only the most recently processed Ping frame".
            self._reply = pong_frame(event.payload)
        elif isinstance(event, Close):
            self._reply = close_frame(event.code)
            self._end()
        return self._state is _State.ENDED

    def _fail(self, error: FrameError) -> None:
        log.info("a peer broke the WebSocket protocol", code=error.code, reason=str(error))
        self._reply = close_frame(error.code, str(error))
        if self._state is _State.OPEN:
            self._state = _State.FAILED
        else:
            self._end()

    def _end(self) -> None:
        self._state = _State.ENDED
        self._ended.set()

    async def _hear_out(self) -> None:
        """Returns when the peer has said that it closes too, or has gone."""
        if self._is_reading:
            return await self._ended.wait()
        self._is_reading = True
        if self._state is _State.FAILED:
            await self._drain()
        while self._state is _State.CLOSING:
            await self._step()

    async def _drain(self) -> None:
        """Drops what still comes: a stream that is closed on unread bytes would lose the close frame."""
        with suppress(*_GONE):
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
            while await receive_bytes(self._stream, _CHUNK):
                pass


def _checked_key(request: Request, subprotocol: str) -> bytes:
    """Section 4.2.1; returns the handshake's key."""
    if not request.wants_websocket:
        raise InvalidRequest("this is no WebSocket handshake: it takes GET, Upgrade: websocket, Connection: upgrade")
    if request.header(b"sec-websocket-version") != "13":
        raise UpgradeRequired("Sec-WebSocket-Version must be 13")
    offered = [name.strip() for name in request.header(b"sec-websocket-protocol").split(",")]
    if subprotocol not in offered:
        raise InvalidRequest(f"Sec-WebSocket-Protocol must offer {subprotocol!r}")
    key = request.headers.get(b"sec-websocket-key", b"").strip()
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        is_key = False
    if not is_key:
        raise InvalidRequest("Sec-WebSocket-Key must be 16 bytes in Base64")
    return key


def _accept_value(key: bytes) -> bytes:
    """Section 4.2.2: proves that the handshake was read as one. SHA-1 is what the clause says."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
