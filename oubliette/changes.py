"""Who is told that a list of things changed, or that one thing can be read anew.

A `Watch` remembers what changed, not how often: however slow its reader is, it holds one note a list and a resource.
"""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import Final, Literal, Self

import trio

from oubliette.errors import LimitExceeded
from oubliette.events import EventLog

List = Literal["tools", "prompts", "resources"]
LISTS: Final[tuple[List, ...]] = ("tools", "prompts", "resources")
# Of one watch; a note is some hundred bytes.
MAX_RESOURCES: Final = 1000
# A session that says much is not announced with every event; in seconds.
GATHER: Final = 0.05


class Changes:
    """The place where a change is announced."""

    def __init__(self) -> None:
        self.watches: set[Watch] = set()

    def announce(self, changed: List) -> None:
        """Says that a list has changed."""
        for watch in self.watches:
            watch.note_list(changed)


class Watch:
    """One reader of changes: of some lists, and of the resources that it follows. Leaving it ends it."""

    def __init__(self, changes: Changes, lists: Collection[List]) -> None:
        self._changes = changes
        self._lists = lists
        self._changed: dict[List, None] = {}
        self._updated: dict[str, None] = {}
        self._followed: dict[str, EventLog] = {}
        self._wake = trio.Event()
        self.has_ended = False
        changes.watches.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def follow(self, uri: str, log: EventLog) -> None:
        """Follows a resource that is what `log` holds; following it again changes nothing. Raises `LimitExceeded`."""
        known = self._followed.pop(uri, None)
        if known is not None:
            del known.watchers[self, uri]
        elif len(self._followed) >= MAX_RESOURCES:
            raise LimitExceeded(f"{MAX_RESOURCES} resources are subscribed to already, as many as there may be")
        self._followed[uri] = log
        log.watchers[self, uri] = lambda: self._note_resource(uri)

    def unfollow(self, uri: str) -> None:
        """Follows a resource no longer."""
        log = self._followed.pop(uri, None)
        if log is not None:
            del log.watchers[self, uri]
        self._updated.pop(uri, None)

    def note_list(self, changed: List) -> None:
        """Notes that a list has changed."""
        if changed in self._lists:
            self._changed[changed] = None
            self._wake.set()

    def _note_resource(self, uri: str) -> None:
        self._updated[uri] = None
        self._wake.set()

    async def next(self) -> tuple[list[List], list[str]]:
        """Waits for changes; returns the lists that changed and the resources, none of either at the end."""
        while not self.has_ended:
            if self._changed or self._updated:
                await trio.sleep(GATHER)
                return self._take()
            self._wake = trio.Event()
            await self._wake.wait()
        return [], []

    def _take(self) -> tuple[list[List], list[str]]:
        taken = list(self._changed), list(self._updated)
        self._changed.clear()
        self._updated.clear()
        return taken

    def finish(self) -> None:
        """Makes `next` return nothing more."""
        self.has_ended = True
        self._wake.set()

    def close(self) -> None:
        """Follows nothing any more. May be repeated."""
        for uri in list(self._followed):
            self.unfollow(uri)
        self._changes.watches.discard(self)
        self.finish()
