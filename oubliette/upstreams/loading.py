"""The official SDK, loaded when the first server is to be connected.

Importing it takes a second, which a daemon without proxied servers never spends, and a daemon with some not before it
is ready: the import runs in a worker thread, while the event loop gets its turns.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio

from oubliette.upstreams.connection import Attempt, Connection

_MODULE: Final = "oubliette.upstreams.sdk"


class Loader:
    """Connects by the official SDK, once it is there."""

    def __init__(self) -> None:
        # The servers that are connected at once wait for one import, and not each in a thread of its own.
        self._turn = trio.CapacityLimiter(1)

    @asynccontextmanager
    async def connect(self, attempt: Attempt) -> AsyncIterator[Connection]:
        """See `connection.Connect`."""
        load = partial(importlib.import_module, _MODULE)
        # A stop need not wait for the import; the thread ends by itself.
        sdk = await trio.to_thread.run_sync(load, limiter=self._turn, abandon_on_cancel=True)
        async with sdk.connect(attempt) as connection:
            yield connection
