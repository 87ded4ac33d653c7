"""The event loop of the load processes: one selector, callbacks, and nothing else.

The machine that measures has few cores, and the load shares them with what is measured. A framework in the load would
cost as much a call as the relay itself; this loop costs some 10 µs an event, the same for every system under test.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol

MAX_RECV: Final = 65536
# The loop wakes at least this often, so that a deadline is noticed although nothing arrives.
_LONGEST_WAIT_SECONDS: Final = 0.1


class Readable(Protocol):
    """What has a file descriptor."""

    def fileno(self) -> int:
        """Returns the descriptor."""
        ...


class Loop:
    """Calls back what is readable, and what is due."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopped = False

    def watch(self, source: Readable, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever `source` is readable."""
        self._selector.register(source.fileno(), selectors.EVENT_READ, callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Calls `callback` once, `seconds` from now."""
        self.call_at(time.perf_counter() + seconds, callback)

    def call_at(self, moment: float, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when `time.perf_counter()` has reached `moment`."""
        heapq.heappush(self._timers, (moment, next(self._order), callback))

    def stop(self) -> None:
        """Ends `run` after the callback that is running."""
        self._stopped = True

    def run(self, *, at_most_seconds: float) -> None:
        """Runs until `stop` is called. Raises `TimeoutError` after `at_most_seconds`."""
        self._stopped = False
        deadline = time.perf_counter() + at_most_seconds
        while not self._stopped:
            for key, _ in self._selector.select(self._wait()):
                key.data()
            self._run_timers()
            if time.perf_counter() > deadline:
                raise TimeoutError(f"the load has not ended within {at_most_seconds:g} s")

    def _wait(self) -> float:
        if not self._timers:
            return _LONGEST_WAIT_SECONDS
        return min(max(self._timers[0][0] - time.perf_counter(), 0), _LONGEST_WAIT_SECONDS)

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.perf_counter():
            heapq.heappop(self._timers)[2]()


def send(sock: socket.socket, data: bytes) -> None:
    """Sends all of `data` on a non-blocking socket.

    Raises `BlockingIOError` when the kernel's buffer cannot take it: what the load has in flight on one socket is a few
    KiB, so a full buffer means that the system under test has stopped reading.
    """
    if sock.send(data) != len(data):
        raise BlockingIOError("the system under test has stopped reading")


def receive(sock: socket.socket) -> bytes:
    """Returns what has arrived on a readable socket. Raises `ConnectionError` when the other side has closed it."""
    data = sock.recv(MAX_RECV)
    if not data:
        raise ConnectionError("the system under test has closed a connection")
    return data
