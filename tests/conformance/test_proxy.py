"""The proxy adds its header, and nothing else is seen of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import trio

from tests.conformance.proxy import HOST, HeaderAdder, TokenProxy

LIMIT = 20  # seconds; far more than anything takes

POST = b"POST /mcp HTTP/1.1\r\nHost: evil.example\r\nContent-length: 14\r\n\r\nGET\r\n\r\nno head"
GET = b"GET /mcp HTTP/1.1\r\nHost: localhost:1\r\nOrigin: null\r\n\r\n"
WITH_HEADER = b"".join(message.replace(b"\r\n", b"\r\nX: 1\r\n", 1) for message in (POST, GET, POST))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_each_head_gets_the_header_however_the_bytes_come(size: int) -> None:
    adder, sent = HeaderAdder("X", "1"), POST + GET + POST
    pieces = [adder.feed(sent[start : start + size]) for start in range(0, len(sent), size)]
    assert b"".join(pieces) == WITH_HEADER


class Ends(NamedTuple):
    suite: trio.SocketStream
    daemon: trio.SocketStream


@asynccontextmanager
async def joined() -> AsyncIterator[Ends]:
    """Both ends of one connection through the proxy."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        async with listener:
            port = await nursery.start(TokenProxy(listener.socket.getsockname()[1], "oub_x").serve)
            async with await trio.open_tcp_stream(HOST, port) as suite, await listener.accept() as daemon:
                with trio.fail_after(LIMIT):
                    yield Ends(suite, daemon)
        nursery.cancel_scope.cancel()


async def test_a_stream_comes_piece_by_piece() -> None:
    async with joined() as ends:
        await ends.suite.send_all(GET)
        assert b"\r\nAuthorization: Bearer oub_x\r\n" in await ends.daemon.receive_some()
        for piece in (b"HTTP/1.1 200 OK\r\n\r\n", b": open\n\n", b"data: 1\n\n"):
            await ends.daemon.send_all(piece)
            assert await ends.suite.receive_some() == piece


async def test_the_daemon_sees_the_suite_leave() -> None:
    async with joined() as ends:
        await ends.suite.aclose()
        assert await ends.daemon.receive_some() == b""


async def test_the_suite_sees_the_daemon_leave() -> None:
    async with joined() as ends:
        await ends.daemon.aclose()
        assert await ends.suite.receive_some() == b""
