"""Whatever happens, and however often a reader loses its stream: resuming loses and repeats nothing.

WIRE section 4.1: "resuming by one gives, for each session that the stream covers, what came after it".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from oubliette.events import Entry, FellBehindError
from oubliette.streams import Stream
from tests.helpers.streams import Followable, StreamBench

Op = tuple[str, int]
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.just(0)),
        st.tuples(st.just("say"), st.integers(0, 4)),
        st.tuples(st.just("burst"), st.integers(0, 4)),
        st.tuples(st.just("end"), st.integers(0, 4)),
        st.tuples(st.just("read"), st.integers(1, 5)),
        st.tuples(st.just("resume"), st.just(0)),
    ),
    max_size=40,
)


class Reader:
    """A caller on `GET /events` that resumes by the last number it was sent."""

    def __init__(self, bench: StreamBench) -> None:
        self.bench = bench
        self.got: list[Entry] = []
        self.live: list[Followable] = []
        self.ended: list[Followable] = []
        self.stream = bench.stream().stay_open()

    @property
    def last_seq(self) -> int:
        return self.got[-1].seq if self.got else 0

    def start(self, _: int = 0) -> None:
        session = self.bench.session()
        self.live.append(session)
        self.stream.cover(session, 0)
        session.say()

    def say(self, which: int, count: int = 1) -> None:
        if self.live:
            self.live[which % len(self.live)].say(count)

    def burst(self, which: int) -> None:
        self.say(which, 6)

    def end(self, which: int) -> None:
        if self.live:
            session = self.live.pop(which % len(self.live))
            session.end()
            self.ended.append(session)

    async def read(self, limit: int) -> bool:
        """Takes what is there; returns False where there is nothing."""
        try:
            with trio.move_on_after(1):
                self.got += await self.stream.batch(limit)
                return True
        except FellBehindError:
            await self.resume()
            return True
        return False

    async def resume(self, _: int = 0) -> None:
        """Loses the stream and opens another one, on which ended sessions are those of the records."""
        self.stream.close()
        self.stream = self.bench.stream().stay_open()
        archived = [self._archived(session) for session in self.ended]
        await self.stream.resume(
            self.last_seq, [(session, 0) for session in (*self.live, *archived)], self.bench.journal.last_seq
        )

    def _archived(self, session: Followable) -> Followable:
        archived = Followable(session.id, self.bench.journal, session.log.last_index)
        archived.relay.close()
        archived.log.close()
        return archived


async def follow(ring: int, ops: list[Op]) -> tuple[list[Any], list[Any]]:
    """Returns what a reader was sent, and what happened."""
    bench = StreamBench(ring)
    reader = Reader(bench)
    do: dict[str, Callable[[int], Awaitable[Any] | None]] = {
        name: getattr(reader, name) for name in ("start", "say", "burst", "end", "read", "resume")
    }
    for name, argument in ops:
        waiting = do[name](argument)
        if waiting is not None:
            await waiting
    while await reader.read(100):
        pass
    reader.stream.close()
    sent = [(entry.seq, entry.session_id, entry.index) for entry in reader.got]
    return sent, [(event.seq, event.session_id, event.index) for event in bench.records.stored]


@settings(max_examples=150, deadline=None)
@given(ring=st.sampled_from([1, 2, 3, 5, 1000]), ops=OPS)
def test_a_reader_of_many_sessions_is_sent_everything_once_and_in_order(ring: int, ops: list[Op]) -> None:
    sent, happened = trio.run(follow, ring, ops, clock=MockClock(autojump_threshold=0))
    assert sent == happened


async def follow_one(ring: int, steps: list[tuple[int, int, bool]]) -> list[int]:
    """A reader of one session, which it resumes by index. A step: what is said, what is read, whether it reconnects."""
    bench = StreamBench(ring)
    session = bench.session()
    got: list[int] = []
    stream = opened(bench, session, 0)
    for said, limit, reconnects in steps:
        session.say(said)
        got += [entry.index for entry in await stream.ready(limit)]
        if reconnects:
            stream.close()
            stream = opened(bench, session, got[-1] if got else 0)
    stream.close()
    stream = opened(bench, session, got[-1] if got else 0)
    got += [entry.index for entry in await stream.ready(10**6)]
    stream.close()
    return got


def opened(bench: StreamBench, session: Followable, after: int) -> Stream:
    stream = bench.stream()
    stream.cover(session, after)
    return stream


@settings(max_examples=150, deadline=None)
@given(
    ring=st.sampled_from([1, 2, 3, 5, 1000]),
    steps=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 7), st.booleans()), max_size=20),
)
def test_a_reader_of_one_session_is_sent_everything_once_and_in_order(
    ring: int, steps: list[tuple[int, int, bool]]
) -> None:
    got = trio.run(follow_one, ring, steps)
    assert got == list(range(1, sum(said for said, _, _ in steps) + 1))
