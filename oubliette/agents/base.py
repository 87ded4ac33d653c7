"""What a session asks of an agent, whatever its profile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct


class Turn(Struct, frozen=True, kw_only=True):
    """One message for an agent, and where it works. `say` tells the session of a line that the agent said."""

    prompt: str
    folder: Path
    environment: dict[str, str]
    say: Callable[[str], Awaitable[None]]


class TurnResult(Struct, frozen=True, kw_only=True):
    """How a turn went: its text, what it used where the agent says so, and the exit code of what ran."""

    text: str
    usage: dict[str, int] | None = None
    exit_code: int = 0
    complaint: str = ""
    """the last of stderr, where the exit code is not 0"""


class Agent(Protocol):
    """An agent profile that runs turns."""

    async def run(self, turn: Turn) -> TurnResult:
        """Runs one turn to its end. Cancelled, it stops whatever it started before it returns, in bounded time."""
        ...
