"""Logs: readable in a terminal, JSON lines otherwise, each line with its span, its session and how long it took.

Everything goes to stderr through one handler of the root logger, lines of third parties included. structlog carries a
line's fields to that handler; its formatter does the work, so that nothing is rendered for a level that is off.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from contextlib import suppress
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from itertools import islice
from time import perf_counter
from types import TracebackType
from typing import Final, Self, TextIO, cast

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import EventDict, Processor

from oubliette.errors import OublietteError

# A token as WIRE section 6 writes it. The quantifiers are possessive: a hostile string costs linear time.
_TOKEN: Final = re.compile(r"oub_[A-Za-z0-9]++_[A-Za-z0-9]++")
# A line is for reading: a longer value loses its middle, a longer list its end. Together they bound what a line costs.
MAX_CHARACTERS: Final = 16 * 1024
MAX_NESTED_CHARACTERS: Final = 1024
MAX_ITEMS: Final = 32
MAX_DEPTH: Final = 3

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SPANS: Final = logging.getLogger("oubliette.span")
_current: ContextVar[span | None] = ContextVar("oubliette_span", default=None)


def setup(level: str, format: str, stream: TextIO | None = None) -> None:
    """Sends every log line to `stream`, stderr where it is None (stdout carries "listening on …").

    `level`: `debug`, `info`, `warning` or `error`; other libraries are heard from `info` on, as their debug lines hold
    headers and bodies. `format`: `console`, `json`, or `auto` for console where `stream` is a terminal. Calling it
    again replaces what the last call did.
    """
    stream = sys.stderr if stream is None else stream
    console = stream.isatty() if format == "auto" else format == "console"
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler(stream, _console(stream) if console else [_as_json]))
    root.setLevel(max(_LEVELS[level], logging.INFO))
    logging.getLogger("oubliette").setLevel(_LEVELS[level])


def get(name: str) -> BoundLogger:
    """Returns the logger of that name, a module's `__name__`. Before `setup` it writes warnings to stderr, no more."""
    processors: list[Processor] = [structlog.stdlib.filter_by_level, ProcessorFormatter.wrap_for_formatter]
    logger = structlog.wrap_logger(logging.getLogger(name), processors, wrapper_class=BoundLogger, context_class=dict)
    return cast(BoundLogger, logger.bind())


class span:
    """A piece of work with a name, as `with span("relay.call", session=session_id):`.

    Lines within it, also of the tasks that it starts, carry `span`, the fields of this and the outer spans, and
    `duration_ms`: how long the span has run. Its end is a line of `level`; where an exception ends it, the line carries
    `error` (the kind of an `OublietteError`, else the class) and, for all but cancellation, is a warning at least.
    The exception goes on.
    """

    __slots__ = ("_fields", "_level", "_name", "_outer", "_started", "_token")

    _outer: span | None
    _started: float
    _token: Token[span | None]

    def __init__(self, name: str, /, *, level: str = "debug", **fields: object) -> None:
        self._name = name
        self._level = _LEVELS[level]
        self._fields = fields

    def add(self, **fields: object) -> None:
        """Adds fields that were not known at the start, such as a status."""
        self._fields.update(fields)

    def __enter__(self) -> Self:
        self._outer = _current.get()
        self._token = _current.set(self)
        self._started = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._end_with(error)
            elif _SPANS.isEnabledFor(self._level):
                _span_log.log(self._level, f"{self._name} ended")
        finally:
            _current.reset(self._token)

    def _end_with(self, error: BaseException) -> None:
        failed = _is_failure(error)
        level = max(self._level, logging.WARNING) if failed else self._level
        _span_log.log(level, f"{self._name} {'failed' if failed else 'cancelled'}", error=_kind(error))

    def _line_fields(self) -> dict[str, object]:
        fields = self._all_fields()
        return {"span": self._name, **fields, "duration_ms": round((perf_counter() - self._started) * 1000, 3)}

    def _all_fields(self) -> dict[str, object]:
        return self._fields if self._outer is None else {**self._outer._all_fields(), **self._fields}


_span_log: Final = get("oubliette.span")


def _is_failure(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(Exception) is not None
    return isinstance(error, Exception)


def _kind(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return ", ".join(dict.fromkeys(_kind(inner) for inner in error.exceptions))
    return error.kind if isinstance(error, OublietteError) else type(error).__name__


class _Handler(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO, renderers: list[Processor]) -> None:
        super().__init__(stream)
        format_exception = structlog.processors.format_exc_info
        self.setFormatter(ProcessorFormatter(processors=[format_exception, _describe, _clean, *renderers]))

    def handleError(self, record: logging.LogRecord) -> None:
        # The default prints the record's arguments, unmasked.
        line = {"level": "error", "logger": "oubliette.log", "event": "a line was lost", "of": record.name}
        with suppress(OSError, ValueError):  # nobody reads stderr any more, or it is closed
            self.stream.write(json.dumps(line) + self.terminator)
            self.flush()


def _describe(logger: object, method: str, fields: EventDict) -> EventDict:
    """Puts what every line has before the fields of the span and of the line."""
    record: logging.LogRecord = fields.pop("_record")
    del fields["_from_structlog"]
    within = _current.get()
    head = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": fields.pop("event", ""),
    }
    return {**head, **(within._line_fields() if within else {}), **fields, **head}


def _clean(logger: object, method: str, fields: EventDict) -> EventDict:
    """Makes every value one that JSON has, masked and bounded."""
    return {masked(key): _value(value) for key, value in fields.items()}


def _value(value: object) -> object:
    if not isinstance(value, dict | list | tuple):
        return _leaf(value, MAX_CHARACTERS)
    nested = _nested(value, MAX_DEPTH)
    text = json.dumps(nested)
    return nested if len(text) <= MAX_CHARACTERS else masked(text)


def _nested(value: object, depth: int) -> object:
    if not isinstance(value, dict | list | tuple):
        return _leaf(value, MAX_NESTED_CHARACTERS)
    if not depth:
        return f"<{type(value).__name__} of {len(value)}>"
    if isinstance(value, dict):
        items = islice(value.items(), MAX_ITEMS)
        return {masked(str(key), MAX_NESTED_CHARACTERS): _nested(item, depth - 1) for key, item in items}
    return [_nested(item, depth - 1) for item in value[:MAX_ITEMS]]


def _leaf(value: object, most: int) -> object:
    if isinstance(value, str):
        return masked(value, most)
    if value is None or (isinstance(value, int) and value.bit_length() <= 64):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    try:
        return masked(repr(value), most)
    except Exception:  # a broken repr must not cost the line, or the caller
        return f"<{type(value).__name__}>"


def masked(text: str, most: int = MAX_CHARACTERS) -> str:
    """Returns a text without the tokens in it, and without its middle where it is longer than `most` characters."""
    # Masked first: a cut could part a secret from its prefix.
    text = _TOKEN.sub("oub_…", text)
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}… {len(text) - 2 * half} characters left out …{text[-half:]}"


def _as_json(logger: object, method: str, fields: EventDict) -> str:
    # ASCII alone: no control character, no line separator of Unicode, no lone surrogate gets through.
    return json.dumps(fields)


def _console(stream: TextIO) -> list[Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=stream.isatty() and "NO_COLOR" not in os.environ,
        sort_keys=False,
        timestamp_key="ts",
        # The default prints local variables where rich is installed, and so secrets.
        exception_formatter=structlog.dev.plain_traceback,
    )
    return [_escape, renderer]


class _Escaped:
    """A string with characters that would break a line or colour a terminal, shown as Python writes it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)

    def __str__(self) -> str:
        return repr(self._text)[1:-1]


def _escape(logger: object, method: str, fields: EventDict) -> EventDict:
    trace = fields.pop("exception", None)
    shown: EventDict = {_printable(key): _shown(value) for key, value in fields.items()}
    if trace is not None:
        # Indented, so that no line of a message can pass for a line of the log.
        shown["exception"] = "\n".join(f"    {_printable(line)}" for line in str(trace).split("\n"))
    return shown


def _shown(value: object) -> object:
    return _Escaped(value) if isinstance(value, str) and not value.isprintable() else value


def _printable(text: str) -> str:
    return text if text.isprintable() else str(_Escaped(text))
