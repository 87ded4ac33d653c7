"""What a session asks of an agent, whatever its profile."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from oubliette.agents.environment import Environment

# A turn's text is what its agent said; of more characters than these the end is kept.
MAX_TEXT: Final = 1024 * 1024


class Turn(Struct, frozen=True, kw_only=True):
    """One message for an agent, and where it works. `say` tells the session of a line that the agent said.

    `environment` is what the host and the daemon say, `variables` are the `env` of the workspace and its project.
    """

    prompt: str
    folder: Path
    environment: dict[str, str]
    say: Callable[[str], Awaitable[None]]
    variables: Environment = msgspec.field(default_factory=Environment)


class TurnResult(Struct, frozen=True, kw_only=True):
    """How a turn went: its text, what it used where the agent says so, and the exit code of what ran."""

    text: str
    usage: dict[str, int] | None = None
    exit_code: int = 0
    complaint: str = ""
    """the last of stderr, where the exit code is not 0"""


class Transcript:
    """What an agent said in a turn, line by line: the last `MAX_TEXT` characters, and a line that they begin in."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._size = 0

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1
        while self._size - len(self._lines[0]) - 1 > MAX_TEXT:
            self._size -= len(self._lines.popleft()) + 1

    @property
    def text(self) -> str:
        return "\n".join(self._lines)[-MAX_TEXT:]


class Agent(Protocol):
    """An agent profile that runs turns."""

    async def run(self, turn: Turn) -> TurnResult:
        """Runs one turn to its end. Cancelled, it stops whatever it started before it returns, in bounded time."""
        ...
