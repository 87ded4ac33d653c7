"""The profile `command`: any program; its lines are what the agent says, its exit ends the turn."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from oubliette.agents.base import Transcript, Turn, TurnResult
from oubliette.agents.process import run_process

_PROMPT: Final = "{prompt}"


class CommandAgent:
    """Runs `command` once a turn. `{prompt}` in an argument is the message; without any it comes on stdin."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = [_found(argument) for argument in command]
        self._environment = environment

    async def run(self, turn: Turn) -> TurnResult:
        said = Transcript()

        async def on_line(line: str) -> None:
            said.add(line)
            # A blank line parts paragraphs of the text; by itself it says nothing.
            if line.strip():
                await turn.say(line)

        in_argv = any(_PROMPT in argument for argument in self._command)
        # One argument stays one argument: no shell ever sees the prompt.
        argv = [argument.replace(_PROMPT, turn.prompt) for argument in self._command]
        exit_code, complaint = await run_process(
            argv,
            folder=turn.folder,
            # The nearest goes first: what a workspace says over what its profile says for all.
            environment={**turn.environment, **self._environment, **turn.variables},
            stdin=b"" if in_argv else turn.prompt.encode(),
            on_line=on_line,
        )
        return TurnResult(text=said.text, exit_code=exit_code, complaint=complaint)


def _found(argument: str) -> str:
    """A relative path of a file is meant from where the daemon was started; an agent starts in its workspace."""
    return os.path.abspath(argument) if os.sep in argument and os.path.isfile(argument) else argument
