"""The turns of a session: the messages that wait for theirs, and the one that has it (WIRE section 5)."""

from __future__ import annotations

from typing import Final

import trio

from oubliette.errors import Conflict, LimitExceeded, OublietteError

# WIRE section 5: "A message while a turn runs is queued (at most 100)".
MAX_QUEUED: Final = 100


class TurnInLine:
    """A message that waits for its turn, or has it. `done` is set at its end, however it ended."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.text = ""
        self.error: OublietteError | None = None

    def finish(self, text: str) -> None:
        """Ends it with what the agent said."""
        self.text = text
        self.done.set()

    def fail(self, error: OublietteError) -> None:
        """Ends it with an error, unless it has ended."""
        if not self.done.is_set():
            self.error = error
            self.done.set()


class TurnLine:
    """The turns of one session, which its agent takes one after the other."""

    def __init__(self) -> None:
        self._line, self._turns = trio.open_memory_channel[TurnInLine](MAX_QUEUED)
        self._current: TurnInLine | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no message waits."""
        return not self._line.statistics().current_buffer_used

    def check(self, *, interrupt: bool) -> None:
        """Raises `LimitExceeded` where no further message can be queued."""
        if self._line.statistics().current_buffer_used >= MAX_QUEUED and not interrupt:
            raise LimitExceeded(f"{MAX_QUEUED} messages are queued already; wait for a turn to end, or interrupt it")

    def add(self, prompt: str) -> TurnInLine:
        """Queues a message that `check` has let pass."""
        turn = TurnInLine(prompt)
        self._line.send_nowait(turn)
        return turn

    async def next(self) -> TurnInLine:
        """Waits for the next turn and makes it the current one; the one before it is over."""
        self._current = None
        self._current = await self._turns.receive()
        return self._current

    def interrupt(self) -> None:
        """Ends the turn under way and those that wait."""
        for waiting in self._drain():
            waiting.fail(Conflict("the message was interrupted before its turn"))
        if self._current is not None:
            self._current.scope.cancel()

    def fail_current(self, error: OublietteError) -> None:
        """Ends the turn under way, where there is one, with an error."""
        if self._current is not None:
            self._current.fail(error)

    def close(self, session: str) -> None:
        """Tells whoever waits for a turn that `session`, words for it, has ended."""
        self.fail_current(Conflict(f"{session} has ended during this turn"))
        for waiting in self._drain():
            waiting.fail(Conflict(f"{session} has ended before this message had its turn"))

    def _drain(self) -> list[TurnInLine]:
        turns = []
        while not self.is_empty:
            turns.append(self._turns.receive_nowait())
        return turns
