"""A route that is loaded once the daemon is ready.

Importing Quart takes a third of the daemon's start, and its routes are none of a relay's hot path.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from oubliette.http.door import Route
from oubliette.http.request import Request


class LaterRoute:
    """Serves by the route that `load` returns, in a thread, once `prepare` has run; requests wait for it."""

    def __init__(self, load: Callable[[], Route]) -> None:
        self._load = load
        self._loaded = trio.Event()

    async def prepare(self) -> None:
        """Loads the route. Whoever serves starts this."""
        self._route = await trio.to_thread.run_sync(self._load)
        self._loaded.set()

    async def __call__(self, request: Request) -> None:
        """Serves one request."""
        await self._loaded.wait()
        await self._route(request)
