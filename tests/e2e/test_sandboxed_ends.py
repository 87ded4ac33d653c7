"""Sessions in sandboxes, through a real daemon: what their agents use up and say, and how they end, killed or asked.

HAZARDS G18, F20, F25. What agents find is in `test_sandboxed_sessions.py`; the runtimes by themselves are in
`test_sandbox_escape.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import pytest
import trio

from oubliette.agents.process import FORCE, POLITE
from tests.helpers.sandboxed import (
    CLIENT,
    LIMITS,
    SANDBOXES,
    Site,
    Watched,
    need_limits,
    new_mark,
    open_shared_site,
    open_site,
    podman_here,
    resident,
    sleeping,
)
from tests.helpers.waiting import until

# HAZARDS F20: the session has failed so long after what ended its agent, in seconds.
AT_ONCE = 5
MIB = 2**20


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    with open_shared_site({}) as site:
        yield site


@pytest.fixture(params=SANDBOXES)
def kind(request: pytest.FixtureRequest, shared: Site) -> str:
    shared.need(request.param)
    return str(request.param)


@pytest.fixture
async def project(kind: str, shared: Site) -> str:
    return await shared.project(kind)


@pytest.fixture
def limits(kind: str) -> None:
    need_limits(kind)


only = partial(pytest.mark.parametrize, "kind", indirect=True)


# What it uses up


@asynccontextmanager
async def neighbour(site: Site, project: str) -> AsyncIterator[Watched]:
    """A session whose agent asks its caller again and again; it has asked once."""
    async with site.session(project, f"{CLIENT}\nwhile True: say(call('myapp_look'))", agent="python") as session:
        await session.answer("well")
        yield session


HOG = """
print("ready", flush=True)
hog = []
while True:
    hog.append(bytearray(2**24))
"""
BOMB = """
import os, signal
forked = 0
try:
    while True:
        if os.fork() == 0:
            signal.pause()
        forked += 1
except OSError:
    print("stopped at", forked, flush=True)
signal.pause()
"""


@pytest.mark.heavy
@pytest.mark.usefixtures("limits")
async def test_a_memory_hog_ends_and_the_others_go_on(shared: Site, project: str) -> None:
    async with neighbour(shared, project) as beside, shared.session(project, HOG, agent="python") as session:
        await session.says("ready")
        message = (await session.next_of("error"))["message"]
        ended = await session.next_of("session_ended")
        await beside.answer("well")
        assert await beside.says('"well"')
    assert ended["reason"] == "failed"
    assert "runtime.memory" in message
    assert f"{LIMITS['memory'] // MIB} MiB" in message


@pytest.mark.heavy
@pytest.mark.usefixtures("limits")
async def test_a_fork_bomb_is_held_and_the_others_go_on(shared: Site, project: str) -> None:
    async with neighbour(shared, project) as beside, shared.session(project, BOMB, agent="python") as session:
        forked = int((await session.says("stopped at")).split()[-1])
        assert 8 < forked < LIMITS["pids"]
        await beside.answer("well")
        assert await beside.says('"well"')
        seen = await session.seen()
        assert len(seen.inside) > forked
        with trio.fail_after(POLITE + FORCE):
            await session.end()
        await seen.gone(AT_ONCE)


# What it says


async def test_a_flood_without_a_line_break_is_left_out(shared: Site, project: str) -> None:
    """On both streams at once: whoever writes to one must not wait for what is read of the other."""
    flood = f"head -c {64 * MIB} /dev/zero | tr '\\0' x"
    before = resident(shared.daemon.pid)
    async with shared.session(project, f"({flood} >&2) & {flood}; wait; echo; echo done") as session:
        note, last = (await session.text()).splitlines()
    assert note == f"[a line of more than {256 * 1024} bytes was left out]"
    assert last == "done"
    assert resident(shared.daemon.pid) - before < 32 * MIB


@pytest.mark.heavy
@only(argvalues=["bubblewrap"])
async def test_a_flood_of_lines_is_bounded_in_memory_and_leaves_others_their_turns(shared: Site, project: str) -> None:
    flood = "s=$(head -c 8000 /dev/zero | tr '\\0' y); while :; do echo $s; done"
    async with neighbour(shared, project) as beside, shared.session(project, flood) as session:
        await session.says("y")
        seen = await session.seen()
        before, index = resident(shared.daemon.pid), await last_index(session)
        while await last_index(session) < index + 5_000:
            await beside.answer("well")
        # 40 MB were said, of which `sessions.event_buffer_bytes`, 16 MiB, are in memory.
        assert resident(shared.daemon.pid) - before < 32 * MIB
        with trio.fail_after(POLITE + FORCE):
            await session.end()
        await seen.gone(AT_ONCE)


async def last_index(session: Watched) -> int:
    return int((await session.site.api.get(f"/sessions/{session.id}")).json["last_index"])


# How it ends


async def test_one_that_does_not_listen_is_gone_with_all_it_started(shared: Site, project: str) -> None:
    marks = [new_mark() for _ in range(3)]
    script = "trap '' TERM INT HUP; setsid sleep {} & (setsid setsid sleep {} &); exec sleep {}".format(*marks)
    async with shared.session(project, script) as session:
        seen = await session.seen(*marks)
        with trio.fail_after(POLITE + FORCE):
            await session.end()
        await seen.gone(AT_ONCE)
        assert [pid for mark in marks for pid in sleeping(mark)] == []
        assert (await session.next_of("session_ended"))["reason"] == "ended"


@pytest.mark.parametrize("victim", ["agent", "first", "starter"])
async def test_a_killed_agent_or_sandbox_is_a_failed_session(shared: Site, project: str, victim: str) -> None:
    """HAZARDS F20. `first` is process 1 of the sandbox, `starter` bubblewrap itself, or podman's `run`."""
    mark = new_mark()
    async with shared.session(project, f"setsid sleep 1{mark} & exec sleep {mark}") as session:
        seen = await session.seen(mark, f"1{mark}")
        os.kill({"agent": sleeping(mark)[0], "first": seen.first, "starter": seen.starter}[victim], signal.SIGKILL)
        with trio.fail_after(AT_ONCE):
            error = await session.next_of("error")
            ended = await session.next_of("session_ended")
        await seen.gone(AT_ONCE)
        assert error["kind"] == "agent_failed"
        assert "SIGKILL" in error["message"]
        assert (ended["reason"], ended["exit_code"]) == ("failed", -9 if victim == "starter" else 137)
        assert await session.status() == "failed"
    assert (await shared.api.get("/ready")).status == 200


@only(argvalues=["podman"])
async def test_a_container_that_somebody_removes_is_a_failed_session(shared: Site, project: str) -> None:
    mark = new_mark()
    async with shared.session(project, f"exec sleep {mark}") as session:
        seen = await session.seen(mark)
        await podman("rm", "--force", "--time=0", session.container())
        with trio.fail_after(AT_ONCE):
            assert "exited with code 137" in (await session.next_of("error"))["message"]
            assert (await session.next_of("session_ended"))["reason"] == "failed"
        await seen.gone(AT_ONCE)


@only(argvalues=["podman"])
async def test_a_paused_container_can_be_ended(shared: Site, project: str) -> None:
    """HAZARDS F20. It hears no signal, not even that of the end."""
    mark = new_mark()
    async with shared.session(project, f"exec sleep {mark}") as session:
        seen = await session.seen(mark)
        await podman("pause", session.container())
        with trio.fail_after(POLITE + FORCE):
            await session.end()
        await seen.gone(AT_ONCE)
    assert shared.leavings() == []


async def podman(*command: str) -> None:
    _, environ, _ = podman_here()
    await trio.run_process(["podman", *command], env={**os.environ, **environ}, stdout=subprocess.DEVNULL)


async def test_a_killed_daemon_leaves_nothing_that_the_next_one_does_not_find() -> None:
    """In the middle of turns, in each runtime that works here."""
    image, environ, why = podman_here()
    with open_site({"kind": "auto", "image": image}, environ, podman=why) as site, no_sleepers() as marks:
        sessions = {kind: await start_asleep(site, kind, marks) for kind in await site.runtimes()}
        site.daemon.kill()
        await until(lambda: not sleeping(marks.get("bubblewrap", "0")), AT_ONCE)
        left = [name.split("/")[0].split("-")[0] for name in site.leavings()]
        assert (left.count("run"), left.count("agents")) == (len(sessions), len(sessions))
        assert left.count("oubliette") == ("podman" in sessions)
        assert sleeping(marks["process"]), "it outlives its daemon, or there would be nothing to find"
        site.daemon.start()
        await until(lambda: not [pid for mark in marks.values() for pid in sleeping(mark)])
        await until(lambda: site.leavings() == [])
        for session_id in sessions.values():
            page = await site.api.get(f"/sessions/{session_id}/events?since_index=0", {"Accept": "application/json"})
            assert page.json["status"] == "interrupted"
            last = page.json["events"][-1]
            assert (last["type"], last["reason"]) == ("session_ended", "interrupted")
        async with site.session(None, "echo again") as session:
            assert await session.text() == "again"


async def start_asleep(site: Site, kind: str, marks: dict[str, str]) -> str:
    """Starts a session whose agent sleeps, and something that left its group too."""
    mark = marks[kind] = new_mark()
    marks[f"{kind}, apart"] = f"1{mark}"
    script = f"setsid sleep 1{mark} & exec sleep {mark}"
    reply = await site.api.post("/sessions", {"message": script, "project_id": await site.project(kind)})
    await until(lambda: sleeping(mark) and sleeping(f"1{mark}"))
    return str(reply.json["session_id"])


@contextmanager
def no_sleepers() -> Iterator[dict[str, str]]:
    """Whatever becomes of the test: what sleeps under these marks ends with the block."""
    marks: dict[str, str] = {}
    try:
        yield marks
    finally:
        for pid in [pid for mark in marks.values() for pid in sleeping(mark)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
