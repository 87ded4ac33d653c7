"""Agents that do what a test tells them, in a runtime that runs nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from oubliette.agents.base import Conversation, Place, Program, Running, Sandbox, Turn, TurnResult
from oubliette.runtimes.base import Room

Behaviour = Callable[[Turn], Awaitable[TurnResult]]


class FakeAgent:
    """Runs each turn as `behave` says. `turns` are those begun, `stopped` those that were cancelled.

    `sandboxes` are those of the conversations begun, `left` says how many of them have ended.
    """

    def __init__(self, behave: Behaviour | None = None) -> None:
        self.behave = behave or echo
        self.turns: list[Turn] = []
        self.stopped: list[Turn] = []
        self.sandboxes: list[Sandbox] = []
        self.left = 0

    @asynccontextmanager
    async def converse(self, sandbox: Sandbox) -> AsyncIterator[Conversation]:
        self.sandboxes.append(sandbox)
        try:
            yield self
        finally:
            self.left += 1

    async def turn(self, turn: Turn) -> TurnResult:
        self.turns.append(turn)
        try:
            return await self.behave(turn)
        except trio.Cancelled:
            self.stopped.append(turn)
            raise


class FakeSandbox:
    """The room as it is, where no program can be started."""

    confined = False

    def __init__(self, room: Room) -> None:
        self.room = room
        self.place = Place(
            workspace=str(room.workspace),
            home=str(room.home),
            socket=str(room.sockets / "relay.sock"),
            client=("oubliette-client",),
            variables={},
        )

    async def write(self, name: str, data: bytes) -> str:
        path = trio.Path(self.room.home, name)
        await path.write_bytes(data)
        return str(path)

    def start(self, program: Program) -> AbstractAsyncContextManager[Running]:
        raise FileNotFoundError(2, "there are no programs here", program.argv[0])


class FakeRuntime:
    """Opens sandboxes that run nothing. `rooms` are those of the sessions so far, `open_now` says how many are open."""

    def __init__(self, name: str = "process", warnings: tuple[str, ...] = ()) -> None:
        self.name = name
        self.warnings = warnings
        self.rooms: list[Room] = []
        self.open_now = 0

    @asynccontextmanager
    async def open(self, room: Room) -> AsyncIterator[Sandbox]:
        self.rooms.append(room)
        self.open_now += 1
        try:
            yield FakeSandbox(room)
        finally:
            self.open_now -= 1

    async def clean(self) -> None:
        await trio.lowlevel.checkpoint()


async def echo(turn: Turn) -> TurnResult:
    """Says what it was told."""
    await turn.say(turn.prompt)
    return TurnResult(text=turn.prompt)


async def work_for_a_second(turn: Turn) -> TurnResult:
    await turn.say(f"on it: {turn.prompt}")
    await trio.sleep(1)
    return TurnResult(text=turn.prompt)


async def never_end(turn: Turn) -> TurnResult:
    await turn.say("thinking")
    await trio.sleep_forever()


async def fail(turn: Turn) -> TurnResult:
    return TurnResult(text="", exit_code=3, complaint="no model")
