"""Who is told of changes: once each, however often they happen and however slowly they are read."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette import changes
from oubliette.changes import GATHER, LISTS, Changes, Watch
from oubliette.errors import LimitExceeded
from oubliette.events import EventLog, Journal, RingLimits
from oubliette.protocol.events import Message
from tests.helpers.records import MemoryRecords


def make_log() -> EventLog:
    return EventLog("ses_1", Journal(MemoryRecords(), RingLimits()))


def say(log: EventLog) -> None:
    log.append(Message, role="user", text="x")


async def test_a_change_is_told_once_to_each_who_watches_its_list(autojump_clock: MockClock) -> None:
    announced = Changes()
    with Watch(announced, LISTS) as everything, Watch(announced, ["tools"]) as tools:
        for _ in range(3):
            announced.announce("prompts")
            announced.announce("tools")
        assert await everything.next() == (["prompts", "tools"], [])
        assert await tools.next() == (["tools"], [])
        for watch in (everything, tools):
            with trio.move_on_after(60) as scope:
                await watch.next()
            assert scope.cancelled_caught
    announced.announce("tools")
    assert announced.watches == set()


async def test_what_follows_a_change_closely_is_told_with_it(autojump_clock: MockClock) -> None:
    announced = Changes()
    told: list[tuple[float, list[changes.List]]] = []
    with Watch(announced, LISTS) as watch:
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                for _ in range(2):
                    lists, _ = await watch.next()
                    told.append((trio.current_time(), lists))

            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            announced.announce("tools")
            await trio.sleep(GATHER / 2)
            announced.announce("resources")
            await trio.sleep(1)
            announced.announce("prompts")
    assert told == [(GATHER, ["tools", "resources"]), (GATHER / 2 + 1 + GATHER, ["prompts"])]


async def test_a_resource_is_followed_until_it_is_not(autojump_clock: MockClock) -> None:
    one, two = make_log(), make_log()
    with Watch(Changes(), LISTS) as watch:
        watch.follow("a", one)
        watch.follow("b", two)
        say(one)
        say(one)
        one.close()
        assert await watch.next() == ([], ["a"])
        say(two)
        watch.unfollow("b")
        watch.unfollow("b")
        say(two)
        say(one)
        assert await watch.next() == ([], ["a"])
        assert two.watchers == {}
    assert one.watchers == {}


async def test_following_again_changes_nothing(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    monkeypatch.setattr(changes, "MAX_RESOURCES", 2)
    first, later = make_log(), make_log()
    with Watch(Changes(), LISTS) as watch:
        watch.follow("a", first)
        watch.follow("b", make_log())
        say(first)
        watch.follow("a", later)
        assert first.watchers == {}
        assert await watch.next() == ([], ["a"]), "what was noted stays noted"
        say(later)
        assert await watch.next() == ([], ["a"])
        with pytest.raises(LimitExceeded):
            watch.follow("c", make_log())
        watch.unfollow("b")
        watch.follow("c", make_log())


async def test_two_watches_of_one_log_do_not_disturb_each_other(autojump_clock: MockClock) -> None:
    log, announced = make_log(), Changes()
    with Watch(announced, LISTS) as stays:
        stays.follow("a", log)
        with Watch(announced, LISTS) as leaves:
            leaves.follow("a", log)
            say(log)
            assert await leaves.next() == ([], ["a"])
        say(log)
        assert await stays.next() == ([], ["a"])


@pytest.mark.parametrize("ending", ["finish", "close"])
async def test_the_end_wakes_a_reader_with_nothing(ending: str) -> None:
    announced = Changes()
    watch = Watch(announced, LISTS)
    watch.follow("a", make_log())
    told: list[object] = []

    async def read() -> None:
        told.append(await watch.next())

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            getattr(watch, ending)()
    assert told == [([], [])]
    assert watch.has_ended
    assert await watch.next() == ([], [])
    watch.close()
    watch.close()
    assert announced.watches == set()


async def test_a_cancelled_reader_takes_nothing_away(autojump_clock: MockClock) -> None:
    announced = Changes()
    with Watch(announced, LISTS) as watch:
        announced.announce("tools")
        with trio.move_on_after(GATHER / 2):
            await watch.next()
        assert await watch.next() == (["tools"], [])
