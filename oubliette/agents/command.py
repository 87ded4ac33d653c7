"""The profile `command`: any program; its lines are what the agent says, its exit ends the turn."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from oubliette.agents.base import Conversation, Program, Sandbox, Transcript, Turn, TurnResult
from oubliette.agents.environment import Environment
from oubliette.agents.process import run_lines

_PROMPT: Final = "{prompt}"


class CommandAgent:
    """Runs `command` once a turn. `{prompt}` in an argument is the message; without any it comes on stdin.

    `environment` goes over what the runtime and the daemon say, and a workspace's own over that.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = [_found(argument) for argument in command]
        self._environment = environment

    @asynccontextmanager
    async def converse(self, sandbox: Sandbox) -> AsyncIterator[Conversation]:
        """A conversation in which each turn starts the program anew."""
        yield _Conversation(self, sandbox)

    def program(self, turn: Turn) -> tuple[Program, bytes]:
        """Returns what is to run for a turn, and what it reads on stdin."""
        in_argv = any(_PROMPT in argument for argument in self._command)
        # One argument stays one argument: no shell ever sees the prompt (HAZARDS T20).
        argv = tuple(argument.replace(_PROMPT, turn.prompt) for argument in self._command)
        # The nearest goes first: what a workspace says over what its profile says for all.
        environment = Environment({**self._environment, **turn.variables})
        return Program(argv=argv, environment=environment), b"" if in_argv else turn.prompt.encode()


class _Conversation:
    def __init__(self, agent: CommandAgent, sandbox: Sandbox) -> None:
        self._agent = agent
        self._sandbox = sandbox

    async def turn(self, turn: Turn) -> TurnResult:
        said = Transcript()

        async def on_line(line: str) -> None:
            said.add(line)
            # A blank line parts paragraphs of the text; by itself it says nothing.
            if line.strip():
                await turn.say(line)

        program, stdin = self._agent.program(turn)
        exit_code, complaint = await run_lines(self._sandbox, program, stdin, on_line)
        return TurnResult(text=said.text, exit_code=exit_code, complaint=complaint)


def _found(argument: str) -> str:
    """A relative path of a file is meant from where the daemon was started; an agent starts in its workspace."""
    return os.path.abspath(argument) if os.sep in argument and os.path.isfile(argument) else argument
