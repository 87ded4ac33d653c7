"""What an agent tells: its words become events, and how it ended becomes words (WIRE section 5)."""

from __future__ import annotations

import signal
from typing import Final, Protocol

from msgspec import Raw

from oubliette.agents.base import MAX_TEXT, Report, ToolUse, Transcript
from oubliette.errors import AgentFailed, OublietteError
from oubliette.events import EventLog
from oubliette.protocol.events import Message, ToolCall, ToolResult

# Events stay in memory: of longer arguments that an agent reports of a tool only their length is told.
MAX_ARGUMENTS: Final = 256 * 1024
# Agents take names of 64 characters, and some of them put the server's name in front.
MAX_TOOL: Final = 256


class Room(Protocol):
    """The records, as far as whoever tells something waits for them."""

    async def wait_for_room(self) -> None: ...


class Telling:
    """What an agent tells in one turn becomes events.

    An agent that talks faster than its events can be recorded waits, in its own pipe. `said` is what it said so far.
    """

    def __init__(self, log: EventLog, records: Room) -> None:
        self.said = Transcript()
        self._log = log
        self._records = records

    async def say(self, text: str) -> None:
        """Appends a message of the agent; of a text that is too long the beginning."""
        await self._records.wait_for_room()
        self._log.append(Message, role="assistant", text=text[:MAX_TEXT])
        self.said.add(text)

    async def report(self, report: Report) -> None:
        """Appends what the agent reports of a tool."""
        await self._records.wait_for_room()
        if isinstance(report, ToolUse):
            self._log.append(ToolCall, tool=report.tool[:MAX_TOOL], arguments=_bounded(report.arguments))
        else:
            self._log.append(ToolResult, tool=report.tool[:MAX_TOOL], is_error=report.is_error)


def _bounded(arguments: Raw) -> Raw:
    size = len(arguments)
    return arguments if size <= MAX_ARGUMENTS else Raw(b'{"left_out":"%d bytes"}' % size)


def exit_in_words(code: int) -> str:
    """Returns what is said of an exit code, with the signal behind it; shells and containers add 128 to its number.

    A program that has used more memory than it may is ended by SIGKILL.
    """
    try:
        name = signal.Signals(-code if code < 0 else code - 128).name
    except ValueError:
        return f"exited with code {code}"
    return f"exited with code {code} ({name})"


def failure_in_words(agent: str, failure: Exception) -> str | None:
    """Returns what the caller is told, None for a fault of ours: "details in the log, never on the wire"."""
    known = [leaf for leaf in _leaves(failure) if isinstance(leaf, OSError | ValueError | OublietteError)]
    if not known:
        return None
    if isinstance(known[0], AgentFailed):
        return f"the agent {agent!r} failed: {known[0].message}"
    # A program that is missing, a NUL in an argument, a folder that cannot be shown, an `env` that cannot be read.
    return f"the agent {agent!r} cannot be started: {known[0]}"


def _leaves(failure: BaseException) -> list[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        return [leaf for part in failure.exceptions for leaf in _leaves(part)]
    return [failure]
