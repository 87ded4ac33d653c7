"""Server-sent events, both ways (the HTML standard, section 9.2)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

KEEP_ALIVE: Final = b": keep-alive\n\n"
_NOT_IN_A_FIELD: Final = re.compile(r"[\r\n\0]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSentEvent:
    """One event as a reader sees it; `id` is the last id that the stream has set."""

    data: str
    type: str = "message"
    id: str = ""


def encode(data: str, *, type: str | None = None, id: str | None = None) -> bytes:
    """Returns one event's bytes. Line ends in `data` become several `data:` lines: one event in is one event out.

    Raises `ValueError` for a line end or NUL in `type` or `id` (readers ignore an id with NUL), and for half a
    surrogate pair, which UTF-8 cannot say.
    """
    for name, value in (("type", type), ("id", id)):
        if value is not None and _NOT_IN_A_FIELD.search(value):
            raise ValueError(f"an event's {name} must not hold a line end or NUL: {value!r}")
    lines = [] if id is None else [f"id: {id}"]
    lines += [] if type is None else [f"event: {type}"]
    lines += [f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


@dataclass(slots=True)
class EventDecoder:
    """Turns a response body into events, however its bytes are cut.

    `max_bytes` bounds what is held of one event; `feed` raises `ValueError` beyond it, and the stream is then lost.
    `last_id` is what to send as `Last-Event-ID` on reconnecting: the id as of the last event that was complete.
    """

    max_bytes: int = 16 * 1024 * 1024
    last_id: str = ""
    _line: bytearray = field(default_factory=bytearray, init=False)
    _data: bytearray = field(default_factory=bytearray, init=False)
    _type: str = field(default="", init=False)
    _id: str = field(default="", init=False)
    _at_start: bool = field(default=True, init=False)
    _after_return: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._id = self.last_id

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Takes bytes of the body; returns the events that they complete."""
        events = []
        for line in self._take_lines(data):
            if line:
                self._take_field(line)
            else:
                events += self._dispatch()
        return events

    def _take_lines(self, data: bytes) -> Iterator[bytes]:
        # A \r ends its line at once, so that no event waits for the byte after it; a \n that follows belongs to it.
        rest = data.removeprefix(b"\n") if self._after_return else data
        self._after_return = data.endswith(b"\r") if data else self._after_return
        for piece in rest.splitlines(keepends=True):  # of bytes: at \n, \r and \r\n alone
            line = piece.rstrip(b"\r\n")
            self._line += line
            if len(self._line) + len(self._data) > self.max_bytes:
                raise ValueError(f"an event is longer than {self.max_bytes} bytes")
            if len(line) < len(piece):
                yield self._end_line()

    def _end_line(self) -> bytes:
        line = bytes(self._line)
        self._line.clear()
        if self._at_start:
            self._at_start = False
            # The HTML standard decodes the stream with "UTF-8 decode", which takes one byte order mark away.
            return line.removeprefix(codecs.BOM_UTF8)
        return line

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value + b"\n"
        elif name == b"event":
            self._type = _text(value)
        elif name == b"id" and b"\0" not in value:
            self._id = _text(value)

    def _dispatch(self) -> list[ServerSentEvent]:
        data, kind = bytes(self._data), self._type or "message"
        self._data.clear()
        self._type = ""
        self.last_id = self._id
        # The HTML standard: "If the data buffer is an empty string", the event is not dispatched.
        return [ServerSentEvent(data=_text(data[:-1]), type=kind, id=self.last_id)] if data else []


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
