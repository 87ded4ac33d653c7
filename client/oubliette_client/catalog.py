"""What the agent knows of the tools: when there is a first list to show, and when to say that it changed.

WIRE section 1: "Its first `tools/list` waits until `caller_tools_config`, `pack_tools_config` and, with a key, the
answer to `oubliette_tools` are in, 2 s at most; `tools/list_changed` follows whenever the set changes." Up to MCP
2025-11-25 it follows for an agent that said `notifications/initialized`; from 2026-07-28 on, for each subscription,
whatever the agent listed meanwhile: "no state should be inferred from previous requests".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(slots=True, eq=False)
class _Listener:
    """Somebody who is told by `line` that the set is not the one that they know any more."""

    line: bytes
    known: dict[str, Tool] | None = None
    """None: nothing was listed and nothing was complete yet"""


class Catalog:
    """The set of tools, and who was last told what of it; `keyed` says whether those of a key are to come."""

    def __init__(self, outbox: Outbox, *, keyed: bool = False) -> None:
        self._outbox = outbox
        self._tools = ToolSet(keyed=keyed)
        self._complete = trio.Event()
        self._first_list_until: float | None = None
        self._agent = _Listener(_CHANGED)  # that of the revisions up to 2025-11-25
        self._listeners: list[_Listener] = []
        self._news = trio.Event()

    def configure(self, kind: str, params: str) -> None:
        """Takes what the daemon tells of the tools of one kind: the members of `params`, source text."""
        for problem in self._tools.take(kind, params):
            note(problem)
        if self._tools.complete and not self._complete.is_set():
            self._complete.set()
            self._agent.known = self._agent.known if self._agent.known is not None else self._tools.by_name
        self._news.set()

    def initialized(self) -> None:
        """The agent said `notifications/initialized`: from now on it may be sent notifications."""
        if self._agent not in self._listeners:
            self._listeners.append(self._agent)
        self._news.set()

    @contextmanager
    def listening(self, line: bytes) -> Iterator[None]:
        """Has `line` sent whenever the set is another one than at first, or than when it was last sent."""
        listener = _Listener(line, self._tools.by_name)
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    async def ready(self) -> None:
        """Waits until the set is complete, at most `FIRST_LIST_SECONDS` from the first time that anybody asked."""
        if self._first_list_until is None:
            self._first_list_until = trio.current_time() + FIRST_LIST_SECONDS
        with trio.move_on_at(self._first_list_until):
            await self._complete.wait()

    def tool(self, name: str) -> Tool | None:
        """Returns the tool with that MCP name, or that alias."""
        return self._tools.by_name.get(name) or self._tools.aliases.get(name)

    def listing(self, revision: Revision) -> str:
        """Returns what `tools/list` shows of the tools, a JSON array, which the agent is told hereby."""
        if not revision.stateless:
            self._agent.known = self._tools.by_name
        return self._tools.listing(revision)

    async def announce(self) -> None:
        """Sends `notifications/tools/list_changed` to whoever knows another set, until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            if any(map(self._is_stale, self._listeners)):
                await trio.sleep(COALESCE_SECONDS)
                await self._announce()

    async def _announce(self) -> None:
        for listener in list(self._listeners):
            # A line may be long, as it carries the id of its subscription: room is asked for each.
            await self._outbox.room()
            if listener in self._listeners and self._is_stale(listener):
                listener.known = self._tools.by_name
                self._outbox.put(listener.line)

    def _is_stale(self, listener: _Listener) -> bool:
        return listener.known is not None and listener.known != self._tools.by_name
