"""`kill -9` of the daemon in the middle of a call, and what the next one says (WIRE section 3, "After a crash")."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import trio
from mcp import Client, StdioServerParameters, stdio_client

from tests.helpers.http import Api
from tests.helpers.link import open_link
from tests.helpers.process import DaemonProcess
from tests.helpers.waiting import until


@pytest.fixture
def own_daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess() as process:
        yield process


def api_of(daemon: DaemonProcess) -> Api:
    return Api(daemon.port, daemon.admin_token)


async def start_with_pending_call(daemon: DaemonProcess, tasks: trio.Nursery) -> tuple[Any, Any]:
    """Starts a session and leaves one call of its agent unanswered; returns the session and the request's event."""
    api = api_of(daemon)
    session = await api.start_session("slow")
    seen = trio.Event()
    request: list[Any] = []

    async def agent() -> None:
        async with open_link(session["socket"]) as link:
            await link.call("slow")
            await trio.sleep_forever()

    async def caller() -> None:
        async with api.events(f"/sessions/{session['session_id']}/events") as events:
            request.append((await events.next_of("caller_tool_request"))[1])
            seen.set()
            await trio.sleep_forever()

    tasks.start_soon(caller)
    tasks.start_soon(agent)
    await seen.wait()
    await wait_until_stored(daemon, request[0]["request_id"])
    return session, request[0]


async def wait_until_stored(daemon: DaemonProcess, request_id: str) -> None:
    """Events reach the records within 50 ms and are not waited for: what is not there yet, a crash may take."""
    query = "SELECT count(*) FROM events WHERE instr(data, ?)"
    with closing(sqlite3.connect(daemon.data_dir / "oubliette.db")) as records:
        await until(lambda: records.execute(query, (request_id.encode(),)).fetchone()[0])


async def test_killed_daemon_leaves_interrupted_sessions(own_daemon: DaemonProcess) -> None:
    async with trio.open_nursery() as nursery:
        session, request = await start_with_pending_call(own_daemon, nursery)
        own_daemon.kill()
        nursery.cancel_scope.cancel()
    own_daemon.start()
    api = api_of(own_daemon)
    id = session["session_id"]
    after = (await api.get(f"/sessions/{id}")).json
    assert after["status"] == "interrupted"

    page = (await api.get(f"/sessions/{id}/events?since_index=0", {"Accept": "application/json"})).json
    kinds = [event["type"] for event in page["events"]]
    assert kinds == [
        "session_started",
        "message",
        "caller_tool_request",
        "events_purged",
        "caller_tool_cancelled",
        "session_ended",
    ]
    purged, cancelled, ended = page["events"][3:]
    assert (purged["since_index"], purged["first_index"]) == (request["index"], cancelled["index"])
    assert (cancelled["request_id"], cancelled["reason"]) == (request["request_id"], "interrupted")
    assert (ended["reason"], ended["index"]) == ("interrupted", cancelled["index"] + 1)
    assert cancelled["index"] > request["index"] + 1

    late = await api.answer(session, request["request_id"], result=1)
    assert late.status == 404
    assert (await api.post(f"/sessions/{id}/messages", {"message": "on"})).status == 409


async def test_a_follower_resumes_over_the_crash(own_daemon: DaemonProcess) -> None:
    async with trio.open_nursery() as nursery:
        session, request = await start_with_pending_call(own_daemon, nursery)
        own_daemon.kill()
        nursery.cancel_scope.cancel()
    own_daemon.start()
    headers = {"Last-Event-ID": str(request["index"])}
    async with api_of(own_daemon).events(f"/sessions/{session['session_id']}/events", headers) as events:
        kinds = [(await events.next()).type for _ in range(3)]
        with pytest.raises(trio.EndOfChannel):
            await events.next()
    assert kinds == ["events_purged", "caller_tool_cancelled", "session_ended"]


async def test_tokens_and_sessions_that_were_confirmed_survive(own_daemon: DaemonProcess) -> None:
    api = api_of(own_daemon)
    session = await api.start_session("slow")
    own_daemon.kill()
    own_daemon.start()
    found = await api_of(own_daemon).get(f"/sessions/{session['session_id']}")
    assert found.status == 200, "the admin token and the session are known"


async def test_the_agent_is_told_in_words_when_the_daemon_is_killed(own_daemon: DaemonProcess) -> None:
    """Through a real `oubliette-client`, with the official SDK as the agent."""
    api = api_of(own_daemon)
    session = await api.start_session("slow")
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "oubliette_client", "--socket", session["socket"]]
    )
    results: list[Any] = []
    answered = trio.Event()
    async with Client(stdio_client(command), mode="legacy") as agent, trio.open_nursery() as nursery:

        async def call() -> None:
            results.append(await agent.call_tool("myapp_slow", {}))
            answered.set()

        async with api.events(f"/sessions/{session['session_id']}/events") as events:
            nursery.start_soon(call)
            await events.next_of("caller_tool_request")
            own_daemon.kill()
            with trio.fail_after(1):
                await answered.wait()
    assert results[0].is_error
    assert "may or may not have run" in results[0].content[0].text


def test_a_second_daemon_on_the_same_data_is_refused(own_daemon: DaemonProcess) -> None:
    second = DaemonProcess()
    second.data_dir = own_daemon.data_dir
    with pytest.raises(RuntimeError, match="another daemon"), second:
        pass
