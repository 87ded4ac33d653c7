"""`subscriptions/listen` of MCP 2026-07-28: a request that stays open while its agent is told that the tools changed.

Each is a task among the agent's requests (`requests`): the agent's cancellation ends it without an answer, the end of
stdin with one, which MCP calls graceful closure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import trio

from oubliette_client import era, messages, source
from oubliette_client.catalog import Catalog
from oubliette_client.era import Params, Request
from oubliette_client.messages import INVALID_PARAMS, LIMIT_EXCEEDED, NULL, RequestError, object_untrusted
from oubliette_client.streams import Outbox

# An agent needs one; each costs a line for every change, ten times a second at most (`catalog.COALESCE_SECONDS`).
MAX_SUBSCRIPTIONS: Final = 32


class Subscriptions:
    """The agent's open subscriptions."""

    def __init__(self, catalog: Catalog, outbox: Outbox) -> None:
        self._catalog = catalog
        self._outbox = outbox
        self._open = 0
        self._end = trio.Event()

    async def listen(self, request: Request) -> str:
        """Acknowledges a subscription and keeps it until `end`. Returns its result; raises `RequestError`."""
        wanted = _wants_tools(request.params)
        meta = f'"_meta":{{"{era.SUBSCRIPTION_ID}":{request.id}}}'
        with self._place():
            # What it is told of is a change: the first configs are none.
            await self._catalog.ready()
            # MCP: "The server MUST send `notifications/subscriptions/acknowledged` as the first message".
            self._acknowledge(meta, wanted)
            with self._told_of_tools(meta) if wanted else nullcontext():
                await self._end.wait()
        return era.completed(f"{{{meta}}}")

    def end(self) -> None:
        """Ends every subscription, with its result."""
        self._end.set()

    @contextmanager
    def _place(self) -> Iterator[None]:
        if self._open >= MAX_SUBSCRIPTIONS:
            raise RequestError(LIMIT_EXCEEDED, f"there are {MAX_SUBSCRIPTIONS} subscriptions already, and no more")
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def _acknowledge(self, meta: str, tools: bool) -> None:
        granted = '{"toolsListChanged":true}' if tools else "{}"
        params = f'{{{meta},"notifications":{granted}}}'
        self._outbox.put(source.encode(messages.notification("notifications/subscriptions/acknowledged", params)))

    def _told_of_tools(self, meta: str) -> AbstractContextManager[None]:
        line = messages.notification("notifications/tools/list_changed", f"{{{meta}}}")
        return self._catalog.listening(source.encode(line))


def _wants_tools(params: Params) -> bool:
    """Whether the agent asks for the one kind of notification that there is here. Raises `RequestError` (-32602)."""
    wanted = object_untrusted(params.get("notifications", NULL), "notifications").get("toolsListChanged", NULL)
    if wanted not in ("true", "false", NULL):
        raise RequestError(INVALID_PARAMS, "notifications.toolsListChanged must be a boolean")
    return wanted == "true"
