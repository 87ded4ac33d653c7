"""Agents that do what a test tells them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from oubliette.agents.base import Turn, TurnResult

Behaviour = Callable[[Turn], Awaitable[TurnResult]]


class FakeAgent:
    """Runs each turn as `behave` says. `turns` are those begun, `stopped` those that were cancelled."""

    def __init__(self, behave: Behaviour | None = None) -> None:
        self.behave = behave or echo
        self.turns: list[Turn] = []
        self.stopped: list[Turn] = []

    async def run(self, turn: Turn) -> TurnResult:
        self.turns.append(turn)
        try:
            return await self.behave(turn)
        except trio.Cancelled:
            self.stopped.append(turn)
            raise


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
