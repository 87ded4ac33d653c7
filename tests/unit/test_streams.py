"""What a stream delivers, and whom it counts (WIRE sections 3 and 4.3)."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.events import MAX_BATCH_BYTES, Entry, FellBehindError
from oubliette.records import StoredEvent
from oubliette.streams import HISTORY_PAGE, MAX_READY_BYTES, Stream
from tests.helpers.records import MemoryRecords
from tests.helpers.streams import OTHER, Followable, StreamBench, decoded, indexes, read_ready

# A stream without a resume point


async def test_a_stream_begins_with_what_is_pending_without_numbers() -> None:
    bench = StreamBench()
    session = bench.session()
    session.say(2)
    pending = [session.request(), session.request(), session.request()]
    session.relay.resolve(pending[1].request_id, b"1")
    with bench.stream() as stream:
        stream.cover(session)
        session.say()
        entries = await read_ready(stream)
        assert indexes(entries) == [0, 0, 7]
        assert [event["index"] for event in decoded(entries)] == [3, 5, 7]
        assert [one.given for one in pending] == [True, False, True]


async def test_a_request_is_given_once_on_a_stream_and_again_on_another() -> None:
    bench = StreamBench()
    session = bench.session()
    first = session.request()
    standing = bench.stream()
    standing.cover(session)
    for _ in range(2):
        with bench.stream() as stream:
            stream.cover(session)
            second = session.request()
            session.say()
            events = decoded(await read_ready(stream))
            ids = [event["request_id"] for event in events if event["type"] == "caller_tool_request"]
            assert ids.count(first.request_id) == ids.count(second.request_id) == 1
            assert await read_ready(stream) == []
            stream.cover(session, 0)
            assert await read_ready(stream) == [], "it covers the session already"
    standing.close()


async def test_what_ends_before_a_reader_came_is_not_pending_and_not_told_again() -> None:
    bench = StreamBench()
    session = bench.session()
    session.relay.resolve(session.request().request_id, b"1")
    with bench.stream() as stream:
        stream.cover(session)
        assert await read_ready(stream) == []


# A stream with a resume point


@pytest.mark.parametrize("after", [0, 1, 5, 6, 9, 10])
async def test_a_stream_resumes_by_index_from_the_ring_and_from_the_records(after: int) -> None:
    bench = StreamBench(ring=4)  # it holds 7 to 10
    session = bench.session()
    session.say(10)
    with bench.stream() as stream:
        stream.cover(session, after)
        entries = await read_ready(stream)
        session.say()
        entries += await read_ready(stream)
        assert indexes(entries) == list(range(after + 1, 12))
        assert [event["type"] for event in decoded(entries)] == ["message"] * (11 - after)


async def test_a_long_history_comes_in_pages_and_what_happens_meanwhile_follows() -> None:
    bench = StreamBench(ring=4)
    session = bench.session()
    session.say(2 * HISTORY_PAGE + 7)
    with bench.stream() as stream:
        stream.cover(session, 0)
        sizes, got = [], []
        while batch := await stream.batch():
            sizes.append(len(batch))
            got += indexes(batch)
            if len(sizes) == 3:
                session.say(2)
                session.end()
        assert sizes == [256, 244, 256, 244, 7, 3]
        assert got == list(range(1, 2 * HISTORY_PAGE + 11))


async def test_the_jump_after_a_crash_is_announced() -> None:
    """WIRE section 5: "one jump after a crash of the daemon, announced by `events_purged`"."""
    bench = StreamBench()
    bench.session("ses_old").say(3)
    after_crash = bench.session("ses_old", last_index=100_003)
    after_crash.say()
    archived = bench.session("ses_old", last_index=100_004)
    archived.relay.close()
    archived.log.close()
    with bench.stream() as stream:
        stream.cover(archived, 0)
        entries = await stream.batch()
        assert indexes(entries) == [1, 2, 3, 0, 100_004]
        notice = decoded(entries)[3]
        assert {key: notice[key] for key in ("type", "session_id", "since_index", "first_index")} == {
            "type": "events_purged",
            "session_id": "ses_old",
            "since_index": 3,
            "first_index": 100_004,
        }
        assert notice["ts"].endswith("Z")
        assert "index" not in notice
        assert await stream.batch() == []


async def test_what_a_cleanup_removed_is_announced_first() -> None:
    bench = StreamBench(ring=2)
    session = bench.session()
    session.say(6)
    del bench.records.stored[:3]
    with bench.stream() as stream:
        stream.cover(session, 1)
        entries = await read_ready(stream)
        assert indexes(entries) == [0, 4, 5, 6]
        assert (decoded(entries)[0]["since_index"], decoded(entries)[0]["first_index"]) == (1, 4)


async def test_two_sessions_may_both_be_read_from_the_records() -> None:
    bench = StreamBench(ring=2)
    first, second = bench.session(), bench.session()
    for session in (first, second, first):
        session.say(3)
    with bench.stream() as stream:
        stream.cover(first, 1)
        stream.cover(second, 0)
        got: dict[str, list[int]] = {first.id: [], second.id: []}
        for entry in await read_ready(stream):
            got[entry.session_id].append(entry.index)
        assert got == {first.id: [2, 3, 4, 5, 6], second.id: [1, 2, 3]}


@pytest.mark.parametrize("ring", [100, 3])
@pytest.mark.parametrize("resume_at", range(13))
async def test_a_resumed_stream_of_several_sessions_is_in_order_without_loss(ring: int, resume_at: int) -> None:
    bench = StreamBench(ring=ring)
    sessions = [bench.session(), bench.session()]
    for number in range(12):
        sessions[number % 2].say()
    with bench.stream().stay_open() as stream:
        await stream.resume(resume_at, [(session, 0) for session in sessions], bench.journal.last_seq)
        entries = await read_ready(stream)
        sessions[1].say()
        entries += await read_ready(stream)
        assert [entry.seq for entry in entries] == list(range(resume_at + 1, 14))
        assert all(entry.index for entry in entries)


@pytest.mark.parametrize("ring", [100, 2])
async def test_a_resumed_stream_gives_of_each_session_what_comes_after_its_index(ring: int) -> None:
    """WIRE section 4.1: "from the event that made it so"."""
    bench = StreamBench(ring=ring)
    first, second = bench.session(), bench.session()
    first.say(4)
    second.say(4)
    with bench.stream().stay_open() as stream:
        await stream.resume(1, [(first, 2), (second, 3)], bench.journal.last_seq)
        entries = await read_ready(stream)
        assert [(entry.session_id, entry.index) for entry in entries] == [(first.id, 3), (first.id, 4), (second.id, 4)]


class RacingRecords(MemoryRecords):
    """Records during whose reading something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.while_reading: list[trio.Event] = []
        self.reached = trio.Event()

    async def last_indexes(self, seq: int, sessions: Collection[str]) -> dict[str, int]:
        self.reached.set()
        for event in self.while_reading:
            await event.wait()
        return await super().last_indexes(seq, sessions)

    async def events_of(self, session_id: str, after_index: int, limit: int) -> list[StoredEvent]:
        self.reached.set()
        for event in self.while_reading:
            await event.wait()
        return await super().events_of(session_id, after_index, limit)


async def test_a_session_that_is_covered_already_is_not_read_twice_by_a_resume() -> None:
    """A session may start while those of before are looked up; it is then in the lookup's answer too."""
    bench = StreamBench(ring=3)
    old, new = bench.session(), bench.session()
    old.say(5)
    with bench.stream().stay_open() as stream:
        stream.cover(new, 0)
        new.say(2)
        await stream.resume(1, [(old, 0), (new, 0)], bench.journal.last_seq)
        new.say()
        got = [(entry.session_id, entry.index) for entry in await read_ready(stream)]
        assert [index for id, index in got if id == old.id] == [2, 3, 4, 5]
        assert [index for id, index in got if id == new.id] == [1, 2, 3]


async def test_a_session_may_be_covered_while_a_resume_reads_the_records() -> None:
    bench = StreamBench(ring=2)
    bench.records = records = RacingRecords()
    bench.journal.sink = records
    release = trio.Event()
    records.while_reading = [release]
    old, new = bench.session(), bench.session()
    old.say(5)
    with bench.stream().stay_open() as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.resume, 1, [(old, 0)], bench.journal.last_seq)
            await records.reached.wait()
            stream.cover(new, 0)
            new.say()
            release.set()
        assert [(entry.session_id, entry.index) for entry in await read_ready(stream)] == [
            *((old.id, index) for index in (2, 3, 4, 5)),
            (new.id, 1),
        ]
        assert {session.id for session, _ in stream.mute()} == {old.id, new.id}


async def test_an_opening_that_is_cancelled_leaves_nobody_attached(autojump_clock: MockClock) -> None:
    bench = StreamBench(ring=2)
    bench.records = records = RacingRecords()
    bench.journal.sink = records
    records.while_reading = [trio.Event()]
    session = bench.session()
    session.say(5)
    with trio.move_on_after(1) as scope, bench.stream() as stream:
        await stream.resume(1, [(session, 0)], bench.journal.last_seq)
    assert scope.cancelled_caught
    assert not session.relay.is_attached
    assert not session.log.is_followed


async def test_a_reading_that_is_cancelled_goes_on_where_it_was(autojump_clock: MockClock) -> None:
    """Keep-alives cancel `batch` every 15 s: nothing is lost by it."""
    bench = StreamBench(ring=2)
    bench.records = records = RacingRecords()
    bench.journal.sink = records
    release = trio.Event()
    records.while_reading = [release]
    session = bench.session()
    session.say(5)
    with bench.stream() as stream:
        stream.cover(session, 0)
        for _ in range(3):
            with trio.move_on_after(15) as scope:
                await stream.batch()
            assert scope.cancelled_caught
        release.set()
        session.say()
        assert indexes(await read_ready(stream)) == [1, 2, 3, 4, 5, 6]
        with trio.move_on_after(15):
            await stream.batch()
        session.say()
        assert indexes(await stream.batch()) == [7]


async def test_a_reader_that_is_too_slow_is_told_and_resumes(autojump_clock: MockClock) -> None:
    bench = StreamBench(ring=3)
    session = bench.session()
    with bench.stream() as stream:
        stream.cover(session)
        session.say(4)
        with pytest.raises(FellBehindError):
            await stream.batch()
    with bench.stream() as stream:
        stream.cover(session, 0)
        assert indexes(await read_ready(stream)) == [1, 2, 3, 4]


# Who counts


async def test_only_the_owners_streams_count_and_give() -> None:
    bench = StreamBench()
    session = bench.session()
    pending = session.request()
    with bench.stream(OTHER) as observer:
        observer.cover(session)
        assert decoded(await read_ready(observer))[0]["request_id"] == pending.request_id
        assert (session.relay.is_attached, pending.given) == (False, False)
    with bench.stream() as stream:
        stream.cover(session)
        assert (session.relay.is_attached, pending.given) == (True, False)
        await read_ready(stream)
        assert (session.relay.is_attached, pending.given) == (True, True)
    assert session.relay.is_attached is False


async def test_a_reader_that_does_not_count_still_gives() -> None:
    """A page that is fetched without waiting is no stream, but its requests may be carried out."""
    bench = StreamBench()
    session = bench.session()
    pending = session.request()
    with bench.stream(counts=False) as stream:
        stream.cover(session, 0)
        assert not session.relay.is_attached
        await read_ready(stream)
    assert pending.given


async def test_a_page_gives_no_more_than_it_returns() -> None:
    bench = StreamBench()
    session = bench.session()
    pending = [session.request() for _ in range(3)]
    with bench.stream() as stream:
        stream.cover(session, 0)
        assert indexes(await stream.ready(2)) == [1, 2]
    assert [one.given for one in pending] == [True, True, False]


async def test_a_batch_with_a_limit_gives_no_more_than_it_returns() -> None:
    bench = StreamBench()
    session = bench.session()
    with bench.stream() as stream:
        stream.cover(session, 0)
        pending = [session.request() for _ in range(3)]
        assert indexes(await stream.batch(2)) == [1, 2]
    assert [one.given for one in pending] == [True, True, False]


async def test_pages_and_batches_are_bounded_by_bytes() -> None:
    bench = StreamBench(ring=3)
    session = bench.session()
    session.say(5, "x" * (MAX_READY_BYTES // 3))
    sizes = []
    for after in (0, 2, 4):
        with bench.stream() as stream:
            stream.cover(session, after)
            sizes.append(len(await stream.ready(1000)))
    assert sizes == [2, 2, 1]
    session = bench.session()
    for number in range(4):
        session.relay.begin("send", b'{"text":"%b"}' % (b"%d" % number * (MAX_BATCH_BYTES // 2)))
    with bench.stream() as stream:
        stream.cover(session)
        assert [len(await stream.batch()) for _ in range(4)] == [1, 1, 1, 1]


async def test_a_poll_lingers_and_a_stream_does_not(autojump_clock: MockClock) -> None:
    bench = StreamBench()
    session = bench.session()
    stream = bench.stream()
    stream.cover(session)
    stream.close(linger=15)
    stream.close()
    counted = []
    for seconds in (0, 14.9, 0.1):
        await trio.sleep(seconds)
        counted.append(session.relay.is_attached)
    assert counted == [True, True, False]


# Muted


async def test_a_muted_stream_neither_counts_nor_delivers() -> None:
    bench = StreamBench()
    session = bench.session()
    with bench.stream().stay_open() as stream:
        stream.cover(session)
        session.say(2)
        await read_ready(stream)
        assert stream.mute() == [(session, 2)]
        assert not session.relay.is_attached
        session.say()
        assert await read_ready(stream) == []


async def test_a_stream_that_is_muted_while_it_reads_the_records_delivers_no_more(autojump_clock: MockClock) -> None:
    bench = StreamBench(ring=2)
    bench.records = records = RacingRecords()
    bench.journal.sink = records
    release = trio.Event()
    records.while_reading = [release]
    session = bench.session()
    session.say(5)
    with bench.stream().stay_open() as stream:
        stream.cover(session, 0)
        with trio.move_on_after(10) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.batch)
                await records.reached.wait()
                stream.mute()
                release.set()
        assert scope.cancelled_caught, "it neither delivered nor ended"


async def test_an_unmuted_stream_is_given_what_it_was_not_given_before() -> None:
    bench = StreamBench()
    session = bench.session()
    with bench.stream().stay_open() as stream:
        stream.cover(session)
        given = session.request()
        await read_ready(stream)
        with bench.stream() as other:
            other.cover(session)
            ((_, seen),) = stream.mute()
            unheard = session.request()
            stream.cover(session, seen=seen)
            events = decoded(await read_ready(stream))
            assert [event["request_id"] for event in events] == [unheard.request_id]
            assert given.given


async def test_what_was_pending_and_not_yet_delivered_when_it_was_muted_is_given_later() -> None:
    bench = StreamBench()
    session = bench.session()
    pending = session.request()
    session.say(3)
    with bench.stream().stay_open() as stream, bench.stream() as other:
        other.cover(session)
        stream.cover(session)
        ((_, seen),) = stream.mute()
        stream.cover(session, seen=seen)
        assert decoded(await read_ready(stream))[0]["request_id"] == pending.request_id


# The end


async def reads_to_the_end(stream: Stream) -> list[Entry]:
    got: list[Entry] = []
    while batch := await stream.batch():
        got += batch
    return got


async def test_a_stream_of_one_session_ends_after_its_last_event() -> None:
    bench = StreamBench()
    session = bench.session()
    session.request()
    with bench.stream() as stream:
        stream.cover(session)
        session.end()
        types = [event["type"] for event in decoded(await reads_to_the_end(stream))]
        assert types == ["caller_tool_request", "caller_tool_cancelled", "session_ended"]
        assert not session.log.is_followed


async def test_a_stream_of_a_session_that_had_ended_ends_at_once() -> None:
    bench = StreamBench()
    session = bench.session()
    session.say(2)
    session.end()
    with bench.stream() as stream:
        stream.cover(session)
        assert await stream.batch() == []
    with bench.stream() as stream:
        stream.cover(session, 0)
        assert indexes(await reads_to_the_end(stream)) == [1, 2, 3]


async def test_a_stream_that_stays_open_waits_for_other_sessions(autojump_clock: MockClock) -> None:
    bench = StreamBench()
    first = bench.session()
    got: list[Entry] = []

    async def read(stream: Stream) -> None:
        got.extend(await reads_to_the_end(stream))

    with bench.stream().stay_open() as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, stream)
            stream.cover(first)
            first.end()
            await wait_all_tasks_blocked()
            second = bench.session()
            stream.cover(second, 0)
            second.say()
            await wait_all_tasks_blocked()
            assert [entry.session_id for entry in got] == []
            second.end()
            stream.finish()
    assert [entry.session_id for entry in got] == [first.id, second.id, second.id]


async def test_finish_ends_a_waiting_stream_behind_the_last_event(autojump_clock: MockClock) -> None:
    bench = StreamBench()
    with bench.stream().stay_open() as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.batch)
            await wait_all_tasks_blocked()
            stream.finish()
        assert await stream.batch() == []
        assert not stream.has_ended


async def test_end_ends_a_waiting_stream_at_once(autojump_clock: MockClock) -> None:
    bench = StreamBench()
    session = bench.session()
    with bench.stream() as stream:
        stream.cover(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.batch)
            await wait_all_tasks_blocked()
            stream.end()
        session.say()
        assert await stream.batch() == []
        assert stream.has_ended


async def test_a_closed_stream_is_detached_from_everything() -> None:
    bench = StreamBench()
    sessions: list[Followable] = [bench.session() for _ in range(3)]
    stream = bench.stream()
    for session in sessions:
        stream.cover(session)
    stream.close()
    stream.close()
    assert not any(session.relay.is_attached or session.log.is_followed for session in sessions)


async def test_a_stream_over_nothing_ends() -> None:
    with StreamBench().stream() as stream:
        assert await stream.batch() == []


async def test_data_is_delivered_as_it_was_recorded() -> None:
    bench = StreamBench()
    session = bench.session()
    session.relay.begin("send", b'{"n":1.10}')
    with bench.stream() as stream:
        stream.cover(session, 0)
        (entry,) = await read_ready(stream)
        assert entry.data == bench.records.stored[0].data
        assert msgspec.json.decode(entry.data, type=dict[str, msgspec.Raw])["arguments"] == msgspec.Raw(b'{"n":1.10}')


async def test_a_reader_whose_session_is_removed_is_told_what_is_gone() -> None:
    """WIRE section 4.3: "where something asked for is gone, `events_purged` comes"."""
    bench = StreamBench()
    session = bench.session()
    session.say(HISTORY_PAGE + 10)
    session.log.close()
    with bench.stream() as stream:
        stream.cover(session, 0)
        first = await stream.batch(HISTORY_PAGE)
        bench.records.stored.clear()
        rest = [entry for batch in range(3) for entry in await stream.batch(HISTORY_PAGE)]
        read = len(first) + len(rest) - 1
        (purged,) = [event for event in decoded(rest) if event["type"] == "events_purged"]
        assert (purged["since_index"], purged["first_index"]) == (read, session.log.last_index + 1)
        assert await stream.batch() == []
