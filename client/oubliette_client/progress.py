"""What an agent hears while its call waits.

WIRE section 1: "While a call waits and the agent gave a `progressToken`, the client sends `notifications/progress` at
least every 10 s (what the caller reported, else how long it has waited), so that an agent's own tool timer does not end
a healthy call."
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from oubliette_client import messages, source
from oubliette_client.link import Report
from oubliette_client.streams import Outbox

# Half of what WIRE allows: an agent that is late by some seconds still hears of us in time.
HEARTBEAT_SECONDS: Final = 5.0


class Progress:
    """The progress of one call towards the agent. MCP: "The progress value MUST increase with each notification"."""

    def __init__(self, token: str, outbox: Outbox) -> None:
        self._token = token
        self._outbox = outbox
        self._started = self._last_sent = trio.current_time()
        self._value = 0.0
        self._offset: float | None = None  # what we had counted ourselves when the caller first reported

    def reported(self, report: dict[str, str]) -> None:
        """Passes on what the caller reported: the members of the link's notification, source text."""
        value = source.number(report.get("progress"))
        if value is None:
            return
        if self._offset is None:
            self._offset = self._value
        total = source.number(report.get("total"))
        self._send(value + self._offset, None if total is None else total + self._offset, report.get("message"))

    async def heartbeat(self) -> None:
        """Says that the call still waits whenever the caller was silent for `HEARTBEAT_SECONDS`, until cancelled."""
        while True:
            await trio.sleep_until(self._last_sent + HEARTBEAT_SECONDS)
            await self._outbox.room()
            if trio.current_time() >= self._last_sent + HEARTBEAT_SECONDS:
                self._say_waiting()

    def _say_waiting(self) -> None:
        waited = round(trio.current_time() - self._started)
        value = float(waited) if self._offset is None else self._value
        self._send(value, None, source.quote(f"waiting for the answer for {waited} s"))

    def _send(self, value: float, total: float | None, message: str | None) -> None:
        """Sends `value`, or where that is no increase the smallest one above the last."""
        self._last_sent = trio.current_time()
        value = value if value > self._value else math.nextafter(self._value, math.inf)
        if math.isinf(value):
            return
        self._value = value
        params = {"progressToken": self._token, "progress": json.dumps(value)}
        params |= {"total": json.dumps(total)} if total is not None and math.isfinite(total) else {}
        params |= {"message": message} if message is not None and message.startswith('"') else {}
        self._outbox.put(source.encode(messages.notification("notifications/progress", source.join(params))))


@asynccontextmanager
async def reporting(params: dict[str, str], outbox: Outbox) -> AsyncIterator[Report]:
    """Says for the length of the block that the call with `params` waits, where its agent asked for that.

    Yields what takes a report: the members of the link's notification.
    """
    token = token_of(params)
    if token is None:
        yield lambda report: None
        return
    progress = Progress(token, outbox)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.heartbeat)
        yield progress.reported
        nursery.cancel_scope.cancel()


def token_of(params: dict[str, str]) -> str | None:
    """Returns the `progressToken` in a request's params, source text, None where there is none that MCP allows."""
    token = source.fields(params.get("_meta")).get("progressToken", "")
    return token if token[:1] in tuple('"-0123456789') else None
