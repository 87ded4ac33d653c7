"""The tree of tasks of the client process.

    serve
    ├─ the agent's requests, one task each (server)
    ├─ the writer of stdout
    ├─ the link: connection after connection, each with a reader and a writer
    ├─ with a key, the question what it opens, until it is answered
    └─ the announcer of changed tools

Whichever ends first, stdin, stdout or the patience with a socket that never opens, ends the others.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from typing import Final

import trio

from oubliette_client.catalog import Catalog
from oubliette_client.discovery import discover
from oubliette_client.key import ApiKey
from oubliette_client.link import Connect, Link, open_socket
from oubliette_client.methods import Methods
from oubliette_client.server import DRAIN_SECONDS, Server
from oubliette_client.streams import Outbox
from oubliette_client.subscriptions import Subscriptions

# Two of the longest lines: while one is written, the next may come.
MAX_UNREAD_BYTES: Final = 8 * 1024 * 1024


def run(path: str, stdin: int, stdout: int, key: ApiKey | None) -> None:
    """Serves the agent on two descriptors until stdin ends, stdout breaks or a signal comes, and closes them.

    Raises a group with one `SocketUnavailableError` where the socket at `path` never opened.
    """
    trio.run(_serve_process, path, stdin, stdout, key)


async def serve(
    path: str,
    stdin: trio.abc.ReceiveStream,
    stdout: trio.abc.SendStream,
    connect: Connect = open_socket,
    key: ApiKey | None = None,
) -> None:
    """Serves the agent on two streams until either ends. Raises as `run` does."""
    outbox = Outbox(MAX_UNREAD_BYTES)
    catalog = Catalog(outbox, keyed=key is not None)
    link = Link(path, catalog.configure, outbox.room, connect)
    subscriptions = Subscriptions(catalog, outbox)

    def leave() -> None:
        link.leave()
        subscriptions.end()

    server = Server(Methods(catalog, link, outbox, subscriptions, key), outbox, catalog.initialized, leave)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write, outbox, stdout, nursery.cancel_scope)
        nursery.start_soon(link.run)
        nursery.start_soon(catalog.announce)
        if key is not None:
            nursery.start_soon(discover, key, link, catalog)
        await server.run(stdin)
        with trio.move_on_after(DRAIN_SECONDS):
            await outbox.drained()
        nursery.cancel_scope.cancel()


async def _serve_process(path: str, stdin: int, stdout: int, key: ApiKey | None) -> None:
    # FdStream serves regular files and /dev/null too: it asks epoll, which refuses them, only after a read or a write
    # would have blocked, and theirs never do (read in trio 0.35, and tested).
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        streams = trio.lowlevel.FdStream(stdin), trio.lowlevel.FdStream(stdout)
        async with streams[0], streams[1], trio.open_nursery() as nursery:
            nursery.start_soon(_leave_on_signal, signals, nursery.cancel_scope)
            await serve(path, *streams, key=key)
            nursery.cancel_scope.cancel()


async def _leave_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


async def _write(outbox: Outbox, stdout: trio.abc.SendStream, scope: trio.CancelScope) -> None:
    """An agent that closed its end of stdout is gone."""
    await outbox.run(stdout)
    scope.cancel()
