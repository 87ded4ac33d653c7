"""A proxied server without a process, behind the seam `connection.Connect`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from oubliette.upstreams.connection import Attempt, LostError, Page, ProgressListener, RemoteError
from oubliette.upstreams.upstreams import Upstreams


@dataclass(frozen=True, kw_only=True)
class Config:
    """What `ServerConfig` asks for."""

    command: str = "server"
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    timeout_seconds: float = 60


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


async def answer_at_once(tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
    await trio.lowlevel.checkpoint()
    return b'{"content":[]}'


@dataclass
class FakeServer:
    """Does what its attributes say; tells in others what was done to it, with the time."""

    tools: list[Any] = field(default_factory=lambda: [tool("echo")])
    # What is raised by the tries to connect, one after another; then they succeed, after `start` seconds.
    refusals: list[Exception] = field(default_factory=list)
    start: float = 0
    # How long it takes to be taken down.
    farewell: float = 0
    began_with_handshake: bool = False
    page: Callable[[str | None], Page] | None = None
    answer: Callable[[str, bytes, ProgressListener], Any] = answer_at_once
    attempts: list[tuple[float, Attempt]] = field(default_factory=list)
    lists: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def connect(self, attempt: Attempt) -> AsyncIterator[FakeServer]:
        self.attempts.append((trio.current_time(), attempt))
        await trio.sleep(self.start)
        if self.refusals:
            raise self.refusals.pop(0)
        try:
            yield self
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.farewell)
            self.ended.append(trio.current_time())

    @property
    def attempt(self) -> Attempt:
        """The last one."""
        return self.attempts[-1][1]

    async def list_tools(self, cursor: str | None) -> Page:
        await trio.lowlevel.checkpoint()
        self.lists.append(trio.current_time())
        return Page(tools=self.tools) if self.page is None else self.page(cursor)

    async def call(self, tool: str, arguments: bytes, on_progress: ProgressListener) -> bytes:
        """Answers, unless the connection ends first."""
        attempt, answers = self.attempt, list[bytes | RemoteError]()
        async with trio.open_nursery() as nursery:

            async def lose() -> None:
                await attempt.fate.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(lose)
            try:
                answers.append(await self.answer(tool, arguments, on_progress))
            except RemoteError as error:
                answers.append(error)
            nursery.cancel_scope.cancel()
        answer = answers[0] if answers else LostError("lost")
        if isinstance(answer, RemoteError):
            raise answer
        return answer


class Watched(Upstreams):
    """Upstreams over fake servers, each found by its command; counts its changes."""

    def __init__(self, **servers: FakeServer) -> None:
        self.servers = servers
        self.changes = 0
        self.changed_tools: list[tuple[str, str]] = []
        super().__init__(
            on_change=self._count,
            on_tool_changed=lambda server, tool, fingerprint: self.changed_tools.append((server, tool)),
            connect=lambda attempt: self.servers[attempt.server].connect(attempt),
        )

    def _count(self) -> None:
        self.changes += 1

    def names(self, server: str) -> list[str]:
        return [tool.name for tool in self.tools[server]]


@asynccontextmanager
async def running(upstreams: Watched) -> AsyncIterator[None]:
    """Runs them, configured with every server they have, up to where nothing happens any more."""
    async with trio.open_nursery() as nursery:
        await nursery.start(upstreams.run)
        upstreams.configure({name: Config() for name in upstreams.servers})
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()
