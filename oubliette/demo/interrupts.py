"""Signals that would end the demo, as exceptions, and never in the middle of starting or stopping a process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


class TookTooLongError(Exception):
    """The time is over."""


class Interrupts:
    """Takes over the signals while it is entered.

    One that comes within `let_through` raises there: `KeyboardInterrupt` for SIGINT, `SystemExit` for SIGTERM and
    SIGHUP, and `TookTooLongError` after `limit_seconds`. One that came before raises at its beginning, and one that
    comes after changes nothing: the end is under way.
    """

    def __init__(self, limit_seconds: int) -> None:
        self._limit_seconds = limit_seconds
        self._open = False
        self._waiting: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        signal.alarm(self._limit_seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.alarm(0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def let_through(self) -> Iterator[None]:
        self._open = True
        try:
            if self._waiting is not None:
                raise self._exception(self._waiting)
            yield
        finally:
            self._open = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._open:
            raise self._exception(signal.Signals(number))
        self._waiting = signal.Signals(number)

    def _exception(self, number: signal.Signals) -> BaseException:
        if number == signal.SIGALRM:
            return TookTooLongError(f"the demo did not end within {self._limit_seconds} s")
        # What a shell reports of a program that a signal has ended.
        return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
