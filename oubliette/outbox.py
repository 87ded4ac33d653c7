"""Bytes on their way to a peer: in the order in which they were put, in as few writes as may be, each in bounded time.

Several tasks may write to one stream: bytes that come while one of them is writing go out together after it. What is
small enough for the kernel's buffer goes there at once, which takes no turn of the scheduler; only the rest waits, with
a deadline that grows with its size.
"""

from __future__ import annotations

import os

import trio


class Outbox:
    """The writing half of `stream`. A write may take `seconds`, and a second for every `rate` bytes of it.

    A write that fails or is cancelled closes the stream: half a message may be out, and nothing that follows it could
    be read.
    """

    def __init__(self, stream: trio.abc.SendStream, *, seconds: float, rate: float) -> None:
        self._stream = stream
        self._seconds = seconds
        self._rate = rate
        self._waiting: list[bytes] = []
        self._is_writing = False
        self._turns = trio.lowlevel.ParkingLot()

    def put(self, data: bytes) -> None:
        """Adds bytes that the next `flush` writes."""
        if data:
            self._waiting.append(data)

    async def flush(self) -> None:
        """Returns when what was put is written. Is a checkpoint only where the peer is not reading.

        Raises `trio.BrokenResourceError` or `ClosedResourceError` where the peer has gone, `TooSlowError` where it
        takes too long; then the stream is closed.
        """
        while self._is_writing:
            await self._turns.park()
        self._is_writing = True
        try:
            while self._waiting:
                data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
                self._waiting.clear()
                await self._write(data)
        except BaseException:
            await trio.aclose_forcefully(self._stream)
            raise
        finally:
            self._is_writing = False
            self._turns.unpark_all()

    async def send(self, data: bytes) -> None:
        """Puts and flushes. Raises as `flush` does."""
        self.put(data)
        await self.flush()

    async def _write(self, data: bytes) -> None:
        rest = self._write_at_once(data)
        if rest:
            with trio.fail_after(self._seconds + len(rest) / self._rate):
                await self._stream.send_all(rest)

    def _write_at_once(self, data: bytes) -> bytes | memoryview:
        """Returns what the kernel's buffer did not take, all of it for streams that are no sockets."""
        if not isinstance(self._stream, trio.SocketStream):
            return data
        try:
            written = os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            return data
        except OSError as error:
            raise trio.BrokenResourceError from error
        return memoryview(data)[written:] if written < len(data) else b""
