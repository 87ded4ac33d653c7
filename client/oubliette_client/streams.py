"""Lines in and lines out of a byte stream, both bounded.

Whoever has something to say puts it into an `Outbox` without waiting; one task writes. Whoever makes others speak, by
reading what asks for an answer, waits for `room` before the next line. So decisions are plain code, no line is ever
torn, and a peer that stops reading stops being read.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from oubliette.protocol.lines import CLOSED, ENVELOPE_ALLOWANCE, NEED_DATA, LineReader, Signal

# WIRE section 1: `relay.max_message_bytes`, "default 4 MiB", and what each of us allows the other for the envelope.
MAX_LINE_BYTES: Final = 4 * 1024 * 1024 + ENVELOPE_ALLOWANCE
# What a pipe holds: one read, and one write of many small lines.
_CHUNK_BYTES: Final = 64 * 1024


class LineStream:
    """The lines of a byte stream, each of at most `MAX_LINE_BYTES`."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._reader = LineReader(MAX_LINE_BYTES)

    async def receive(self) -> bytes | Signal:
        """Returns the next line, `OVERSIZED` or `CLOSED`. A connection that breaks is one that was closed."""
        while (event := self._reader.next_event()) is NEED_DATA:
            try:
                self._reader.receive_data(bytes(await self._stream.receive_some(_CHUNK_BYTES)))
            except trio.BrokenResourceError:
                return CLOSED
        return event


class Outbox:
    """Lines that wait for one stream to take them: `full` beyond `max_bytes`.

    The bound is kept by those who ask for `room`, so it is exceeded by the few lines that are decided between two asks.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._held_bytes = 0  # waiting, and being written
        self._closed = False
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def full(self) -> bool:
        """Says whether more waits than should."""
        return self._held_bytes > self._max_bytes

    def put(self, line: bytes) -> None:
        """Takes one line, its newline included. After the stream broke it is dropped: nobody is there to read it."""
        if not self._closed:
            self._lines.append(line)
            self._held_bytes += len(line)
            self._changed.unpark_all()

    async def room(self) -> None:
        """Waits while the outbox is full. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while self.full:
            await self._changed.park()

    async def drained(self) -> None:
        """Waits until everything is written, or the stream broke."""
        while self._held_bytes:
            await self._changed.park()

    async def run(self, stream: trio.abc.SendStream) -> None:
        """Writes what is put until `stream` breaks; returns then. For one task alone."""
        try:
            while True:
                await self._write_all(stream)
                await self._changed.park()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            self._close()

    async def _write_all(self, stream: trio.abc.SendStream) -> None:
        while self._lines:
            chunk = self._take()
            await stream.send_all(chunk)
            self._held_bytes -= len(chunk)
            self._changed.unpark_all()

    def _take(self) -> bytes:
        chunk = [self._lines.popleft()]
        size = len(chunk[0])
        while self._lines and size + len(self._lines[0]) <= _CHUNK_BYTES:
            size += len(self._lines[0])
            chunk.append(self._lines.popleft())
        return b"".join(chunk)

    def _close(self) -> None:
        self._closed = True
        self._lines.clear()
        self._held_bytes = 0
        self._changed.unpark_all()
