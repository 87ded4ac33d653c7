"""What a session asks of an agent, whatever its profile."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec
import trio
from msgspec import Raw, Struct

from oubliette.agents.environment import Environment

# A turn's text is what its agent said; of more characters than these the end is kept.
MAX_TEXT: Final = 1024 * 1024


class Place(Struct, frozen=True, kw_only=True):
    """A session's folders and sockets as its agent finds them, inside its runtime.

    `home` is the agent's own folder, outside its workspace, for its configuration and its conversation; it lives as
    long as the session. `client` is the command that starts `oubliette-client` there. `variables` are those of the
    environment that the runtime and the daemon say.
    """

    workspace: str
    home: str
    socket: str
    client: tuple[str, ...]
    variables: Mapping[str, str]


class Program(Struct, frozen=True, kw_only=True):
    """What is to run: `environment` goes over the place's variables, and may hold secrets, so it is on no argv."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}


class Running(Protocol):
    """A program that runs in a sandbox."""

    @property
    def stdin(self) -> trio.abc.SendStream: ...
    @property
    def stdout(self) -> trio.abc.ReceiveStream: ...
    @property
    def complaint(self) -> str:
        """The end of what it has written to stderr so far."""
        ...

    async def wait(self) -> int:
        """Returns its exit code, once it has one."""
        ...


class Sandbox(Protocol):
    """Where the programs of one session run. In a `confined` one an agent may be given a free hand."""

    @property
    def place(self) -> Place: ...
    @property
    def confined(self) -> bool: ...

    async def write(self, name: str, data: bytes) -> str:
        """Writes the file `name`, a path below home, for the agent alone. Returns its path inside."""
        ...

    def start(self, program: Program) -> AbstractAsyncContextManager[Running]:
        """Starts a program. Leaving the block ends it and all that it started, politely and then by force, in bounded
        time. Raises `OSError` or `ValueError` where it cannot be started.
        """
        ...


class ToolUse(Struct, frozen=True, kw_only=True):
    """The agent reports that it calls a tool, of its own or of ours. The event `tool_call`."""

    tool: str
    arguments: Raw
    """JSON as the agent spelled it, on one line"""


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """The agent reports how a tool call ended. The event `tool_result`."""

    tool: str
    is_error: bool


Report = ToolUse | ToolOutcome


class Turn(Struct, frozen=True, kw_only=True):
    """One message for an agent. `say` tells the session of a text of the agent, `report` of its tools: both may wait.

    `variables` are the `env` of the workspace and its project: secrets, so for a program's environment alone.
    """

    prompt: str
    say: Callable[[str], Awaitable[None]]
    report: Callable[[Report], Awaitable[None]]
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


class Conversation(Protocol):
    """What an agent and its session say to each other, turn after turn."""

    async def turn(self, turn: Turn) -> TurnResult:
        """Runs one turn to its end. One at a time.

        Cancelled, it stops what it started before it returns, in bounded time; the next turn goes on from there.
        Raises `OSError` or `ValueError` where the agent cannot be started.
        """
        ...


class Agent(Protocol):
    """An agent profile. One serves any number of sessions."""

    def converse(self, sandbox: Sandbox) -> AbstractAsyncContextManager[Conversation]:
        """One session's conversation, entered before its first turn; leaving it ends what still runs of it."""
        ...
