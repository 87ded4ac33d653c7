"""Who is let in, how often one may be wrong, and what ends with a token (HAZARDS G12, T17, F33)."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette import gate as module
from oubliette.errors import Unauthorized
from oubliette.gate import BURST, LAST_WORDS, MAX_SOURCES, PER_SECOND, Buckets, Gate, TooManyFailures
from oubliette.records import TokenRecord
from oubliette.scopes import Scope
from oubliette.tokens import Principal, Tokens
from tests.helpers.audit import Unwritten
from tests.helpers.records import MemoryRecords

NOW = 1_800_000_000.0
WRONG = f"oub_nobody_{'0' * 64}"
HERE, THERE = "192.0.2.1", "192.0.2.2"


class Bench:
    """A gate, its tokens, and what it notes."""

    def __init__(self) -> None:
        self.records = MemoryRecords()
        self.tokens = Tokens(self.records)
        self.audit = Unwritten()
        self.gate = Gate(self.tokens, self.audit)
        self.ends: list[str] = []

    async def issue(self, expires_in: float | None = None) -> tuple[str, Principal]:
        token, _ = await self.tokens.create("mine", "admin", expires_in)
        return token, self.tokens.authenticate(token)

    def fail(self, source: str = HERE, token: str = WRONG) -> str:
        """Comes with a wrong token; returns the kind of the refusal."""
        try:
            self.gate.admit(token, door="http", source=source)
        except (Unauthorized, TooManyFailures) as error:
            return error.kind
        raise AssertionError("it was let in")

    async def stay(self, principal: Principal, name: str = "stream") -> None:
        """Does something for a principal until that is ended; `ends` has its name then."""
        try:
            with self.gate.lease(principal):
                await trio.sleep_forever()
        except Unauthorized:
            self.ends.append(name)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock goes as trio's does."""
    monkeypatch.setattr("oubliette.tokens.time.time", lambda: NOW + trio.current_time())


@asynccontextmanager
async def expiring(bench: Bench) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.tokens.expire)
        yield nursery
        nursery.cancel_scope.cancel()


# Buckets


async def test_a_bucket_gives_its_burst_and_then_its_rate(autojump_clock: MockClock) -> None:
    buckets = Buckets(3, 0.5, 10)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 2.0]
    await trio.sleep(1)
    assert buckets.take("a") == 1.0
    await trio.sleep(1)
    assert [buckets.take("a"), buckets.take("a")] == [0, 2.0]
    await trio.sleep(1000)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 2.0]


async def test_buckets_are_apart_and_the_one_used_longest_ago_is_forgotten() -> None:
    buckets = Buckets(1, 0.001, 2)
    for key in ("a", "b"):
        assert buckets.take(key) == 0
    assert buckets.take("a") > 0
    assert buckets.take("c") == 0
    assert len(buckets) == 2
    assert buckets.take("a") > 0
    assert buckets.take("b") == 0


# Failures


async def test_beyond_its_burst_a_source_is_told_to_come_back(autojump_clock: MockClock, bench: Bench) -> None:
    assert [bench.fail() for _ in range(BURST)] == ["unauthorized"] * BURST
    with pytest.raises(TooManyFailures) as refused:
        bench.gate.admit(WRONG, door="http", source=HERE)
    assert (refused.value.http_status, refused.value.code, refused.value.retry_after) == (429, -32006, 1)
    assert refused.value.__cause__ is refused.value.__context__ or refused.value.__suppress_context__
    await trio.sleep(1 / PER_SECOND)
    assert [bench.fail(), bench.fail()] == ["unauthorized", "limit_exceeded"]


async def test_others_and_valid_tokens_from_the_same_place_are_served(bench: Bench) -> None:
    """Behind a proxy all have one address: a client that fails must not lock out the others."""
    token, principal = await bench.issue()
    while bench.fail() == "unauthorized":
        pass
    assert bench.gate.admit(token, door="http", source=HERE) == principal
    assert bench.fail(THERE) == "unauthorized"


async def test_an_address_has_one_bucket_whatever_its_spelling(bench: Bench) -> None:
    while bench.fail("::ffff:192.0.2.1") == "unauthorized":
        pass
    assert bench.fail(HERE) == "limit_exceeded"
    while bench.fail("2001:db8::1") == "unauthorized":
        pass
    assert bench.fail("2001:db8::ffff:1") == "limit_exceeded"
    assert bench.fail("2001:db8:0:1::1") == "unauthorized"


async def test_a_request_without_a_token_is_no_try(bench: Bench) -> None:
    for _ in range(3 * BURST):
        assert bench.fail(token="") == "unauthorized"
    assert bench.fail() == "unauthorized"
    assert len(bench.audit.noted) == 1


async def test_memory_stays_flat_however_many_guess_from_wherever(bench: Bench) -> None:
    """HAZARDS T17."""

    def guess(first: int) -> None:
        for number in range(first, first + MAX_SOURCES):
            bench.fail(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
            bench.fail()

    guess(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        guess(MAX_SOURCES)
        assert tracemalloc.get_traced_memory()[0] - before < 1024 * 1024
    finally:
        tracemalloc.stop()
    assert len(bench.gate._failures) == MAX_SOURCES


async def test_failures_are_noted_without_the_token_and_not_beyond_what_is_bounded(
    autojump_clock: MockClock, bench: Bench
) -> None:
    for _ in range(2 * BURST):
        bench.fail()
    assert len(bench.audit.noted) == BURST
    line = bench.audit.noted[0]
    assert (line["action"], line["outcome"], line["source"], line["door"]) == (
        "authenticate",
        "unauthorized",
        HERE,
        "http",
    )
    assert WRONG not in str(bench.audit.noted)
    for number in range(2 * module.ALL_BURST):
        bench.fail(f"source {number}")
    assert len(bench.audit.noted) == module.ALL_BURST


async def test_of_an_expired_token_the_id_is_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    token, principal = await bench.issue(3600)
    monkeypatch.setattr("oubliette.tokens.time.time", lambda: NOW * 2)
    assert bench.fail(token=token) == "unauthorized"
    assert bench.audit.noted[0]["token_id"] == principal.token_id
    assert token not in str(bench.audit.noted)


# Leases


async def test_a_revocation_ends_what_is_open_of_that_token_alone(bench: Bench) -> None:
    _, mine = await bench.issue()
    _, yours = await bench.issue()
    async with trio.open_nursery() as nursery:
        for principal, name in ((mine, "a stream"), (mine, "a poll"), (yours, "yours")):
            nursery.start_soon(bench.stay, principal, name)
        await wait_all_tasks_blocked()
        await bench.tokens.revoke(mine.token_id)
        await wait_all_tasks_blocked()
        assert sorted(bench.ends) == ["a poll", "a stream"]
        nursery.cancel_scope.cancel()


async def test_nothing_is_left_of_what_ended_by_itself(bench: Bench) -> None:
    _, mine = await bench.issue()
    with bench.gate.lease(mine):
        assert len(bench.gate._leases[mine.token_id]) == 1
    with pytest.raises(RuntimeError), bench.gate.lease(mine):
        raise RuntimeError("the route failed")
    with trio.CancelScope() as scope, bench.gate.lease(mine):
        scope.cancel()
        await trio.lowlevel.checkpoint()
    assert bench.gate._leases[mine.token_id] == set()
    await bench.tokens.revoke(mine.token_id)
    assert mine.token_id not in bench.gate._leases


async def test_no_lease_begins_with_a_token_that_was_revoked_since(bench: Bench) -> None:
    _, mine = await bench.issue()
    await bench.tokens.revoke(mine.token_id)
    with pytest.raises(Unauthorized), bench.gate.lease(mine):
        raise AssertionError("it was let in")
    assert mine.token_id not in bench.gate._leases


async def test_what_was_done_in_the_meantime_is_done(bench: Bench) -> None:
    """A request whose work ends without waiting is answered, though its token was revoked under it."""
    _, mine = await bench.issue()
    with bench.gate.lease(mine):
        bench.gate._end(mine.token_id)
        answered = True
    assert answered


async def test_whoever_revokes_its_own_token_is_told(autojump_clock: MockClock, bench: Bench) -> None:
    _, mine = await bench.issue()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.stay, mine)
        await wait_all_tasks_blocked()
        with bench.gate.lease(mine):
            await bench.tokens.revoke(mine.token_id)
            await trio.sleep(LAST_WORDS / 2)
            answered = True
        assert answered
        assert bench.ends == ["stream"]


async def test_a_connection_over_which_its_own_token_is_revoked_ends_too(
    autojump_clock: MockClock, bench: Bench
) -> None:
    _, mine = await bench.issue()

    async def serve() -> None:
        with bench.gate.lease(mine):
            assert not bench.gate.has_ended
            await bench.tokens.revoke(mine.token_id)
            try:
                await trio.sleep_forever()
            finally:
                assert bench.gate.has_ended

    with pytest.raises(Unauthorized):
        await serve()
    assert trio.current_time() == pytest.approx(LAST_WORDS)


@pytest.mark.usefixtures("wall")
async def test_an_expiry_ends_what_is_open_when_it_comes(
    autojump_clock: MockClock, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    expiries = iter(("2027-01-15T08:00:20.000Z", "2027-01-15T08:00:10.000Z"))
    monkeypatch.setattr("oubliette.clock.seconds_from_now", lambda seconds: next(expiries))
    ended: dict[str, float] = {}
    bench.tokens.watchers.add(lambda token_id: ended.update({token_id: trio.current_time()}))
    async with expiring(bench) as nursery:
        await wait_all_tasks_blocked()
        _, later = await bench.issue(20)
        _, sooner = await bench.issue(10)
        _, forever = await bench.issue()
        for principal, name in ((later, "later"), (sooner, "sooner"), (forever, "for ever")):
            nursery.start_soon(bench.stay, principal, name)
        await trio.sleep(9.99)
        assert bench.ends == []
        await trio.sleep(0.02)
        assert bench.ends == ["sooner"]
        await trio.sleep(1000)
    assert bench.ends[:2] == ["sooner", "later"]
    assert ended == {sooner.token_id: pytest.approx(10), later.token_id: pytest.approx(20)}


@pytest.mark.usefixtures("wall")
async def test_a_jump_of_the_wall_clock_is_noticed(
    autojump_clock: MockClock, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAZARDS G14: "wall jumps change nothing but expiry"."""
    _, mine = await bench.issue(10**9)
    async with expiring(bench) as nursery:
        nursery.start_soon(bench.stay, mine)
        await wait_all_tasks_blocked()
        monkeypatch.setattr("oubliette.tokens.time.time", lambda: NOW * 2)
        await trio.sleep(31)
        assert bench.ends == ["stream"]


async def test_a_revocation_that_is_cancelled_half_way_is_one(bench: Bench) -> None:
    """The write may have been carried out: the token must not outlive its record."""

    class SlowRecords(MemoryRecords):
        async def delete_token(self, token_id: str) -> None:
            await trio.sleep_forever()

    tokens = Tokens(SlowRecords())
    told: list[str] = []
    tokens.watchers.add(told.append)
    token, record = await tokens.create("mine", "admin")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tokens.revoke, record.token_id)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with pytest.raises(Unauthorized):
        tokens.authenticate(token)
    assert told == [record.token_id]


async def test_two_who_revoke_one_token_tell_of_it_once(bench: Bench) -> None:
    _, mine = await bench.issue()
    told: list[str] = []
    bench.tokens.watchers.add(told.append)

    class Forgiving(MemoryRecords):
        async def delete_token(self, token_id: str) -> None:
            await trio.lowlevel.checkpoint()

    bench.tokens._store = Forgiving()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.tokens.revoke, mine.token_id)
        nursery.start_soon(bench.tokens.revoke, mine.token_id)
    assert told == [mine.token_id]


async def test_a_token_that_had_expired_before_is_let_in_nowhere(bench: Bench) -> None:
    record: Any = (await bench.tokens.create("mine", "admin", -1))[1]
    assert isinstance(record, TokenRecord)
    async with expiring(bench):
        await wait_all_tasks_blocked()
        with pytest.raises(Unauthorized), bench.gate.lease(Principal(record.token_id, Scope(None, False))):
            raise AssertionError("it was let in")
