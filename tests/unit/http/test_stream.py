"""The writing of a stream: comments while nothing happens, and every way in which it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.events import RingLimits
from oubliette.http.request import Request
from oubliette.http.stream import FELL_BEHIND, KEEP_ALIVE_SECONDS, OPENED, TAKEN_OVER, write_events
from oubliette.protocol.sse import KEEP_ALIVE
from oubliette.session import Session
from oubliette.streams import Stream
from tests.helpers.domain import Domain, open_domain


class Written:
    """What was written to the peer, and what the peer does."""

    def __init__(self) -> None:
        self.chunks: list[tuple[float, bytes]] = []
        self.gone = trio.Event()
        self.reads = trio.Event()
        self.reads.set()
        self.has_ended = False
        headers: Any = []
        scope = {"method": "GET", "path": "/", "headers": headers, "query_string": b""}
        self.request = Request(scope, self._receive, self._send)

    @property
    def data(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.body":
            self.chunks.append((trio.current_time(), message["body"]))
            self.has_ended = not message["more_body"]


@asynccontextmanager
async def writing(stream: Stream, **options: Any) -> AsyncIterator[Written]:
    written = Written()
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            with stream:
                await write_events(written.request, stream, lambda entry: b"<%d>" % entry.index, **options)

        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        yield written
        nursery.cancel_scope.cancel()


def is_attached(session: Session) -> bool:
    return session.relay.is_attached


@pytest.fixture
async def domain(tmp_path: Path) -> AsyncIterator[Domain]:
    async with open_domain(tmp_path, ring=RingLimits(events=3)) as domain:
        yield domain


async def test_a_comment_comes_every_15_seconds_while_nothing_happens(
    domain: Domain, autojump_clock: MockClock
) -> None:
    session = await domain.start()
    async with writing(domain.stream(session)) as written:
        start = trio.current_time()
        await trio.sleep(40)
        session.message("hi")
        await trio.sleep(16)
        times = [(round(at - start), chunk) for at, chunk in written.chunks]
        assert times == [(0, OPENED), (15, KEEP_ALIVE), (30, KEEP_ALIVE), (40, b"<3>"), (55, KEEP_ALIVE)]
    assert KEEP_ALIVE_SECONDS == 15


async def test_the_stream_ends_with_its_session(domain: Domain) -> None:
    session = await domain.start()
    async with writing(domain.stream(session, after=0)) as written:
        await domain.sessions.end(session)
        await wait_all_tasks_blocked()
        assert written.data == OPENED + b"<1><2><3>"
        assert written.has_ended
        assert not is_attached(session)


async def test_a_reader_that_falls_behind_is_told_and_the_stream_ends(domain: Domain) -> None:
    session = await domain.start()
    async with writing(domain.stream(session)) as written:
        written.reads = trio.Event()
        for number in range(6):
            session.message(str(number))
            await wait_all_tasks_blocked()
        assert is_attached(session)
        written.reads.set()
        await wait_all_tasks_blocked()
        assert written.data == OPENED + b"<3>" + FELL_BEHIND
        assert written.has_ended
        assert not is_attached(session)


async def test_a_peer_that_leaves_ends_the_stream_at_once(domain: Domain) -> None:
    session = await domain.start()
    async with writing(domain.stream(session)) as written:
        assert is_attached(session)
        written.gone.set()
        await wait_all_tasks_blocked()
        assert not is_attached(session)
        assert not written.has_ended, "there is nobody to tell"


async def test_whoever_ends_a_stream_may_say_why(domain: Domain) -> None:
    session = await domain.start()
    stream = domain.stream(session)
    async with writing(stream, farewell=lambda: TAKEN_OVER) as written:
        stream.end()
        await wait_all_tasks_blocked()
        assert written.data == OPENED + TAKEN_OVER
        assert written.has_ended


async def test_what_is_ready_is_written_in_one_piece(domain: Domain) -> None:
    session = await domain.start()
    async with writing(domain.stream(session)) as written:
        session.message("one")
        session.message("two")
        await wait_all_tasks_blocked()
        assert [chunk for _, chunk in written.chunks] == [OPENED, b"<3><4>"]
