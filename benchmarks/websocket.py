"""As much of WebSocket (RFC 6455) as a load generator needs: the handshake, masked text frames out, messages in. Pure.

It offers no extensions and expects unfragmented text frames, as a server of short messages writes them. The mask is
always the same, which a client of the web may not do (section 10.3): nobody between a benchmark and its own system is
to be protected, and random bytes would cost more than the rest of a frame. The server has to undo it all the same.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from benchmarks.http1 import parse_head

HANDSHAKE: Final = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-protocol": "mcp",
}
# Section 4.2.2, for the key above: it is the example of section 1.3.
_ACCEPTED: Final = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
_TEXT, _CLOSE, _PING, _PONG = 0x81, 0x88, 0x89, 0x8A
_MASKED: Final = 0x80
_KEY: Final = b"\x37\xfa\x21\x3d"
_LENGTH_SIZES: Final = {126: 2, 127: 8}


def text_frame(payload: bytes) -> bytes:
    """Returns the client's frame of a whole message; `payload` is UTF-8."""
    return _frame(_TEXT, payload)


def _frame(first: int, payload: bytes) -> bytes:
    length = len(payload)
    short = length < 126
    head = bytes((first, _MASKED | length)) if short else struct.pack("!BBH", first, _MASKED | 126, length)
    masked = int.from_bytes(payload) ^ _mask(length)
    return head + _KEY + masked.to_bytes(length)


@lru_cache(1024)
def _mask(length: int) -> int:
    return int.from_bytes((_KEY * (length // 4 + 1))[:length])


class FrameReader:
    """Turns the bytes of one connection, from its response's first line on, into messages.

    `reply` is what has to be sent back since it was cleared last: pongs.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.reply = b""
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Takes bytes; returns the messages that they complete. `status` is None until the head is in.

        Raises `ValueError` where the server does not switch protocols, or sends a frame that is not expected here, and
        `ConnectionError` where it closes.
        """
        self._buffer += data
        if self.status is None and not self._take_head():
            return []
        messages: list[bytes] = []
        buffer, at = self._buffer, 0
        while place := _place(buffer, at):
            begin, end = place
            self._take(buffer[at], buffer[begin:end], messages)
            at = end
        self._buffer = buffer[at:]
        return messages

    def _take_head(self) -> bool:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return False
        self.status, headers = parse_head(head)
        if self.status != 101 or headers.get(b"sec-websocket-accept") != _ACCEPTED:
            raise ValueError(f"a WebSocket is expected, not {self._buffer[:500]!r}")
        self._buffer = rest
        return True

    def _take(self, first: int, payload: bytes, messages: list[bytes]) -> None:
        if first == _TEXT:
            messages.append(payload)
        elif first == _PING:
            self.reply += _frame(_PONG, payload)
        elif first == _CLOSE:
            raise ConnectionError(f"the system under test has closed a WebSocket: {payload!r}")
        else:
            raise ValueError(f"no frame that begins with {first:#04x} is expected")


def _place(buffer: bytes, at: int) -> tuple[int, int] | None:
    """Returns where the payload of the frame at `at` begins and ends, None where it is not whole."""
    if len(buffer) < at + 2:
        return None
    length = buffer[at + 1]
    begin = at + 2 + _LENGTH_SIZES.get(length, 0)
    if len(buffer) < begin:
        return None
    if length >= 126:
        length = int.from_bytes(buffer[at + 2 : begin])
    return (begin, begin + length) if len(buffer) >= begin + length else None
