"""The audit log: who changed what, through which door, and what came of it, one JSON line each.

A line is noted when its action ends, and written by a task of its own in a thread, so that no action waits for a disk.
While the disk fails, lines wait in their order, up to a bound; what does not fit is counted, and the count is written.

A line has ids, names of tools, scopes and kinds of error: never a message, a result, a value of an `env` or a token.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import trio

from oubliette import clock
from oubliette.errors import OublietteError
from oubliette.log import get as get_logger
from oubliette.log import masked
from oubliette.store_files import StoreError, open_private

# Where a call of a tool comes in.
Door = Literal["mcp", "http", "websocket", "link"]

AUDIT_FILE: Final = "audit.log"
# One file, and how many older ones are kept beside it: 60 MiB together, some 200,000 actions.
MAX_FILE_BYTES: Final = 10 * 1024 * 1024
KEPT: Final = 5
# Lines that wait for a disk that fails: 3 MiB as they usually are, 20 MiB at the most.
MAX_BACKLOG: Final = 10_000
# Between two tries to write to a disk that failed, in seconds.
RETRY_SECONDS: Final = 1.0
# How long `run`, once cancelled, goes on trying to write what waits.
CLOSE_SECONDS: Final = 2.0
# The objects of an action are told by these arguments of its tool, and by these members of its result.
OBJECTS: Final = ("project_id", "workspace_id", "session_id", "request_id", "token_id", "scope")
# Ids and scopes are short; what is longer is not one.
MAX_VALUE: Final = 200

log = get_logger(__name__)


class AuditFile:
    """The file at `path`, mode 0600. At `max_bytes` it becomes `path.1`, that one `path.2`, and so on up to `kept`.

    Raises StoreError where the file cannot be had, or is not a file of ours alone (HAZARDS T11).
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES, kept: int = KEPT) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._descriptor = open_private(path)
        self._end_last_line()

    def append(self, lines: bytes) -> None:
        """Appends whole lines, all of them or none. Raises OSError or StoreError."""
        size = os.fstat(self._descriptor).st_size
        if size and size + len(lines) > self._max_bytes:
            self._rotate()
            size = 0
        try:
            self._write(lines, size)
        except OSError:
            os.ftruncate(self._descriptor, size)
            raise

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, lines: bytes, at: int) -> None:
        rest = memoryview(lines)
        while rest:
            written = os.pwrite(self._descriptor, rest, at)
            rest, at = rest[written:], at + written

    def _rotate(self) -> None:
        # The new file comes first: where it cannot be had, nothing has moved.
        fresh = self._beside("new")
        descriptor = open_private(fresh)
        for number in range(self._kept, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(self._beside(number - 1) if number > 1 else self._path, self._beside(number))
        os.replace(fresh, self._path)
        os.close(self._descriptor)
        self._descriptor = descriptor

    def _beside(self, suffix: int | str) -> Path:
        return self._path.with_name(f"{self._path.name}.{suffix}")

    def _end_last_line(self) -> None:
        """A machine that lost its power may have left half a line; the next one must not be a part of it."""
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            self._write(b"\n", size)


class Audit:
    """Notes what is done. `run` must be running for lines to be written.

    Where they cannot be, actions go on: an operator who could lock everybody out by filling a disk would be worse off
    than one whose log has a gap that says so. The failure is logged once, and so is its end.
    """

    def __init__(self, file: AuditFile) -> None:
        self._file = file
        self._lines: deque[bytes] = deque()
        self._queued = trio.Event()
        self._lost = 0
        self._is_failing = False
        # A thread of its own, whatever the others are stuck in.
        self._turn = trio.CapacityLimiter(1)

    def note(self, action: str, outcome: str, on: Mapping[str, str] | None = None, **who: str | int | None) -> None:
        """Adds a line: who did what, on which objects. `outcome` is `ok` or the kind of an error; None is left out."""
        if len(self._lines) >= MAX_BACKLOG:
            self._lost += 1
            return
        line = {"ts": clock.now(), **_told(who), "action": action, "on": _told(on or {}), "outcome": outcome}
        self._lines.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._queued.set()

    def action(self, action: str, only: Container[str] | None = None, **who: str | None) -> Action:
        """Returns a context manager whose end is noted: `ok`, or the kind of the error that ended it.

        With `only`, other outcomes are not. `who` are fields of the line.
        """
        return Action(self, action, only, who)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes what is noted until it is cancelled, then what waits, within CLOSE_SECONDS."""
        task_status.started()
        try:
            while True:
                await self._queued.wait()
                await self._write()
                if self._is_failing:
                    await trio.sleep(RETRY_SECONDS)
        finally:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._write()
            self._file.close()

    async def _write(self) -> None:
        batch = list(self._lines)
        if not batch:
            return
        try:
            await trio.to_thread.run_sync(self._file.append, b"".join(batch), limiter=self._turn)
        except (OSError, StoreError) as error:
            self._has_failed(error)
        else:
            self._has_written(len(batch))

    def _has_failed(self, error: Exception) -> None:
        if not self._is_failing:
            log.error("the audit log cannot be written; actions go on", reason=str(error))
        self._is_failing = True

    def _has_written(self, count: int) -> None:
        for _ in range(count):
            self._lines.popleft()
        if not self._lines:
            self._queued = trio.Event()
        if self._is_failing:
            log.warning("the audit log is written again", lost=self._lost)
        self._is_failing = False
        if self._lost:
            lost, self._lost = self._lost, 0
            self.note("audit.lost", "ok", lines=lost)


class Action:
    """One action under way; see `Audit.action`."""

    def __init__(self, audit: Audit, name: str, only: Container[str] | None, who: dict[str, str | None]) -> None:
        self._audit = audit
        self._name = name
        self._only = only
        self._who = who
        self._things: list[object] = []

    def concerns(self, thing: object) -> None:
        """Says that the action is about the objects that `thing`, its arguments or its result, names."""
        self._things.append(thing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome = outcome_of(error)
        if self._only is None or outcome in self._only:
            self._audit.note(self._name, outcome, _objects(self._things), **self._who)


def outcome_of(error: BaseException | None) -> str:
    """Returns how an action that `error` ended is told of; errors that are none of ours are ours to mend."""
    if error is None:
        return "ok"
    if isinstance(error, OublietteError):
        return error.kind
    return "cancelled" if isinstance(error, trio.Cancelled) else "internal_error"


def _objects(things: Iterable[object]) -> dict[str, str]:
    named = ((name, getattr(thing, name, None)) for thing in things for name in OBJECTS)
    return {name: value for name, value in named if isinstance(value, str)}


def _told(fields: Mapping[str, str | int | None]) -> dict[str, str | int]:
    given = {name: value for name, value in fields.items() if value is not None}
    return {name: masked(value, MAX_VALUE) if isinstance(value, str) else value for name, value in given.items()}
