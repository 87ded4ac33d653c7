"""SIGTERM and SIGINT: who is told what, how long it takes, and what is left (WIRE section 8, HAZARDS G7 and F16)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.helpers.http import Api, EventReader
from tests.helpers.link import AgentLink, open_link
from tests.helpers.mcp_http import initialized
from tests.helpers.peer import Peer, open_peer
from tests.helpers.process import DaemonProcess

# Far more than anything takes: the grace, what an agent may take over SIGTERM, the records.
OUTER = 15
CONFIG = """
server: {shutdown_grace_seconds: 1}
agents:
  default: external
  profiles:
    external: {type: external}
    sleeper: {type: command, command: [sleep, "60"]}
    stubborn: {type: command, command: [sh, -c, "trap '' TERM INT; sleep 60"]}
"""


@pytest.fixture
def own_daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(CONFIG) as process:
        yield process


@pytest.fixture
def patient_daemon() -> Iterator[DaemonProcess]:
    """A daemon that would wait for a minute."""
    with DaemonProcess(CONFIG.replace("seconds: 1", "seconds: 60")) as process:
        yield process


def api_of(daemon: DaemonProcess) -> Api:
    return Api(daemon.port, daemon.admin_token)


async def wait_for(condition: Callable[[], Any]) -> None:
    with trio.fail_after(OUTER):
        while not condition():  # noqa: ASYNC110  # another process brings it about
            await trio.sleep(0.01)


async def exit_code(daemon: DaemonProcess) -> int | None:
    await wait_for(lambda: daemon.process.poll() is not None)
    return daemon.process.returncode


def children_of(pid: int) -> list[int]:
    return [
        int(child) for path in Path(f"/proc/{pid}/task").iterdir() for child in (path / "children").read_text().split()
    ]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def start_agent(daemon: DaemonProcess, profile: str) -> list[int]:
    """Starts a session with an agent; returns its processes."""
    await api_of(daemon).start_session(agent=profile)
    deepest = 1 if profile == "sleeper" else 2
    found: list[int] = []

    def has_started() -> bool:
        found[:] = children_of(daemon.pid)
        found.extend(child for pid in list(found) for child in children_of(pid))
        return len(found) == deepest

    await wait_for(has_started)
    return found


async def reasons(events: EventReader) -> list[str]:
    """Reads a stream to its end; returns the reasons of the `session_ended` in it."""
    found: list[str] = []
    while True:
        try:
            event = json.loads((await events.next()).data)
        except trio.EndOfChannel:
            return found
        event = event.get("params", {}).get("data", event)
        if event["type"] == "session_ended":
            found.append(event["reason"])


@asynccontextmanager
async def unwilling_readers(daemon: DaemonProcess) -> AsyncIterator[None]:
    """Two streams with more to read than the kernel holds: one is not read at all, one a byte at a time."""
    api = api_of(daemon)
    session = await api.start_session()
    request = f"GET /sessions/{session['session_id']}/events HTTP/1.1\r\nHost: localhost\r\n"
    request += f"Authorization: Bearer {api.token}\r\n\r\n"

    async def trickle(peer: Peer) -> None:
        with suppress(trio.BrokenResourceError):
            while await peer.stream.receive_some(1):  # noqa: ASYNC110  # the pace is the point
                await trio.sleep(0.02)

    async with open_peer(daemon.port) as stalled, open_peer(daemon.port) as trickling, trio.open_nursery() as tasks:
        for peer in (stalled, trickling):
            await peer.send(request.encode())
            assert await peer.stream.receive_some(1)
        tasks.start_soon(trickle, trickling)
        for _ in range(16):
            body = {"message": "x" * 1024 * 1024}
            assert (await api.post(f"/sessions/{session['session_id']}/messages", body)).status == 202
        yield
        tasks.cancel_scope.cancel()


async def call_many(link: AgentLink, count: int) -> None:
    for number in range(count):
        await link.call("echo", id=number)


async def test_a_graceful_stop_tells_everybody_whoever_holds_it_up(patient_daemon: DaemonProcess) -> None:
    """The drain gate: a stalled reader, a trickling one, 100 pending calls, open streams, a running agent."""
    api = api_of(patient_daemon)
    async with unwilling_readers(patient_daemon), AsyncExitStack() as open_things:
        enter = open_things.enter_async_context
        mcp = await initialized(api)
        await mcp.start("echo")
        all_of_mcp = await enter(mcp.stream())
        session = await api.start_session("echo")
        events = await enter(api.events(f"/sessions/{session['session_id']}/events"))
        everything = await enter(api.events("/events"))
        links = [await enter(open_link(session["socket"])) for _ in range(4)]
        for link in links:
            await call_many(link, 25)
        for _ in range(100):
            await events.next_of("caller_tool_request")
        agents = await start_agent(patient_daemon, "sleeper")
        idle = await enter(open_peer(patient_daemon.port))

        patient_daemon.process.send_signal(signal.SIGTERM)
        await wait_for(lambda: '"reason": "shutdown"' in patient_daemon.log_text)
        refused = await api.post("/sessions", {"message": "too late"})
        assert (refused.status, refused.error["kind"]) == (503, "shutting_down")
        for method, path in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
            assert (await api.request(method, f"/sessions/{session['session_id']}{path}")).status == 503
        assert (await api.get("/ready")).status == 503
        assert (await api.get("/health")).status == 200

        for link in links:
            errors = [(await link.receive())["error"] for _ in range(25)]
            assert {(error["code"], error["data"]["kind"]) for error in errors} == {(-32800, "cancelled")}
        assert await reasons(events) == ["shutdown"]
        assert await reasons(everything) == ["shutdown"] * 4
        assert await reasons(all_of_mcp) == ["shutdown"]
        assert await idle.rest() == b""
        assert not any(is_alive(pid) for pid in agents)
        assert patient_daemon.process.poll() is None, "it waits for those who still read"
    assert await exit_code(patient_daemon) == 0
    assert '"event": "stopped"' in patient_daemon.log_text


async def test_a_stop_that_nobody_holds_up_does_not_wait_for_the_grace(patient_daemon: DaemonProcess) -> None:
    """By SIGINT. A poll, and an answer that is held back, end with their session."""
    api = api_of(patient_daemon)
    mcp = await initialized(api)
    session = await mcp.start("echo")
    agents = await start_agent(patient_daemon, "sleeper")
    answers: dict[str, Any] = {}

    async def follow() -> None:
        result = await mcp.call("session_events", session_id=session["session_id"], follow=True)
        answers["held"] = result["structuredContent"]

    async def poll() -> None:
        path = f"/sessions/{session['session_id']}/events?since_index=1000&wait_seconds=30"
        answers["poll"] = (await api.get(path, {"Accept": "application/json"})).json

    async with trio.open_nursery() as nursery, open_peer(patient_daemon.port) as idle:
        nursery.start_soon(follow)
        nursery.start_soon(poll)
        await wait_until_connected(session)
        async with api.events(f"/sessions/{session['session_id']}/events") as events:
            patient_daemon.process.send_signal(signal.SIGINT)
            assert await reasons(events) == ["shutdown"]
        assert await idle.rest() == b""
        assert await exit_code(patient_daemon) == 0
    assert (answers["poll"]["status"], answers["poll"]["events"]) == ("interrupted", [])
    assert answers["held"]["events"][-1]["reason"] == "shutdown"
    assert not any(is_alive(pid) for pid in agents)


async def wait_until_connected(session: Any) -> None:
    """Returns when a request of the agent's is not refused any more: the owner's poll is in."""
    async with open_link(session["socket"]) as link:
        with trio.fail_after(OUTER):
            while True:
                await link.call("echo")
                with trio.move_on_after(0.3):
                    assert (await link.receive())["error"]["data"]["kind"] == "caller_disconnected"
                    continue
                return


async def test_a_second_signal_ends_everything_at_once(patient_daemon: DaemonProcess) -> None:
    """Also where readers would hold up the stop for a minute and an agent ignores SIGTERM."""
    agents = await start_agent(patient_daemon, "stubborn")
    async with unwilling_readers(patient_daemon):
        patient_daemon.process.send_signal(signal.SIGTERM)
        await wait_for(lambda: '"reason": "shutdown"' in patient_daemon.log_text)
        assert patient_daemon.process.poll() is None
        patient_daemon.process.send_signal(signal.SIGTERM)
        assert await exit_code(patient_daemon) in (0, 1)
    await wait_for(lambda: not any(is_alive(pid) for pid in agents))


async def test_when_the_grace_is_over_nobody_holds_up_the_stop(own_daemon: DaemonProcess) -> None:
    """Neither a stalled reader nor a trickling one (HAZARDS, finding 3), nor an agent that ignores SIGTERM."""
    agents = await start_agent(own_daemon, "stubborn")
    async with unwilling_readers(own_daemon):
        own_daemon.process.send_signal(signal.SIGTERM)
        assert await exit_code(own_daemon) == 0
    assert not any(is_alive(pid) for pid in agents)


@pytest.mark.parametrize(("moment", "codes"), [("", (0, -signal.SIGTERM)), ("data/admin.token", (0,))])
async def test_a_signal_during_the_start(moment: str, codes: tuple[int, ...]) -> None:
    """Whenever it comes, from the first instruction on: the process ends, and the next start finds all in order."""
    daemon = DaemonProcess()
    command = [sys.executable, "-m", "oubliette", "serve", "--config", str(daemon.config)]
    command += ["--data-dir", str(daemon.data_dir), "--port", "0"]
    with ExitStack() as undo:
        undo.push(daemon.__exit__)
        log = undo.enter_context(daemon.log.open("ab"))
        process = undo.enter_context(subprocess.Popen(command, stdout=log, stderr=log))  # noqa: ASYNC220  # a daemon
        await wait_for((daemon.root / moment).exists)
        process.send_signal(signal.SIGTERM)
        await wait_for(lambda: process.poll() is not None)
        assert process.returncode in codes
        assert "Traceback" not in daemon.log_text
        daemon.start()
        assert (await api_of(daemon).get("/ready")).status == 200
        assert daemon.stop() == 0
