"""Server-sent events, both ways (the HTML standard, section 9.2)."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from typing import Final

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
KEEP_ALIVE: Final = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSentEvent:
    """One event as a reader sees it; `id` is the last id that the stream has set."""

    data: str
    type: str = "message"
    id: str = ""


def encode(data: str, *, type: str | None = None, id: str | None = None) -> bytes:
    """Returns one event's bytes. Line ends in `data` become several `data:` lines, so that one event in is one event out.

    Raises `ValueError` for a line end in `type` or `id`, and for a NUL in `id` (readers ignore such an id).
    """
    for name, value in (("type", type), ("id", id)):
        if value is not None and (_LINE_END.search(value) or "\0" in value):
            raise ValueError(f"an event's {name} must not hold a line end or NUL: {value!r}")
    lines = [] if id is None else [f"id: {id}"]
    lines += [] if type is None else [f"event: {type}"]
    lines += [f"data: {line}" for line in _LINE_END.split(data)]
    return ("\n".join(lines) + "\n\n").encode()


@dataclass(slots=True)
class EventDecoder:
    """Turns a response body into events, however its bytes are cut.

    `max_bytes` bounds one event; `feed` raises `ValueError` beyond it.
    """

    max_bytes: int = 16 * 1024 * 1024
    last_id: str = ""
    _text: str = ""
    _size: int = 0
    _type: str = ""
    _data: list[str] = field(default_factory=list)
    _decode: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Takes bytes of the body; returns the events that they complete."""
        self._text += self._decode.decode(data)
        events = []
        for line in self._take_lines():
            self._size += len(line) + 1
            if not line:
                events += self._dispatch()
            else:
                self._take_field(line)
            self._check_size()
        self._check_size()
        return events

    def _check_size(self) -> None:
        if self._size + len(self._text) > self.max_bytes:
            raise ValueError(f"an event is longer than {self.max_bytes} characters")

    def _take_lines(self) -> list[str]:
        # A trailing \r may be half of \r\n: it waits for the next chunk.
        held = self._text.endswith("\r")
        *lines, rest = _LINE_END.split(self._text[:-1] if held else self._text)
        self._text = rest + "\r" if held else rest
        return lines

    def _take_field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self.last_id = value

    def _dispatch(self) -> list[ServerSentEvent]:
        data, kind = self._data, self._type
        self._data, self._type, self._size = [], "", 0
        if not data:
            return []
        return [ServerSentEvent(data="\n".join(data), type=kind or "message", id=self.last_id)]
