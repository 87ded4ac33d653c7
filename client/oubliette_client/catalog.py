"""What the agent knows of the tools: when there is a first list to show, and when to say that it changed.

WIRE section 1: "Its first `tools/list` waits until `caller_tools_config`, `pack_tools_config` and … are in, 2 s at
most; `tools/list_changed` follows whenever the set changes."
"""

from __future__ import annotations

from typing import Final

import trio

from oubliette.protocol.revisions import Revision
from oubliette_client import messages, source
from oubliette_client.stdio import note
from oubliette_client.streams import Outbox
from oubliette_client.tools import Tool, ToolSet

FIRST_LIST_SECONDS: Final = 2.0
# HAZARDS F31: 100 updates a second are one notification in each of these.
COALESCE_SECONDS: Final = 0.1
_CHANGED: Final = source.encode(messages.notification("notifications/tools/list_changed", "{}"))


class Catalog:
    """The set of tools, and what the agent was last told of it."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._tools = ToolSet()
        self._complete = trio.Event()
        self._first_list_until: float | None = None
        self._told: dict[str, Tool] | None = None  # None: neither listed nor complete yet
        self._initialized = False
        self._news = trio.Event()

    def configure(self, kind: str, params: str) -> None:
        """Takes a notification of the link that says what tools there are; `params` is source text."""
        for problem in self._tools.take(kind, params):
            note(problem)
        if self._tools.complete and not self._complete.is_set():
            self._complete.set()
            self._told = self._told if self._told is not None else self._tools.by_name
        self._news.set()

    def initialized(self) -> None:
        """The agent said `notifications/initialized`: from now on it may be sent notifications."""
        self._initialized = True
        self._news.set()

    async def ready(self) -> None:
        """Waits until the set is complete, at most `FIRST_LIST_SECONDS` from the first time that anybody asked."""
        if self._first_list_until is None:
            self._first_list_until = trio.current_time() + FIRST_LIST_SECONDS
        with trio.move_on_at(self._first_list_until):
            await self._complete.wait()

    def tool(self, name: str) -> Tool | None:
        """Returns the tool with that MCP name."""
        return self._tools.by_name.get(name)

    def listing(self, revision: Revision) -> str:
        """Returns the result of `tools/list`, which the agent is told hereby."""
        self._told = self._tools.by_name
        return self._tools.listing(revision)

    async def announce(self) -> None:
        """Sends `notifications/tools/list_changed` whenever the agent was told another set, until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            if self._is_stale():
                await trio.sleep(COALESCE_SECONDS)
                await self._outbox.room()
                self._announce()

    def _announce(self) -> None:
        if self._is_stale():
            self._told = self._tools.by_name
            self._outbox.put(_CHANGED)

    def _is_stale(self) -> bool:
        return self._initialized and self._told is not None and self._told != self._tools.by_name
