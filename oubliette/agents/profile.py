"""Agents that are a command line: one process a turn, which tells what it does in lines of JSON.

    converse            the agent's files are written below its home
      turn              the agent's process: the message on its stdin
        a line          the profile's parser → said, a tool used, the conversation's name, the end

A `Profile` is data and one small parser; adding an agent is one file (`claude.py` is the shortest to begin with).
Whatever a process writes, a turn goes on: lines that are no JSON are counted for the complaint, events that nobody
knows are ignored, and everything is bounded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Raw, Struct

from oubliette.agents.base import Conversation, Place, Program, Sandbox, ToolOutcome, ToolUse, Turn, TurnResult
from oubliette.agents.environment import Environment
from oubliette.agents.process import oversized_note, run_lines
from oubliette.protocol.jsonrpc import compact
from oubliette.protocol.nesting import too_deep

Permissions = Literal["sandbox", "all", "tools"]
Variables = Mapping[str, str]

# What agents know our MCP server as. Some put it before the names of its tools.
SERVER: Final = "oubliette"
# How long an agent waits for our client to start: what it shows its model at first is all that the model sees.
START_SECONDS: Final = 30
# How long an agent waits for a tool: longer than any deadline of the relay (3600 s, unless an operator sets more).
TOOL_SECONDS: Final = 24 * 3600
# A longer line of an agent's stream is left out, with a note. Results of tools stand in it, which may have 4 MiB.
MAX_LINE: Final = 8 * 1024 * 1024
# Of a longer text the beginning is told, with a note: events stay in memory.
MAX_MESSAGE: Final = 256 * 1024
# Of the reason of a failure, as much is told.
MAX_REASON: Final = 2000
# Tool calls under way whose names are remembered. Agents run a handful; a stream that never ends them is not ours.
MAX_CALLS: Final = 1000
# Of output that is no JSON, as much of the last line is told.
_QUOTED: Final = 200

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
# The ways in which agents spell a tool of ours: mcp__oubliette__name, oubliette_name, oubliette.name, oubliette/name.
_OURS: Final = re.compile(rf"(?:mcp__)?{SERVER}(?:__|[_./:]| - )(?P<name>[A-Za-z0-9_.-]+)")


class Options(Struct, frozen=True, kw_only=True):
    """What an operator says of an agent.

    `command` starts it; `environment` goes over what the runtime says. `model` and `base_url`, an OpenAI-compatible
    endpoint, are empty for the agent's own; `api_key_env` names the variable that holds the key for it. `permissions`:
    `sandbox` gives it a free hand where it is confined and the tools of Oubliette alone elsewhere, `all` a free hand
    anywhere, `tools` the tools of Oubliette alone.
    """

    command: tuple[str, ...]
    environment: Variables = {}
    model: str = ""
    permissions: Permissions = "sandbox"
    base_url: str = ""
    api_key_env: str = "OPENAI_API_KEY"

    def gives_free_hand(self, sandbox: Sandbox) -> bool:
        """Says whether the agent may do there whatever it likes."""
        return self.permissions == "all" or (self.permissions == "sandbox" and sandbox.confined)


class Start(Struct, frozen=True, kw_only=True):
    """What a profile makes its files, its arguments and its variables of.

    `variables` are the operator's and the workspace's. `conversation` is what the agent calls it, empty where that is
    not known: before the first turn (`is_first`), and where that was interrupted at its very beginning.
    """

    options: Options
    place: Place
    free_hand: bool
    variables: Variables = {}
    is_first: bool = True
    conversation: str = ""

    @property
    def client(self) -> list[str]:
        """The command of our MCP server."""
        return client_of(self.place)

    def path(self, name: str) -> str:
        """Returns where a file or folder below the agent's home lies."""
        return f"{self.place.home}/{name}"


class Said(Struct, frozen=True):
    """A message of the agent, whole."""

    text: str


class Begun(Struct, frozen=True):
    """From here on the conversation can be continued under this name, of letters, digits, '_' and '-'."""

    conversation: str


class Used(Struct, frozen=True):
    """Tokens that were used since the agent last told of any. The names are those of Anthropic's API."""

    usage: Mapping[str, int]


class Ended(Struct, frozen=True, kw_only=True):
    """How the turn ended, as far as the agent says it: its answer, else its last message counts; why it failed."""

    answer: str | None = None
    failure: str = ""


Heard = Said | Begun | Used | Ended | ToolUse | ToolOutcome


class Parser(Protocol):
    """Makes sense of the stream of one conversation, turn after turn."""

    def hear(self, line: bytes) -> Iterable[Heard]:
        """Returns what a line says, nothing for an event that it does not know.

        Raises `msgspec.DecodeError` where it is no JSON, or not as it is known to be.
        """
        ...


class Profile(Struct, frozen=True, kw_only=True):
    """What there is to know of an agent.

    `files` go below its home, before its first turn, and hold no secret. `arguments` follow its command; the message
    comes on its stdin, and is never among them (HAZARDS T20). `environment` is the whole of what goes over the
    runtime's, so it begins with the profile's own settings, lays `Start.variables` over them, and ends with what has
    to be so.
    """

    files: Callable[[Start], Mapping[str, bytes]]
    arguments: Callable[[Start], list[str]]
    environment: Callable[[Start], dict[str, str]]
    parser: Callable[[], Parser]


class CliAgent:
    """An agent that is a command line."""

    def __init__(self, profile: Profile, options: Options) -> None:
        self._profile = profile
        self._options = options

    @asynccontextmanager
    async def converse(self, sandbox: Sandbox) -> AsyncIterator[Conversation]:
        """A conversation that lies in the agent's own files between its turns."""
        free_hand = self._options.gives_free_hand(sandbox)
        start = Start(options=self._options, place=sandbox.place, free_hand=free_hand)
        for name, data in self._profile.files(start).items():
            await sandbox.write(name, data)
        yield _Conversation(self._profile, sandbox, start)


class _Conversation:
    def __init__(self, profile: Profile, sandbox: Sandbox, start: Start) -> None:
        self._profile = profile
        self._sandbox = sandbox
        self._start = start
        self._parser = profile.parser()

    async def turn(self, turn: Turn) -> TurnResult:
        hearing = _Hearing(turn, self._parser, self._start.conversation)
        program = self._program(turn)
        try:
            exit_code, complaint = await run_lines(
                self._sandbox, program, turn.prompt.encode(), hearing.on_line, max_line=MAX_LINE
            )
        finally:
            self._start = msgspec.structs.replace(self._start, is_first=False, conversation=hearing.conversation)
        return hearing.result(exit_code, complaint)

    def _program(self, turn: Turn) -> Program:
        # The nearest goes first: what a workspace says over what its profile says for all.
        variables = Environment({**self._start.options.environment, **turn.variables})
        start = msgspec.structs.replace(self._start, variables=variables)
        argv = (*start.options.command, *self._profile.arguments(start))
        return Program(argv=argv, environment=Environment(self._profile.environment(start)))


class _Hearing:
    """What is heard of one turn. The name of its conversation stays known when the turn is cancelled."""

    def __init__(self, turn: Turn, parser: Parser, conversation: str) -> None:
        self.conversation = conversation
        self._turn = turn
        self._parser = parser
        self._last = ""
        self._usage: Counter[str] = Counter()
        self._end = Ended()
        self._strays = 0
        self._last_stray = ""

    async def on_line(self, line: str) -> None:
        if line == oversized_note(MAX_LINE):
            return await self._turn.say(line)
        if line.strip():
            for heard in self._understand(line):
                await self._tell(heard)

    def _understand(self, line: str) -> list[Heard]:
        data = line.encode()
        try:
            # ARCHITECTURE, traps: "msgspec: too deep input raises `RecursionError`".
            return [] if too_deep(data) else list(self._parser.hear(data))
        except msgspec.ValidationError:
            return []
        except msgspec.DecodeError:
            self._strays += 1
            self._last_stray = line[:_QUOTED]
            return []

    async def _tell(self, heard: Heard) -> None:
        match heard:
            case Said(text) if text.strip():
                self._last = text
                await self._turn.say(cut(text))
            # It becomes an argument.
            case Begun(conversation) if _NAME.fullmatch(conversation):
                self.conversation = conversation
            case Used(usage):
                self._usage.update(usage)
            case Ended():
                self._end = heard
            case ToolUse() | ToolOutcome():
                await self._turn.report(heard)

    def result(self, exit_code: int, complaint: str) -> TurnResult:
        """How the turn went, by what the process said of it and how it ended."""
        answer = self._last if self._end.answer is None else self._end.answer
        failure = self._end.failure[:MAX_REASON]
        return TurnResult(
            text=cut(answer),
            usage=dict(self._usage) or None,
            exit_code=exit_code or int(bool(failure)),
            complaint="\n".join(filter(None, (failure, complaint, self._strays_in_words))),
        )

    @property
    def _strays_in_words(self) -> str:
        """Agents say on stdout, too, why they cannot work."""
        return f"{self._strays} lines of its output were no JSON, the last: {self._last_stray}" if self._strays else ""


class Calls:
    """The tool calls under way by the ids that an agent gives them: results name their call by it."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}

    def begin(self, id: str, tool: str, arguments: Raw | bytes) -> ToolUse:
        """Returns the report of a call that begins."""
        self._tools[id] = our_name(tool)
        if len(self._tools) > MAX_CALLS:
            del self._tools[next(iter(self._tools))]
        return ToolUse(tool=our_name(tool), arguments=Raw(compact(arguments)))

    def end(self, id: str, *, is_error: bool) -> list[ToolOutcome]:
        """Returns the report of how a call ended, nothing of one that never began."""
        tool = self._tools.pop(id, None)
        return [] if tool is None else [ToolOutcome(tool=tool, is_error=is_error)]

    def __contains__(self, id: str) -> bool:
        return id in self._tools


def client_of(place: Place) -> list[str]:
    """Returns the command of our MCP server. It names the socket: some agents pass few variables on to servers."""
    return [*place.client, "--socket", place.socket]


def own_folders(home: str) -> dict[str, str]:
    """Returns the variables by which a program keeps all its files below `home`."""
    return {
        "HOME": home,
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_DATA_HOME": f"{home}/.local/share",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_STATE_HOME": f"{home}/.local/state",
    }


def our_name(tool: str) -> str:
    """Returns a tool's name without what agents put before the names of our MCP server."""
    match = _OURS.fullmatch(tool)
    return match["name"] if match else tool


def is_ours(tool: str) -> bool:
    """Says whether an agent's name for a tool is that of a tool of our MCP server."""
    return _OURS.fullmatch(tool) is not None


def cut(text: str) -> str:
    """Returns a text, of a long one the beginning and how much more there was."""
    left_out = len(text) - MAX_MESSAGE
    return text if left_out <= 0 else f"{text[:MAX_MESSAGE]}\n[{left_out} more characters were left out]"


def used(counts: Mapping[str, int]) -> Used:
    """Returns what was used: the tokens in and out, and of the rest what is not 0."""
    return Used({name: count for name, count in counts.items() if count or name in ("input_tokens", "output_tokens")})
