"""Newline framing that stays bounded (WIRE section 1, "Framing").

Feed bytes with `receive_data`, take events with `next_event`: a `Line`, `OVERSIZED`, `NEED_DATA` or `CLOSED`.
`OVERSIZED` is told once for a line that grew beyond the bound, as soon as it did; the rest of that line is
discarded while it arrives, so that a reader never holds more than the bound plus one chunk.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

# WIRE section 1: "daemon and client accept 64 KiB more from each other for the envelope".
ENVELOPE_ALLOWANCE: Final = 64 * 1024


class Signal(Enum):
    """What `next_event` says when there is no line."""

    NEED_DATA = "need data"
    OVERSIZED = "oversized"
    CLOSED = "closed"


NEED_DATA: Final = Signal.NEED_DATA
OVERSIZED: Final = Signal.OVERSIZED
CLOSED: Final = Signal.CLOSED


class LineReader:
    """Splits a byte stream into lines of at most `max_bytes` bytes, their newline not counted.

    Blank lines are skipped, unless `keeps_blank` says that they are part of a text.
    """

    def __init__(self, max_bytes: int, *, keeps_blank: bool = False) -> None:
        self._max_bytes = max_bytes
        self._keeps_blank = keeps_blank
        self._buffer = bytearray()
        self._start = 0  # where the line under way begins
        self._scanned = 0  # no newline before this position
        self._discarding = False
        self._eof = False

    def receive_data(self, data: bytes) -> None:
        """Takes what the transport delivered; `b""` is the end of the stream."""
        if not data:
            self._eof = True
            return
        del self._buffer[: self._start]
        self._scanned -= self._start
        self._start = 0
        self._buffer += data

    def next_event(self) -> bytes | Signal:
        """Returns the next line without its newline, or why there is none."""
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end < 0:
                return self._unfinished()
            line = bytes(self._buffer[self._start : end])
            self._start = self._scanned = end + 1
            if self._discarding:
                self._discarding = False
            elif len(line) > self._max_bytes:
                return OVERSIZED
            elif self._keeps_blank or line.strip():
                return line

    def _unfinished(self) -> bytes | Signal:
        if self._eof:
            return self._last_line()
        self._scanned = len(self._buffer)
        if self._discarding:
            self._drop()
        elif len(self._buffer) - self._start > self._max_bytes:
            self._drop()
            self._discarding = True
            return OVERSIZED
        return NEED_DATA

    def _last_line(self) -> bytes | Signal:
        """A last line without its newline still counts: programs forget it."""
        line = b"" if self._discarding else bytes(self._buffer[self._start :])
        self._drop()
        if len(line) > self._max_bytes:
            return OVERSIZED
        return line if line.strip() else CLOSED

    def _drop(self) -> None:
        self._buffer.clear()
        self._start = self._scanned = 0
