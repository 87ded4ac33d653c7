"""A tree of sessions: real agents with real clients, three deep, and a caller outside who answers the deepest.

Issue 6, item 5; WIRE sections 1, 4 and 5; HAZARDS F20, F35.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.helpers.http import Api, EventReader
from tests.helpers.mcp_caller import open_mcp_caller
from tests.helpers.mcp_stateless import StatelessMcp
from tests.helpers.process import DaemonProcess
from tests.helpers.waiting import until, until_gone

SCRIPTED = Path(__file__).parents[1] / "helpers" / "scripted_agent.py"
CONFIG = f"""
relay: {{attach_grace_seconds: 5}}
agents:
  default: scripted
  profiles:
    scripted: {{type: command, command: [{sys.executable}, {SCRIPTED}, "{{prompt}}"]}}
"""
LIMIT = 30


@pytest.fixture(scope="module")
def tree_daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(CONFIG) as process:
        yield process
        errors = [line for line in process.log_text.splitlines() if '"level": "error"' in line]
        assert not errors, "nothing that a test did may be an error of the daemon's own"


@pytest.fixture
def tree(tree_daemon: DaemonProcess) -> Api:
    return Api(tree_daemon.port, tree_daemon.admin_token)


def script(*steps: Any) -> str:
    return json.dumps(steps)


def below(*steps: Any, depth: int) -> str:
    """A script whose steps are carried out so many sessions further down."""
    if depth == 0:
        return script(*steps)
    return script(["call", "session_message", {"message": below(*steps, depth=depth - 1)}])


async def start(api: Api, message: str) -> Any:
    context = {"caller_id": "myapp", "caller_tools": [{"name": "send"}]}
    reply = await api.post("/sessions", {"message": message, "context": context})
    assert reply.status == 201, reply.body
    return reply.json


@asynccontextmanager
async def followed(api: Api, session: Any) -> AsyncIterator[EventReader]:
    """The stream of a session and its descendants, from its beginning."""
    path = f"/sessions/{session['session_id']}/events?since_index=0&children=true"
    async with api.events(path) as events:
        yield events


async def view_of(api: Api, session_id: str) -> Any:
    return (await api.get(f"/sessions/{session_id}")).json


async def line_above(api: Api, session_id: str) -> list[Any]:
    """A session and its parents, the deepest first."""
    found = [await view_of(api, session_id)]
    while found[-1]["parent_id"]:
        found.append(await view_of(api, found[-1]["parent_id"]))
    return found


def processes_of(session_id: str) -> list[int]:
    """Everything that a session's agent runs."""
    wanted = f"OUBLIETTE_SESSION_ID={session_id}".encode()
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except (OSError, ProcessLookupError):
            continue
    return found


# Three deep


async def test_the_deepest_calls_and_its_caller_answers_over_sse(tree: Api) -> None:
    with trio.fail_after(LIMIT):
        root = await start(tree, below(["call", "myapp_send", {"text": "from below"}], depth=3))
        async with followed(tree, root) as events:
            _, request = await events.next_of("caller_tool_request")
            assert (request["tool"], request["arguments"]) == ("send", {"text": "from below"})
            line = await line_above(tree, request["session_id"])
            assert [one["depth"] for one in line] == [3, 2, 1, 0]
            assert line[-1]["session_id"] == root["session_id"]
            for same in ("owner", "project_id", "workspace_id", "agent", "runtime", "caller_id", "caller_tools"):
                assert {json.dumps(one[same]) for one in line} == {json.dumps(root[same])}
            # By the root's id nobody finds it: the request is the child's.
            assert (await tree.answer(root, request["request_id"], result="no")).status == 404
            assert (await tree.answer(line[0], request["request_id"], result="seen")).status == 204
            completed: list[Any] = []
            while len(completed) < 4:
                completed.append((await events.next_of("turn_completed"))[1])
        assert [one["session_id"] for one in completed] == [one["session_id"] for one in line], "the deepest first"
        assert 'myapp_send answered: "seen"' in completed[0]["text"]
        assert 'myapp_send answered: "seen"' in completed[-1]["text"], "each tells the one above what it has heard"


async def test_the_deepest_calls_and_its_caller_answers_over_mcp(tree_daemon: DaemonProcess) -> None:
    """The GET stream of an MCP session carries the descendants of what it has started."""
    context = {"caller_id": "myapp", "caller_tools": [{"name": "send"}]}
    async with open_mcp_caller(tree_daemon.url, tree_daemon.admin_token) as caller:
        message = below(["call", "myapp_send", {"text": "from below"}], depth=3)
        root = await caller.call("session_message", message=message, context=context)
        request = await caller.next_of("caller_tool_request")
        deepest = await caller.call("session_get", session_id=request["session_id"])
        assert deepest["depth"] == 3
        answer = {"session_id": request["session_id"], "request_id": request["request_id"], "result": "seen"}
        assert await caller.call("caller_tool_response", **answer) == {"accepted": True}
        while (completed := await caller.next_of("turn_completed"))["session_id"] != root["session_id"]:
            pass
        assert 'myapp_send answered: "seen"' in completed["text"]


async def test_a_response_stream_carries_the_descendants_too(tree: Api) -> None:
    """MCP 2026-07-28: `session_message` with `wait`."""
    mcp = StatelessMcp(tree)
    context = {"caller_id": "myapp", "caller_tools": [{"name": "send"}]}
    message = below(["call", "myapp_send", {}], depth=2)
    with trio.fail_after(LIMIT):
        async with mcp.calling("session_message", message=message, context=context, wait=True) as response:
            request = await response.next_of("caller_tool_request")
            assert (await view_of(tree, request["session_id"]))["depth"] == 2
            await mcp.answer(request, result="seen")
            *_, answer = await response.rest()
        assert 'myapp_send answered: "seen"' in answer["result"]["structuredContent"]["text"]


async def test_the_depth_limit_is_told_to_the_agent_in_words(tree: Api) -> None:
    with trio.fail_after(LIMIT):
        root = await start(tree, below(["call", "session_message", {"message": "[]"}], depth=3))
        async with followed(tree, root) as events:
            _, completed = await events.next_of("turn_completed")
    assert "session_message failed: child sessions may be 3 deep (sessions.max_depth)" in completed["text"]


# The end


async def test_the_end_of_the_root_ends_the_whole_tree(tree: Api) -> None:
    """HAZARDS F35: "all descendants and their calls end ≤ 2 s"; no process is left."""
    with trio.fail_after(LIMIT):
        root = await start(tree, below(["call", "myapp_send", {}], depth=3))
        async with followed(tree, root) as events:
            _, request = await events.next_of("caller_tool_request")
            line = await line_above(tree, request["session_id"])
            processes = [pid for one in line for pid in processes_of(one["session_id"])]
            assert len(processes) >= 8, "four agents, each with its client"
            begun = trio.current_time()
            assert (await tree.request("DELETE", f"/sessions/{root['session_id']}")).json["status"] == "ended"
            assert trio.current_time() - begun < 2
            _, cancelled = await events.next_of("caller_tool_cancelled")
            assert (cancelled["request_id"], cancelled["reason"]) == (request["request_id"], "session_ended")
            ended = [(await events.next_of("session_ended"))[1] for _ in line]
            assert [one["session_id"] for one in ended] == [one["session_id"] for one in line], "leaves first"
            with pytest.raises(trio.EndOfChannel):
                await events.next()
        for pid in processes:
            await until_gone(pid, limit=1)
        assert [(await view_of(tree, one["session_id"]))["status"] for one in line] == ["ended"] * 4


async def test_an_agent_that_is_killed_fails_its_session_and_ends_its_children(tree: Api) -> None:
    """HAZARDS F20: "session `failed` with reason ≤ 5 s"."""
    with trio.fail_after(LIMIT):
        root = await start(tree, below(["call", "myapp_send", {}], depth=1))
        async with followed(tree, root) as events:
            _, request = await events.next_of("caller_tool_request")
            child = request["session_id"]
            for pid in processes_of(root["session_id"]):
                os.kill(pid, signal.SIGKILL)
            begun = trio.current_time()
            _, error = await events.next_of("error")
            assert (error["session_id"], error["kind"]) == (root["session_id"], "agent_failed")
            assert "SIGKILL" in error["message"]
            ended = [(await events.next_of("session_ended"))[1] for _ in range(2)]
            assert trio.current_time() - begun < 5
        reasons = {one["session_id"]: one["reason"] for one in ended}
        assert reasons == {child: "ended", root["session_id"]: "failed"}


async def test_a_child_that_fails_is_its_parents_to_deal_with(tree: Api) -> None:
    with trio.fail_after(LIMIT):
        root = await start(tree, script(["call", "session_message", {"message": "no script"}], ["say", "going on"]))
        async with followed(tree, root) as events:
            _, completed = await events.next_of("turn_completed")
    assert completed["session_id"] == root["session_id"]
    assert "session_message failed: the agent 'scripted' exited with code 1" in completed["text"]
    assert completed["text"].endswith("going on")


# A child outlives a call


async def test_a_child_goes_on_when_the_waiting_call_has_ended_and_is_found_again(tree: Api) -> None:
    """ "When the agent's own timer ends the waiting call first, the child goes on and a later call … finds it"."""
    child = script(["call", "myapp_send", {"text": "later"}], ["say", "done without you"])
    with trio.fail_after(LIMIT):
        root = await start(tree, script(["leave", 2, "session_message", {"message": child}], ["find"]))
        async with followed(tree, root) as events:
            _, request = await events.next_of("caller_tool_request")
            left = {"text": ""}
            while left["text"] != "session_message took too long":
                _, left = await events.next_of("message")
            running = await view_of(tree, request["session_id"])
            assert running["status"] == "running"
            assert (await tree.answer(running, request["request_id"], result="seen")).status == 204
            texts = [(await events.next_of("turn_completed"))[1]["text"] for _ in range(2)]
    assert texts[0].endswith("done without you")
    assert "session_message answered: " in texts[1]
    assert "done without you" in texts[1]


# Homes


async def test_homes_go_with_their_sessions(tree: Api, tree_daemon: DaemonProcess) -> None:
    agents = tree_daemon.data_dir / "agents"
    with trio.fail_after(LIMIT):
        root = await start(tree, below(["sleep", LIMIT], depth=1))
        async with followed(tree, root) as events:
            await events.next_of("session_started")
            _, started = await events.next_of("session_started")
        homes = [agents / root["session_id"], agents / started["session_id"]]
        await until(lambda: all(home.is_dir() for home in homes))
        assert [home.stat().st_mode & 0o777 for home in homes] == [0o700] * 2
        await tree.request("DELETE", f"/sessions/{root['session_id']}")
        assert not any(home.exists() for home in homes)


async def test_what_a_killed_daemon_left_of_homes_goes_at_its_next_start() -> None:
    with DaemonProcess(CONFIG) as daemon:
        api = Api(daemon.port, daemon.admin_token)
        session = await start(api, script(["sleep", LIMIT]))
        home = daemon.data_dir / "agents" / session["session_id"]
        await until(lambda: home.is_dir() and processes_of(session["session_id"]))
        (home / "conversation").write_text("x")
        daemon.kill()
        assert home.is_dir()
        daemon.start()
        assert not home.exists()
        for pid in processes_of(session["session_id"]):
            await until_gone(pid)
        await start(Api(daemon.port, daemon.admin_token), script(["sleep", LIMIT]))
        assert daemon.stop() == 0
        left = [path for path in (daemon.data_dir / "agents").rglob("*") if path.name != ".trash"]
        assert left == [], "a graceful stop leaves nothing of them"
