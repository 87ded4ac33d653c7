"""Changes that are carried to their end although their asker has left."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from oubliette.errands import Errands
from oubliette.errors import Conflict, ShuttingDown


@pytest.fixture
async def errands(nursery: trio.Nursery) -> AsyncIterator[Errands]:
    errands = Errands()
    await nursery.start(errands.run)
    yield errands
    nursery.cancel_scope.cancel()


async def test_the_result_and_the_error_are_the_askers(errands: Errands) -> None:
    async def succeed() -> list[int]:
        await trio.lowlevel.checkpoint()
        return [1]

    async def fail() -> int:
        raise Conflict("taken")

    assert await errands.carry_out(succeed) == [1]
    with pytest.raises(Conflict, match="taken"):
        await errands.carry_out(fail)


async def test_it_goes_on_when_its_asker_leaves(errands: Errands) -> None:
    steps: list[str] = []
    go_on, done = trio.Event(), trio.Event()

    async def work() -> None:
        steps.append("first")
        await go_on.wait()
        steps.append("second")
        done.set()

    with trio.move_on_after(0):
        await errands.carry_out(work)
    await trio.testing.wait_all_tasks_blocked()
    assert steps == ["first"]
    go_on.set()
    await done.wait()
    assert steps == ["first", "second"]


async def test_what_fails_when_nobody_waits_is_logged(errands: Errands, caplog: pytest.LogCaptureFixture) -> None:
    failed = trio.Event()

    async def fail() -> None:
        await trio.testing.wait_all_tasks_blocked()
        failed.set()
        raise OSError("canary")

    with trio.move_on_after(0):
        await errands.carry_out(fail)
    await failed.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert ["after its asker had left" in record.getMessage() for record in caplog.records] == [True]


async def test_an_asker_is_told_when_the_daemon_stops(nursery: trio.Nursery) -> None:
    errands = Errands()
    told: list[type[BaseException]] = []

    async def ask() -> None:
        with pytest.raises(ShuttingDown) as stopped:
            await errands.carry_out(trio.sleep_forever)
        told.append(stopped.type)

    async with trio.open_nursery() as owner:
        await owner.start(errands.run)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        owner.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert told == [ShuttingDown]
