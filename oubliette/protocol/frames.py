"""WebSocket frames as a server of text messages reads and writes them (RFC 6455, section 5), without extensions.

Feed bytes with `receive_data`, take what each frame says with `next_event`: a whole message, a `Ping`, a `Close`,
`NOTHING_YET`, or `NEED_DATA`. What breaks the protocol raises `FrameError` as soon as a frame's head shows it, so that
a reader never holds more than one message of the largest size and one chunk.

It does what wsproto does, and the tests hold it against that. A message of 300 bytes in and one out take a fifth of the
time: 6 µs instead of 30 µs on one machine.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final

from msgspec import Struct

# RFC 6455, section 7.4.1.
NORMAL: Final = 1000
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED_DATA: Final = 1003
INVALID_DATA: Final = 1007
TOO_LONG: Final = 1009

# The first byte of a frame, section 5.2: "FIN" and the opcode, with the reserved bits 0.
_FIN: Final = 0x80
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_TEXT_FRAME: Final = _FIN | _TEXT
_CLOSE_FRAME: Final = _FIN | _CLOSE
_PING_FRAME: Final = _FIN | _PING
_PONG_FRAME: Final = _FIN | _PONG
# "All control frames MUST have a payload length of 125 bytes or less and MUST NOT be fragmented."
_CONTROL_FRAMES: Final = frozenset({_CLOSE_FRAME, _PING_FRAME, _PONG_FRAME})
# What may begin a frame between messages, and within a message in fragments. All else is an error.
_BETWEEN: Final = _CONTROL_FRAMES | {_TEXT_FRAME, _TEXT}
_WITHIN: Final = _CONTROL_FRAMES | {_FIN | _CONTINUATION, _CONTINUATION}
# The second byte: "MASK" and the length, or how many bytes behind it have the length.
_MASK: Final = 0x80
_SHORT: Final = 125
_LENGTH_SIZES: Final = {126: 2, 127: 8}
_KEY_SIZE: Final = 4
_FOURTHS: Final = tuple(slice(at, None, _KEY_SIZE) for at in range(_KEY_SIZE))
# For each byte of a key, what it makes of every byte; all 256 at once, since one by one takes 3 ms.
_ALL_BYTES: Final = int.from_bytes(range(256))
_ONES: Final = int.from_bytes(b"\1" * 256)
_XOR_TABLES: Final = tuple((_ALL_BYTES ^ _ONES * byte).to_bytes(256) for byte in range(256))


class Signal(Enum):
    """What `next_event` says when there is nothing to act on."""

    NEED_DATA = "need data"
    NOTHING_YET = "nothing yet"


# There is no whole frame left.
NEED_DATA: Final = Signal.NEED_DATA
# There was one, and it was a pong or a fragment.
NOTHING_YET: Final = Signal.NOTHING_YET


class Ping(Struct, frozen=True):
    """A question whether we are there; a pong with its payload answers it."""

    payload: bytes


class Close(Struct, frozen=True):
    """The peer's last frame. Without a code (`None`) it says no reason either."""

    code: int | None
    reason: str


Event = bytes | Ping | Close | Signal


class FrameError(Exception):
    """Peer bytes that end the connection: the code to close it with, and why in words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class FrameReader:
    """Splits a client's byte stream into frames, and puts their payloads together as messages.

    A message may have `max_message` bytes. Behind a `Close` or a `FrameError` there is nothing more to read.
    """

    def __init__(self, max_message: int) -> None:
        self._max_message = max_message
        self._buffer = bytearray()
        self._start = 0  # where the frame under way begins
        self._allowed = _BETWEEN
        self._fragments = bytearray()

    def receive_data(self, data: bytes) -> None:
        """Takes what the transport delivered."""
        del self._buffer[: self._start]
        self._start = 0
        self._buffer += data

    def next_event(self) -> Event:
        """Reads one frame. Raises `FrameError` where it is none, or none that is taken here."""
        buffer, start = self._buffer, self._start
        if len(buffer) < start + 2:
            return NEED_DATA
        first, second = buffer[start], buffer[start + 1]
        if first not in self._allowed or second < _MASK:
            raise _refusal(first, second)
        length, key = second - _MASK, start + 2
        if length > _SHORT:
            key += _LENGTH_SIZES[length]
            if len(buffer) < key:
                return NEED_DATA
            length = _checked_length(first, buffer[start + 2 : key])
        if length + len(self._fragments) > self._max_message and first not in _CONTROL_FRAMES:
            raise FrameError(TOO_LONG, f"a message may have {self._max_message} bytes")
        return self._payload(first, key + _KEY_SIZE, length)

    def _payload(self, first: int, begin: int, length: int) -> Event:
        buffer, end = self._buffer, begin + length
        if len(buffer) < end:
            return NEED_DATA
        payload = buffer[begin:end]
        _unmask(payload, buffer[begin - _KEY_SIZE : begin])
        if end == len(buffer):
            # A long message's memory goes back at once.
            buffer.clear()
            end = 0
        self._start = end
        return _checked_text(payload) if first == _TEXT_FRAME else self._interpret(first, payload)

    def _interpret(self, first: int, payload: bytearray) -> Event:
        if first == _PING_FRAME:
            return Ping(bytes(payload))
        if first == _PONG_FRAME:
            return NOTHING_YET
        if first == _CLOSE_FRAME:
            return _checked_close(bytes(payload))
        return self._add_fragment(first, payload)

    def _add_fragment(self, first: int, payload: bytearray) -> Event:
        self._fragments += payload
        if not first & _FIN:
            self._allowed = _WITHIN
            return NOTHING_YET
        message, self._fragments, self._allowed = self._fragments, bytearray(), _BETWEEN
        return _checked_text(message)


def text_frame(payload: bytes) -> bytes:
    """Returns the frame of a whole message; `payload` is UTF-8."""
    return _frame(_TEXT_FRAME, payload)


def ping_frame(payload: bytes = b"") -> bytes:
    """Returns a ping; `payload` has at most 125 bytes."""
    return _frame(_PING_FRAME, payload)


def pong_frame(payload: bytes) -> bytes:
    """Returns the answer to a ping, whose `payload` it has."""
    return _frame(_PONG_FRAME, payload)


def close_frame(code: int | None, reason: str = "") -> bytes:
    """Returns the last frame. `reason` is cut to the 123 bytes that there are for it; without a code there is none."""
    if code is None:
        return _frame(_CLOSE_FRAME, b"")
    words = reason.encode()[: _SHORT - 2].decode(errors="ignore")
    return _frame(_CLOSE_FRAME, struct.pack("!H", code) + words.encode())


def _frame(first: int, payload: bytes) -> bytes:
    length = len(payload)
    if length <= _SHORT:
        return bytes((first, length)) + payload
    if length < 1 << 16:
        return struct.pack("!BBH", first, 126, length) + payload
    return struct.pack("!BBQ", first, 127, length) + payload


def _refusal(first: int, second: int) -> FrameError:
    if second < _MASK:
        return FrameError(PROTOCOL_ERROR, "a client's frames are masked")
    if first & ~_FIN == _BINARY:
        return FrameError(UNSUPPORTED_DATA, "messages are text frames")
    return FrameError(PROTOCOL_ERROR, f"no frame begins with {first:#04x} here")


def _checked_length(first: int, extended: bytearray) -> int:
    length = int.from_bytes(extended)
    if first in _CONTROL_FRAMES:
        raise FrameError(PROTOCOL_ERROR, "a control frame has at most 125 bytes")
    # "the minimal number of bytes MUST be used to encode the length"
    if length <= (_SHORT if len(extended) == 2 else 0xFFFF) or length >> 63:
        raise FrameError(PROTOCOL_ERROR, "a length is spelt in another way than it must be")
    return length


def _unmask(payload: bytearray, key: bytearray) -> None:
    """Section 5.3, for every fourth byte at once."""
    for fourth, byte in zip(_FOURTHS, key, strict=True):
        payload[fourth] = payload[fourth].translate(_XOR_TABLES[byte])


def _checked_text(payload: bytearray) -> bytes:
    """Returns the message. Most are ASCII, which costs less to find out than to decode them."""
    message = bytes(payload)
    if not message.isascii():
        _decode(message)
    return message


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FrameError(INVALID_DATA, "text is UTF-8") from error


def _checked_close(payload: bytes) -> Close:
    if not payload:
        return Close(None, "")
    code = int.from_bytes(payload[:2])
    if len(payload) == 1 or not _may_be_sent(code):
        raise FrameError(PROTOCOL_ERROR, "a close frame has a code that can be sent, or nothing")
    return Close(code, _decode(payload[2:]))


def _may_be_sent(code: int) -> bool:
    """Section 7.4: the protocol's own codes but for those that are never on the wire, libraries' and applications'."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999
