"""Errands: changes that are carried to their end although whoever asked for them may leave.

A change of several durable steps must not stop between two of them because the peer of a request went away, and a write
that is cancelled "may be carried out all the same" (`store.py`): what is in memory would no longer agree with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, NoReturn, TypeVar

import trio
from msgspec import UNSET, UnsetType

from oubliette.errors import ShuttingDown
from oubliette.log import get as get_logger

T = TypeVar("T")
log = get_logger(__name__)


class Errands:
    """The nursery in which they run: as many as there are requests under way. `run` must be running."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Owns the errands' tasks. Runs until cancelled; errands end with it."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()
        raise AssertionError("sleep_forever returned")

    async def carry_out(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work` and returns its result, or raises its error. Being cancelled ends the waiting, not the work."""
        assert self._nursery is not None
        errand = _Errand(work)
        self._nursery.start_soon(errand.run)
        return await errand.outcome()


class _Errand(Generic[T]):
    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._done = trio.Event()
        self._is_awaited = True
        self._result: T | UnsetType = UNSET
        self._error: Exception | None = None

    async def run(self) -> None:
        try:
            self._result = await self._work()
        except Exception as error:
            self._error = error
            if not self._is_awaited:
                log.exception("what was asked for failed after its asker had left")
        finally:
            self._done.set()

    async def outcome(self) -> T:
        try:
            await self._done.wait()
        finally:
            self._is_awaited = False
        if self._error is not None:
            raise self._error
        if self._result is UNSET:
            raise ShuttingDown("the daemon is stopping; what was asked for may not have been done")
        return self._result
