"""The official SDK, loaded when the first server is to be connected.

Importing it takes a second, which a daemon without proxied servers never spends, and a daemon with some not before it
is ready: the import runs in a worker thread, while the event loop gets its turns.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from oubliette.upstreams.connection import Attempt, Connection

_MODULE: Final = "oubliette.upstreams.sdk"
# The servers that are connected at once wait for one import, and not each in a thread of its own.
_turn: Final = trio.CapacityLimiter(1)


@asynccontextmanager
async def connect(attempt: Attempt) -> AsyncIterator[Connection]:
    """Connects by the official SDK; see `connection.Connect`."""
    # A stop need not wait for the import; the thread ends by itself.
    sdk = await trio.to_thread.run_sync(importlib.import_module, _MODULE, limiter=_turn, abandon_on_cancel=True)
    async with sdk.connect(attempt) as connection:
        yield connection
