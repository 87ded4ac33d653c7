"""The following of one session's events from a terminal, across connections that break."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

from oubliette.cli.client import DaemonClient, UnreachableError
from oubliette.cli.show import visible
from oubliette.protocol.sse import ServerSentEvent

# How often a lost connection is tried again before it is given up, and how long before each try, in seconds: 6.2 s in
# all, which a daemon that restarts needs at most.
TRIES: Final = 5
FIRST_PAUSE: Final = 0.2
OVER: Final = ("completed", "failed", "ended", "interrupted")
_COMMON: Final = ("type", "session_id", "index", "ts")


class Watch:
    """Follows a session from the event after `since_index`. `on_lost` is told why whenever the connection was lost."""

    def __init__(
        self, daemon: DaemonClient, session_id: str, since_index: int, on_lost: Callable[[UnreachableError], None]
    ) -> None:
        self._daemon = daemon
        self._path = f"/sessions/{quote(session_id, safe='')}"
        self._last_id = str(since_index)
        self._on_lost = on_lost
        self._connected = False
        self._ended = False
        self._failures = 0

    def events(self) -> Iterator[ServerSentEvent]:
        """Yields each event once, until the session has ended.

        Raises `RefusedError`, and `UnreachableError` where the first connection fails or `TRIES` in a row.
        """
        while not self._ended:
            try:
                yield from self._follow()
            except UnreachableError as error:
                self._lost(error)

    def _follow(self) -> Iterator[ServerSentEvent]:
        with self._daemon.events(f"{self._path}/events", self._last_id) as events:
            self._connected = True
            for event in events:
                self._failures = 0
                self._last_id = event.id or self._last_id
                self._ended = event.type == "session_ended"
                yield event
        # A stream may end with no `session_ended` after the index that was asked for: there was none left to send.
        self._ended = self._ended or self._daemon.request("GET", self._path)["status"] in OVER
        if not self._ended:
            raise UnreachableError(f"the daemon at {self._daemon.url} has ended the stream")

    def _lost(self, error: UnreachableError) -> None:
        self._failures += 1
        if not self._connected or self._failures > TRIES:
            raise error
        self._on_lost(error)
        time.sleep(FIRST_PAUSE * 2 ** (self._failures - 1))


def line_of(event: dict[str, Any]) -> str:
    """Returns an event as one line: when (UTC), its index, its type, and what it says."""
    when = str(event.get("ts", ""))[11:23]
    line = f"{when:<12} {event.get('index', ''):>5}  {event['type']:<21}  {_said(event)}"
    return visible(line).rstrip()


def _said(event: dict[str, Any]) -> str:
    if event["type"] == "message":
        return f"{event['role']}: {event['text']}"
    return "  ".join(
        f"{key}={_short(value)}" for key, value in event.items() if key not in _COMMON and value is not None
    )


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
