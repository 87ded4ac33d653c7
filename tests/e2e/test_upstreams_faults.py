"""Proxied MCP servers that die, hang, and come back (issue 5, item 6: "a dead server noticed within a second")."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from oubliette.upstreams.stdio import EOF_GRACE, KILL_GRACE, TERM_GRACE
from tests.helpers.upstreams import (
    CARRIED,
    Observed,
    ScriptedHttp,
    exists,
    http,
    journal,
    pids,
    refused,
    running,
    scripted,
    stdio,
)
from tests.helpers.waiting import LIMIT, is_running, until, until_gone

# Seconds: "a dead server noticed within a second".
NOTICED = 1.0


# Death, and what comes after it


async def test_a_killed_process_is_noticed_and_comes_back(tmp_path: Path) -> None:
    written = tmp_path / "journal"
    with trio.fail_after(LIMIT):
        async with running(one=scripted(journal=str(written))) as upstreams:
            offered = upstreams.names("one")
            os.kill(pids(written)[0], signal.SIGKILL)
            assert await upstreams.until_lost("one") < NOTICED
            assert upstreams.names("one") == offered
            assert upstreams.problems == {"one": "its process was ended by signal 9"}
            error = await refused(upstreams, "one", "echo", b"{}")
            assert error.message.startswith("server 'one' is not connected: its process was ended by signal 9;")
            assert error.retry_safe is True
            await upstreams.until_connected()
            await upstreams.answer("one", "echo")
            assert len(pids(written)) == 2


@pytest.mark.parametrize("way", CARRIED)
async def test_a_killed_http_server_is_noticed_and_comes_back(way: str) -> None:
    with CARRIED[way]() as process, trio.fail_after(LIMIT):
        async with running(one=http(process.url)) as upstreams:
            process.kill()
            assert await upstreams.until_lost("one") < NOTICED
            assert "nobody listens" in upstreams.problems["one"]
            process.start()
            await upstreams.until_connected()
            await upstreams.call("one", "echo", b'{"text": "x"}')


@pytest.mark.parametrize("way", ["stdio", "http", "http without session"])
async def test_a_call_under_way_ends_with_its_server(way: str) -> None:
    process = None if way == "stdio" else CARRIED[way]()
    try:
        with trio.fail_after(LIMIT):
            async with running(one=http(process.url) if process else scripted()) as upstreams:
                error = await refused(upstreams, "one", "die", b"{}")
                assert "was lost" in error.message
                assert "the tool may already have run" in error.message
                assert error.retry_safe is False
    finally:
        if process is not None:
            process.kill()


async def test_a_child_that_holds_the_pipes_hides_no_death_and_does_not_survive(tmp_path: Path) -> None:
    written = tmp_path / "journal"
    with trio.fail_after(LIMIT):
        async with running(one=scripted(journal=str(written))) as upstreams:
            await refused(upstreams, "one", "leave_a_child", b"{}")
            [child] = [entry["child"] for entry in journal(written) if "child" in entry]
            await upstreams.until_connected()
            await until_gone(child)


async def test_a_session_that_was_forgotten_is_begun_anew() -> None:
    with ScriptedHttp() as process, trio.fail_after(LIMIT):
        async with running(one=http(process.url)) as upstreams:
            await upstreams.answer("one", "forget")
            error = await refused(upstreams, "one", "echo", b"{}")
            assert "it has forgotten the session" in error.message
            await upstreams.until_connected()
            await upstreams.answer("one", "echo")


async def test_a_server_that_was_restarted_too_fast_to_be_missed_is_asked_whether_it_knows_the_session(
    tmp_path: Path,
) -> None:
    written = tmp_path / "journal"
    with ScriptedHttp(journal=str(written)) as process, trio.fail_after(LIMIT):
        async with running(one=http(process.url)) as upstreams:
            await until(lambda: "listened to" in journal(written))
            process.kill()
            process.start()  # the event loop saw none of it: the port answers again
            await upstreams.until_lost("one")
            await upstreams.until_connected()
            await upstreams.answer("one", "echo")


async def test_a_server_that_dies_over_discovery_is_given_a_handshake() -> None:
    with trio.fail_after(LIMIT):
        async with running(one=scripted(dies_on="server/discover")) as upstreams:
            await upstreams.answer("one", "echo")


async def test_one_that_cannot_start_is_told_and_the_others_run(tmp_path: Path) -> None:
    upstreams = Observed()
    absent = str(tmp_path / "absent")
    async with trio.open_nursery() as nursery:
        await nursery.start(upstreams.run)
        servers = {"good": scripted(), "absent": stdio(absent), "ends": stdio("false"), "mute": stdio("cat")}
        upstreams.configure({**servers, "nobody": http("http://127.0.0.1:1/mcp")})
        await until(lambda: upstreams.status["good"] == "connected")
        await until(lambda: "it is being connected" not in (upstreams.problems[name] for name in ("absent", "ends")))
        await until(lambda: "reached" in upstreams.problems["nobody"])
        assert upstreams.problems["absent"] == f"'{absent}' cannot be started: No such file or directory"
        assert upstreams.problems["ends"] == "its process ended with code 1"
        assert upstreams.status["mute"] == "disconnected"
        nursery.cancel_scope.cancel()


# Stops


async def test_a_server_that_ignores_every_request_to_end_is_ended_in_bounded_time(tmp_path: Path) -> None:
    written = tmp_path / "journal"
    with trio.fail_after(LIMIT):
        async with running(one=scripted(journal=str(written), stubborn=True)):
            [pid] = pids(written)
            started = trio.current_time()
        assert EOF_GRACE + TERM_GRACE <= trio.current_time() - started < EOF_GRACE + TERM_GRACE + KILL_GRACE
        # Reaped too: not even a zombie is left.
        assert not exists(pid)


async def test_a_server_that_ends_with_its_stdin_is_not_waited_for(tmp_path: Path) -> None:
    written = tmp_path / "journal"
    with trio.fail_after(LIMIT):
        async with running(one=scripted(journal=str(written))) as upstreams:
            started = trio.current_time()
            upstreams.configure({})
            await until(lambda: not exists(pids(written)[0]))
        assert trio.current_time() - started < EOF_GRACE


async def test_a_stop_while_a_server_starts_leaves_nothing(tmp_path: Path) -> None:
    written = tmp_path / "journal"
    upstreams = Observed()
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            await nursery.start(upstreams.run)
            upstreams.configure({"one": scripted(journal=str(written), silent=["initialize", "server/discover"])})
            await until(lambda: pids(written))
            nursery.cancel_scope.cancel()
    assert not is_running(pids(written)[0])


async def test_a_session_is_ended_on_the_server(tmp_path: Path) -> None:
    written = tmp_path / "journal"
    with ScriptedHttp(journal=str(written)) as process, trio.fail_after(LIMIT):
        async with running(one=http(process.url)):
            assert "goodbye" not in journal(written)
        assert journal(written)[-1] == "goodbye"
