"""The log of a session's events, its ring, and the feeds that read it (WIRE sections 4.3 and 5)."""

from __future__ import annotations

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.events import (
    LINGER,
    MAX_BATCH,
    MAX_BATCH_BYTES,
    Entry,
    EventLog,
    Feed,
    FellBehindError,
    Journal,
    RingLimits,
)
from oubliette.protocol.events import CallerToolResolved, Message
from tests.helpers.records import MemoryRecords


class Bench:
    """Some logs of one journal."""

    def __init__(self, *ids: str, limits: RingLimits | None = None, last_seq: int = 0) -> None:
        self.records = MemoryRecords()
        self.journal = Journal(self.records, limits or RingLimits(), last_seq)
        self.logs = [EventLog(id, self.journal) for id in ids or ("ses_1",)]

    @property
    def log(self) -> EventLog:
        return self.logs[0]


def say(log: EventLog, text: str = "x", *, count: int = 1) -> list[Entry]:
    return [log.append(Message, role="assistant", text=text) for _ in range(count)]


def indexes(entries: list[Entry]) -> list[int]:
    return [entry.index for entry in entries]


# The log


async def test_indexes_count_from_one_without_gaps_and_seq_over_all_sessions() -> None:
    bench = Bench("a", "b", last_seq=41)
    first, second = bench.logs
    order = [say(log)[0] for log in (first, second, second, first, second)]
    assert [(entry.session_id, entry.index) for entry in order] == [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("b", 3)]
    assert [entry.seq for entry in order] == [42, 43, 44, 45, 46]


async def test_every_event_reaches_the_records_as_it_is_delivered() -> None:
    bench = Bench()
    entries = say(bench.log, "hé\n", count=3)
    assert [(event.seq, event.index, event.type, event.data) for event in bench.records.stored] == [
        (entry.seq, entry.index, entry.type, entry.data) for entry in entries
    ]
    event = msgspec.json.decode(entries[0].data)
    assert (event["type"], event["session_id"], event["index"]) == ("message", "ses_1", 1)
    assert event["ts"].endswith("Z")
    assert b"\n" not in entries[0].data


@pytest.mark.parametrize(("appended", "kept"), [(0, 0), (4, 4), (5, 5), (6, 5), (50, 5)])
async def test_the_ring_is_bounded_by_events(appended: int, kept: int) -> None:
    bench = Bench(limits=RingLimits(events=5))
    say(bench.log, count=appended)
    newest = list(range(1, appended + 1))[-kept:] if kept else []
    assert indexes(bench.log.after(appended - kept, 100)) == newest
    assert bench.log.first_index == appended - kept + 1
    if appended > kept:
        with pytest.raises(FellBehindError):
            bench.log.after(appended - kept - 1, 100)


async def test_the_ring_is_bounded_by_bytes_and_keeps_the_newest_however_long() -> None:
    size = len(say(Bench().log, "x" * 1000)[0].data)
    bench = Bench(limits=RingLimits(bytes=3 * size + 10))
    say(bench.log, "x" * 1000, count=9)
    assert indexes(bench.log.after(6, 100)) == [7, 8, 9]
    say(bench.log, "x" * 100_000)
    assert indexes(bench.log.after(9, 100)) == [10]
    assert bench.log.first_index == 10
    say(bench.log, "x")
    assert indexes(bench.log.after(10, 100)) == [11]


async def test_a_page_has_a_limit() -> None:
    bench = Bench()
    say(bench.log, count=10)
    assert indexes(bench.log.after(3, 4)) == [4, 5, 6, 7]
    assert bench.log.after(10, 4) == []
    assert bench.log.after(99, 4) == []


async def test_what_was_evicted_is_told_by_seq() -> None:
    bench = Bench("a", "b", limits=RingLimits(events=2))
    first, second = bench.logs
    assert first.evicted_seq == 0
    entries = say(first, count=2) + say(second) + say(first)
    assert first.evicted_seq == entries[0].seq
    assert [first.index_at(entry.seq) for entry in entries] == [1, 2, 2, 3]


async def test_an_archived_log_has_nothing_in_its_ring() -> None:
    bench = Bench(last_seq=500)
    log = EventLog("old", bench.journal, last_index=7)
    assert (log.first_index, log.last_index, log.evicted_seq) == (8, 7, 500)
    with pytest.raises(FellBehindError):
        log.after(6, 10)
    assert log.after(7, 10) == []


async def test_a_closed_log_is_cleared_by_its_last_reader() -> None:
    bench = Bench()
    feeds = [Feed(), Feed()]
    for feed in feeds:
        feed.cover(bench.log, 0)
    newest = say(bench.log, count=3)[-1]
    bench.log.close()
    feeds[0].drop(bench.log)
    assert bench.log.first_index == 1
    assert indexes(feeds[1].take()) == [1, 2, 3]
    feeds[1].drop(bench.log)
    assert (bench.log.first_index, bench.log.evicted_seq) == (4, newest.seq)


async def test_a_log_that_nobody_reads_is_cleared_when_it_is_closed() -> None:
    bench = Bench()
    say(bench.log, count=3)
    bench.log.close()
    assert (bench.log.first_index, bench.log.last_index) == (4, 3)


async def test_a_log_is_in_use_until_its_last_reader_left(autojump_clock: MockClock) -> None:
    bench = Bench()
    say(bench.log)
    await trio.sleep(10)
    feed = Feed()
    feed.cover(bench.log, 1)
    assert (bench.log.is_followed, bench.log.last_used) == (True, 0.0)
    await trio.sleep(10)
    feed.drop(bench.log)
    assert (bench.log.is_followed, bench.log.last_used) == (False, 20.0)


# Feeds


async def test_a_feed_delivers_over_several_logs_in_the_order_in_which_things_happened() -> None:
    bench = Bench("a", "b", "c")
    feed = Feed()
    for log in bench.logs:
        feed.cover(log, 0)
    expected = [say(bench.logs[number % 3 if number % 5 else 0])[0] for number in range(40)]
    assert feed.take() == expected
    assert feed.take() == []


async def test_a_feed_starts_after_the_index_that_it_was_given() -> None:
    bench = Bench("a", "b")
    first, second = bench.logs
    say(first, count=5)
    say(second, count=5)
    feed = Feed()
    feed.cover(first, 3)
    feed.cover(second, 5)
    assert [(entry.session_id, entry.index) for entry in feed.take()] == [("a", 4), ("a", 5)]
    say(second)
    assert [(entry.session_id, entry.index) for entry in feed.take()] == [("b", 6)]


async def test_a_batch_is_bounded_by_events_over_all_logs_and_nothing_is_lost() -> None:
    bench = Bench("a", "b")
    feed = Feed()
    for log in bench.logs:
        feed.cover(log, 0)
    expected = [say(bench.logs[number % 2])[0] for number in range(2 * MAX_BATCH + 10)]
    batches = []
    while batch := feed.take():
        batches.append(batch)
    assert [len(batch) for batch in batches] == [MAX_BATCH, MAX_BATCH, 10]
    assert [entry for batch in batches for entry in batch] == expected


async def test_a_batch_is_bounded_by_bytes_but_for_one_event_that_is_longer() -> None:
    bench = Bench()
    feed = Feed()
    feed.cover(bench.log, 0)
    say(bench.log, "x" * (MAX_BATCH_BYTES // 3), count=4)
    say(bench.log, "x" * (2 * MAX_BATCH_BYTES))
    say(bench.log)
    assert [indexes(feed.take()) for _ in range(5)] == [[1, 2], [3, 4], [5], [6], []]


async def test_a_reader_that_falls_out_of_the_ring_is_told_so() -> None:
    bench = Bench(limits=RingLimits(events=3))
    feed = Feed()
    feed.cover(bench.log, 0)
    say(bench.log, count=3)
    assert indexes(feed.take()) == [1, 2, 3]
    say(bench.log, count=3)
    assert indexes(feed.take()) == [4, 5, 6]
    say(bench.log, count=4)
    with pytest.raises(FellBehindError):
        feed.take()


async def test_readers_share_the_events_whatever_their_pace() -> None:
    """ "never buffered without bound": a feed holds positions, and what it returns is the ring's own entries."""
    bench = Bench(limits=RingLimits(events=10))
    feeds = [Feed() for _ in range(3)]
    for feed in feeds:
        feed.cover(bench.log, 0)
    say(bench.log, count=10)
    batches = [feed.take() for feed in feeds]
    assert all(mine is yours for batch in batches for mine, yours in zip(batch, batches[0], strict=True))


async def test_a_waiting_feed_wakes_for_each_append_and_for_the_close(autojump_clock: MockClock) -> None:
    bench = Bench()
    feed = Feed()
    feed.cover(bench.log, 0)
    woken: list[float] = []

    async def follow() -> None:
        while not feed.has_finished(bench.log):
            await feed.wait()
            feed.take()
            woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        for _ in range(3):
            await trio.sleep(1)
            say(bench.log)
        await trio.sleep(1)
        bench.log.close()
    assert woken == [1.0, 2.0, 3.0, 4.0]


async def test_a_feed_with_something_ready_does_not_wait(autojump_clock: MockClock) -> None:
    bench = Bench()
    say(bench.log)
    feed = Feed()
    feed.cover(bench.log, 0)
    await feed.wait()
    assert indexes(feed.take()) == [1]


async def test_wake_ends_one_wait(autojump_clock: MockClock) -> None:
    feed = Feed()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.wait)
        await wait_all_tasks_blocked()
        feed.wake()
    with trio.move_on_after(1) as scope:
        await feed.wait()
    assert scope.cancelled_caught


async def test_a_dropped_log_is_no_longer_read() -> None:
    bench = Bench("a", "b")
    feed = Feed()
    for log in bench.logs:
        feed.cover(log, 0)
        say(log)
    feed.drop(bench.logs[0])
    say(bench.logs[0])
    assert [entry.session_id for entry in feed.take()] == ["b"]
    assert not bench.logs[0].is_followed


async def test_a_log_is_finished_when_it_is_closed_and_read() -> None:
    bench = Bench()
    feed = Feed()
    feed.cover(bench.log, 0)
    say(bench.log)
    heard = [feed.has_finished(bench.log)]
    bench.log.close()
    heard.append(feed.has_finished(bench.log))
    feed.take()
    heard.append(feed.has_finished(bench.log))
    assert heard == [False, False, True]


def resolve(log: EventLog) -> Entry:
    return log.append(CallerToolResolved, request_id="r", is_error=False, duration_ms=1)


async def test_what_can_wait_wakes_a_reader_soon(autojump_clock: MockClock) -> None:
    bench = Bench()
    feed = Feed()
    feed.cover(bench.log, 0)
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed.wait)
            await wait_all_tasks_blocked()
            resolved = resolve(bench.log)
            await trio.sleep(LINGER / 2)
            # A second one moves nothing: the first has waited already.
            second = resolve(bench.log)
    assert trio.current_time() == pytest.approx(LINGER)
    assert feed.take() == [resolved, second]


async def test_what_can_wait_goes_along_with_what_cannot(autojump_clock: MockClock) -> None:
    bench = Bench("a", "b")
    feed = Feed()
    for log in bench.logs:
        feed.cover(log, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.wait)
        await wait_all_tasks_blocked()
        expected = [resolve(bench.logs[0]), *say(bench.logs[1])]
    assert trio.current_time() == 0
    assert feed.take() == expected


async def test_what_came_while_nobody_waited_is_not_waited_for(autojump_clock: MockClock) -> None:
    bench = Bench()
    feed = Feed()
    feed.cover(bench.log, 0)
    resolved = resolve(bench.log)
    await feed.wait()
    assert (trio.current_time(), feed.take()) == (0, [resolved])
