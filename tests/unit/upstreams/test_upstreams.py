"""Servers that come, go and change with the configuration."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from oubliette.errors import NotFound, ServerDisconnected
from oubliette.upstreams import Upstreams
from oubliette.upstreams.connection import Attempt
from tests.unit.upstreams.fake import Config, FakeServer, Watched, running


async def settled(seconds: float = 0) -> None:
    await trio.sleep(seconds)
    await trio.testing.wait_all_tasks_blocked()


async def test_what_is_configured_before_it_runs_is_connected_when_it_does(autojump_clock: MockClock) -> None:
    upstreams = Watched(one=FakeServer())
    upstreams.configure({"one": Config()})
    assert (upstreams.status, dict(upstreams.tools)) == ({"one": "disconnected"}, {"one": ()})
    async with trio.open_nursery() as nursery:
        await nursery.start(upstreams.run)
        await settled()
        assert upstreams.status == {"one": "connected"}
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_configured_away_is_gone_with_its_tools(autojump_clock: MockClock) -> None:
    upstreams = Watched(one=FakeServer(farewell=1), two=FakeServer())
    async with running(upstreams):
        changes = upstreams.changes
        upstreams.configure({"two": Config()})
        assert (upstreams.status, list(upstreams.tools)) == ({"two": "connected"}, ["two"])
        assert upstreams.changes == changes + 1
        with pytest.raises(NotFound):
            await upstreams.call("one", "echo", b"{}")
        await settled(1)
        assert len(upstreams.servers["one"].ended) == 1
        assert upstreams.servers["two"].ended == []


async def test_a_server_whose_configuration_is_the_same_is_left_alone(autojump_clock: MockClock) -> None:
    upstreams = Watched(one=FakeServer(), two=FakeServer())
    async with running(upstreams):
        changes = upstreams.changes
        upstreams.configure({"one": Config(), "two": Config()})
        await settled(10)
        assert upstreams.changes == changes
        upstreams.configure({"one": Config(), "two": Config(timeout_seconds=5)})
        await settled(10)
        assert [len(server.attempts) for server in upstreams.servers.values()] == [1, 2]
        assert upstreams.servers["two"].attempt.config.timeout_seconds == 5


async def test_a_server_that_is_replaced_does_not_wait_for_its_predecessor_to_end(autojump_clock: MockClock) -> None:
    upstreams = Watched(one=FakeServer(farewell=100))
    async with running(upstreams):
        upstreams.configure({"one": Config(command="other")})
        assert upstreams.status == {"one": "disconnected"}
        await settled()
        assert upstreams.status == {"one": "connected"}
        assert upstreams.servers["one"].ended == []


async def test_a_server_that_comes_and_goes_at_once_leaves_nothing(autojump_clock: MockClock) -> None:
    upstreams = Watched(one=FakeServer())
    async with trio.open_nursery() as nursery:
        await nursery.start(upstreams.run)
        upstreams.configure({"one": Config()})
        upstreams.configure({})
        upstreams.configure({"one": Config()})
        await settled()
        assert upstreams.status == {"one": "connected"}
        assert len(upstreams.servers["one"].attempts) == 1
        nursery.cancel_scope.cancel()


async def test_a_server_does_not_run_in_the_context_of_whoever_configured_it(autojump_clock: MockClock) -> None:
    """Its log lines would be those of the reload's span for as long as it lives."""
    asked_by = ContextVar("asked_by", default="nobody")
    found: list[str] = []

    @asynccontextmanager
    async def connect(attempt: Attempt) -> AsyncIterator[FakeServer]:
        await trio.lowlevel.checkpoint()
        found.append(asked_by.get())
        yield FakeServer()

    upstreams = Upstreams(on_change=lambda: None, connect=connect)
    async with trio.open_nursery() as nursery:
        await nursery.start(upstreams.run)
        asked_by.set("a reload")
        upstreams.configure({"one": Config()})
        await settled()
        nursery.cancel_scope.cancel()
    assert found == ["nobody"]


async def test_calls_while_nothing_runs_are_refused() -> None:
    upstreams = Watched(one=FakeServer())
    upstreams.configure({"one": Config()})
    with pytest.raises(ServerDisconnected, match="is not connected: it is being connected"):
        await upstreams.call("one", "echo", b"{}")


def test_the_sdk_is_not_imported_before_a_server_is_connected() -> None:
    """Issue 5: "The SDK is imported only when a server is configured"."""
    code = "import sys, oubliette.upstreams; sys.exit(any(name.partition('.')[0] == 'mcp' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
