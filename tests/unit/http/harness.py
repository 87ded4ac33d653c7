"""Two ends for the tests of the HTTP door: the server's code on one, a peer that speaks bytes on the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import Any

import trio
from hypercorn.trio.worker_context import WorkerContext
from trio.testing import MemorySendStream, memory_stream_pair

from oubliette.gate import Gate
from oubliette.http.door import Door, Route
from oubliette.http.hosts import Hosts
from oubliette.http.request import Request
from oubliette.http.server import App, Connection, HttpServer, bind
from oubliette.scopes import Scope
from oubliette.tokens import Principal, Tokens
from tests.helpers.audit import Unwritten
from tests.helpers.peer import Peer
from tests.helpers.records import MemoryRecords

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
OWNER = Principal("owner", Scope(None, False))


@asynccontextmanager
async def connected(app: App) -> AsyncIterator[Peer]:
    """Serves `app` on one connection over memory."""
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(app, WorkerContext(None), theirs).run)
        yield Peer(ours)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def slowly_read(app: App, *seconds: float) -> AsyncIterator[Peer]:
    """Serves `app` to a peer that takes so many seconds over each write of the server's, for ever over all further."""
    left = list(seconds)
    ours, theirs = memory_stream_pair()
    assert isinstance(theirs.send_stream, MemorySendStream)
    deliver: Any = theirs.send_stream.send_all_hook

    async def take() -> None:
        await trio.sleep(left.pop(0) if left else inf)
        await deliver()

    theirs.send_stream.send_all_hook = take
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(app, WorkerContext(None), theirs).run)
        yield Peer(ours)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(app: App, **options: Any) -> AsyncIterator[tuple[HttpServer, Callable[[], Awaitable[Peer]]]]:
    """Serves `app` on a real socket; yields the server and what opens a connection to it."""
    listener = bind("127.0.0.1", 0)
    host, port = listener.getsockname()
    server = HttpServer(app, listener, **options)

    with trio.fail_after(20):
        async with AsyncExitStack() as clients, trio.open_nursery() as nursery:

            async def connect() -> Peer:
                return Peer(await clients.enter_async_context(await trio.open_tcp_stream(host, port)))

            nursery.start_soon(server.serve)
            yield server, connect
            nursery.cancel_scope.cancel()


async def ok(scope: Any, receive: Receive, send: Send) -> None:
    """An application that answers `ok` and reads nothing."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def echo(request: Request) -> None:
    """A route that answers with the body that it got."""
    await request.respond(200, request.body)


class OneToken(Tokens):
    """`Authorization: Bearer good` is the owner; everything else is refused as by `Tokens`."""

    def __init__(self) -> None:
        super().__init__(MemoryRecords())

    def authenticate(self, token: str) -> Principal:
        return OWNER if token == "good" else super().authenticate(token)

    def is_good(self, principal: Principal) -> bool:
        return principal is OWNER or super().is_good(principal)


class NoStreams:
    """No request is for a stream."""

    def serves(self, request: Request) -> bool:
        return False


def make_door(route: Route = echo, *, max_body: int = 100, tokens: Tokens | None = None) -> Door:
    """Returns a door whose every path leads to `route`, but for `/open`, which needs no token, and `/mcp`."""
    streams: Any = NoStreams()
    return Door(
        hosts=Hosts("127.0.0.1", (), ()),
        gate=Gate(tokens or OneToken(), Unwritten()),
        max_body=max_body,
        open_routes={"/open": route},
        mcp=route,
        direct=[streams],
        plain=route,
    )
