"""Whether a server over HTTP still lives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from oubliette.upstreams.connection import Fate
from oubliette.upstreams.liveness import PING_SECONDS, POLL_SECONDS, PROBE_EVERY, PROBE_SECONDS, Liveness, Ping


class Port:
    """Stands in for `trio.open_tcp_stream`, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        self.is_open = True
        self.is_mute = False
        monkeypatch.setattr(trio, "open_tcp_stream", self._open)

    async def _open(self, host: str, port: int) -> trio.abc.Stream:
        self.looks += 1
        await trio.lowlevel.checkpoint()
        if self.is_mute:
            await trio.sleep_forever()
        if not self.is_open:
            raise OSError("refused")
        return trio.testing.memory_stream_pair()[0]


@asynccontextmanager
async def watched(
    ping: Ping | None = None, poll: Callable[[], None] | None = None, standing: int = 0
) -> AsyncIterator[tuple[Liveness, Fate]]:
    fate = Fate()
    liveness = Liveness("example.org", 80, fate)
    liveness.standing = standing
    async with trio.open_nursery() as nursery:
        nursery.start_soon(liveness.watch, ping, poll)
        yield liveness, fate
        nursery.cancel_scope.cancel()


def answering(answer: bool, asked: list[float]) -> Callable[[], Awaitable[bool]]:
    async def ping() -> bool:
        await trio.lowlevel.checkpoint()
        asked.append(trio.current_time())
        return answer

    return ping


async def settle(seconds: float = 0) -> None:
    await trio.sleep(seconds)
    await trio.testing.wait_all_tasks_blocked()


async def test_where_nothing_stands_the_port_is_looked_at(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = Port(monkeypatch)
    async with watched() as (_, fate):
        await settle(10 * PROBE_EVERY)
        assert port.looks == 10
        port.is_open = False
        await settle(PROBE_EVERY)
        assert fate.reason == "nobody listens at example.org:80"


async def test_where_a_stream_stands_nobody_is_bothered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, asked = Port(monkeypatch), list[float]()
    async with watched(answering(True, asked), standing=1) as (_, fate):
        await settle(100)
        assert (port.looks, asked, fate.reason) == (0, [], None)


async def test_a_stream_that_breaks_is_looked_into_at_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, asked = Port(monkeypatch), list[float]()
    async with watched(answering(True, asked), standing=1) as (liveness, fate):
        await settle(0.1)
        liveness.doubt()
        await settle()
        assert (port.looks, asked, fate.reason) == (1, [0.1], None)
        port.is_open = False
        liveness.doubt()
        await settle()
        assert fate.reason == "nobody listens at example.org:80"


async def test_a_server_that_does_not_know_the_session_is_lost(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Port(monkeypatch)
    async with watched(answering(False, []), standing=1) as (liveness, fate):
        liveness.doubt()
        await settle()
        assert fate.reason == "it has forgotten the session"


async def test_a_ping_that_raises_doubts_of_its_own_is_not_followed_by_another(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Port(monkeypatch)
    asked: list[float] = []

    async def ping() -> bool:
        await trio.lowlevel.checkpoint()
        asked.append(trio.current_time())
        liveness.doubt()
        return True

    async with watched(ping, standing=1) as (liveness, _):
        liveness.doubt()
        await settle(10)
        assert len(asked) == 1


async def test_waits_have_an_end(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    port = Port(monkeypatch)

    async def never() -> bool:
        await trio.sleep_forever()
        raise AssertionError

    async with watched(never, standing=1) as (liveness, fate):
        liveness.doubt()
        await settle(PING_SECONDS)
        assert fate.reason == "it did not answer a ping for 5 s"
    port.is_mute = True
    async with watched(standing=1) as (liveness, fate):
        liveness.doubt()
        await settle(PROBE_SECONDS)
        assert fate.reason == "nobody answered at example.org:80 for 5 s"


async def test_what_nobody_tells_of_is_asked_for_now_and_then(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Port(monkeypatch)
    polls: list[float] = []
    async with watched(poll=lambda: polls.append(trio.current_time())) as (liveness, _):
        await settle(3 * POLL_SECONDS + 1)
        assert polls == pytest.approx([POLL_SECONDS, 2 * POLL_SECONDS, 3 * POLL_SECONDS], abs=PROBE_EVERY)
        # A stream has come to stand: what changed before, nobody has heard of.
        liveness.standing = 1
        await settle(PROBE_EVERY)
        assert len(polls) == 4
        await settle(10 * POLL_SECONDS)
        assert len(polls) == 4
