"""The two sides of the door to models, as a test plays them: an agent at the socket, and servers on the loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from oubliette.link.model import ModelDoor, ModelListener

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SECONDS = 10  # ends a test that hangs, and nothing else

Handler = Callable[[trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def upstream(handler: Handler) -> AsyncIterator[int]:
    """A server on the loopback; yields its port. Whoever it serves may go at any time."""

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await handler(stream)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def door(folder: Path, *hosts: str) -> AsyncIterator[ModelListener]:
    """A session's door that lets through to `hosts`."""
    listener = ModelDoor(hosts).open(folder, "the-session")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve)
        yield listener
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def through(folder: Path, handler: Handler) -> AsyncIterator[tuple[trio.SocketStream, int, ModelListener]]:
    """A connection to a door that lets through to `handler`'s server alone; yields its port too."""
    async with (
        upstream(handler) as port,
        door(folder, f"127.0.0.1:{port}") as listener,
        await trio.open_unix_socket(str(listener.path)) as agent,
    ):
        with trio.fail_after(SECONDS):
            yield agent, port, listener


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Returns what comes until the end."""
    data = b""
    async for chunk in stream:
        data += chunk
    return data


async def read_until(stream: trio.abc.ReceiveStream, end: bytes) -> bytes:
    """Returns what comes, up to the first time that it ends so, or the stream does."""
    data = b""
    while not data.endswith(end) and (chunk := await stream.receive_some()):
        data += chunk
    return data


async def send_until_broken(stream: trio.abc.SendStream, data: bytes) -> None:
    """Returns when nobody takes it any more."""
    with suppress(trio.BrokenResourceError):
        while True:
            await stream.send_all(data)


async def ask(path: Path, data: bytes) -> bytes:
    """Returns all that the door says to `data`."""
    async with await trio.open_unix_socket(str(path)) as agent:
        await agent.send_all(data)
        return await read_all(agent)


class Recorder:
    """A server that keeps what each connection sent, up to `end` and after it, and answers `answer` in between."""

    def __init__(self, end: bytes, answer: bytes = OK) -> None:
        self.end = end
        self.answer = answer
        self.heard: list[bytes] = []

    async def __call__(self, stream: trio.SocketStream) -> None:
        async with stream:
            self.heard.append(await read_until(stream, self.end))
            await stream.send_all(self.answer)
            self.heard[-1] += await read_all(stream)
