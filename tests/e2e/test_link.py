"""The link's socket of a real daemon: who may open it, what it survives, and how fast a death is told.

WIRE section 1; HAZARDS T10, T11, F9, F12, F22, F23; FIELD section 2. What a link says is tested over memory streams in
tests/unit/link; here are the bytes, the files and the processes.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.helpers.http import Api, EventReader
from tests.helpers.link import AgentLink, open_link
from tests.helpers.mcp_http import initialized
from tests.helpers.process import DaemonProcess
from tests.helpers.waiting import until

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
# Within which the death of an agent or of its client must have been told, in seconds (HAZARDS F9).
PROMPT = 1.0


@asynccontextmanager
async def open_session(api: Api, *tools: Any) -> AsyncIterator[tuple[Any, EventReader, AgentLink]]:
    """A session with a stream of its caller and a link of its agent."""
    session = await api.start_session(*(tools or ("send",)))
    async with api.events(f"/sessions/{session['session_id']}/events") as events, open_link(session["socket"]) as link:
        yield session, events, link


async def assert_usable(api: Api, session: Any, events: EventReader, link: AgentLink) -> None:
    await link.call("send", id="usable")
    _, request = await events.next_of("caller_tool_request")
    assert (await api.answer(session, request["request_id"], result="yes")).status == 204
    assert await link.receive() == {"jsonrpc": "2.0", "id": "usable", "result": "yes"}


# The socket


def mode_of(path: Path) -> str:
    status = path.stat()
    return f"{stat.filemode(status.st_mode)[0]}{stat.S_IMODE(status.st_mode):o}"


async def test_a_socket_is_its_users_alone_and_gone_with_its_session(api: Api, daemon: DaemonProcess) -> None:
    """FIELD section 2, defect 13."""
    session = await api.start_session("send")
    path = Path(session["socket"])
    assert [mode_of(part) for part in (path, path.parent, daemon.data_dir / "run")] == ["s600", "d700", "d700"]
    assert (await api.request("DELETE", f"/sessions/{session['session_id']}")).status == 200
    await until(lambda: not path.parent.exists())


def test_a_data_directory_with_too_long_a_path_is_refused_in_words() -> None:
    daemon = DaemonProcess()
    daemon.data_dir = daemon.root / ("x" * 100)
    with pytest.raises(RuntimeError) as refused, daemon:
        pass
    assert "shorter path (--data-dir)" in str(refused.value)
    assert "Traceback" not in str(refused.value)


async def test_sessions_that_start_together_never_cross(api: Api) -> None:
    """HAZARDS T10; FIELD section 2, defect 3: the socket is the identity, not the order of connections."""
    for attempt in range(30):
        pair: dict[str, Any] = {}

        async def start(name: str, pair: dict[str, Any] = pair) -> None:
            context = {"caller_id": name, "caller_tools": [{"name": name}]}
            body = {"message": "x", "agent": "external", "context": context}
            pair[name] = (await api.post("/sessions", body)).json

        async with trio.open_nursery() as nursery:
            for name in (f"left-{attempt}", f"right-{attempt}"):
                nursery.start_soon(start, name)
        for name, session in pair.items():
            async with (
                api.events(f"/sessions/{session['session_id']}/events") as events,
                open_link(session["socket"]) as link,
            ):
                assert link.configs[0]["params"]["caller_id"] == name
                await link.call(name, {"from": name}, id=1)
                _, request = await events.next_of("caller_tool_request")
                assert (request["tool"], request["arguments"]) == (name, {"from": name})
                await api.answer(session, request["request_id"], result=name)
                assert (await link.receive())["result"] == name


async def test_an_agent_cannot_answer_for_its_caller(api: Api) -> None:
    """HAZARDS T7: nothing that the socket understands does."""
    async with open_session(api) as (session, events, link):
        await link.call("send", id=1)
        _, request = await events.next_of("caller_tool_request")
        answer = {"session_id": session["session_id"], "request_id": request["request_id"], "result": "forged"}
        for method, code in (
            ("caller_tool_response", -32601),
            ("caller_tool.response", -32601),
            ("tools/call", -32601),
            # Not even with its caller's own key.
            ("oubliette_call_tool", -32602),
        ):
            params = {"name": "caller_tool_response", "tool": "caller_tool_response", "arguments": answer, **answer}
            await link.send({"id": 2, "method": method, "params": {**params, "api_key": api.token}})
            assert (await link.receive())["error"]["code"] == code
        await api.answer(session, request["request_id"], result="real")
        assert (await link.receive())["result"] == "real"


# Bytes


async def test_hostile_lines_harm_nobody(api: Api, daemon: DaemonProcess) -> None:
    hostile = [
        (b"\xff\xfe", -32700),
        (b"[" * 200_000, -32700),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, -32700),
        (b'{"id":1,"id":1,"method":"caller_tool"}', -32600),
        (b"\0" * 1000, -32700),
        (b'"' + b"\\ud800" * 10_000 + b'"', -32700),
        (b"x" * (5 * MIB), -32600),
    ]
    async with open_session(api) as (session, events, link):
        for line, code in hostile:
            await link.send_line(line)
            assert (await link.receive())["error"]["code"] == code
            await assert_usable(api, session, events, link)


async def test_a_line_without_an_end_takes_no_memory(api: Api, daemon: DaemonProcess) -> None:
    """HAZARDS F22: 128 MiB on one line."""
    async with open_session(api) as (session, events, link):
        before = memory_of(daemon.pid)
        chunk = b"x" * MIB
        for _ in range(128):
            await link.stream.send_all(chunk)
        await link.stream.send_all(b"\n")
        assert (await link.receive())["error"]["code"] == -32600
        assert memory_of(daemon.pid) - before < 24 * MIB
        await assert_usable(api, session, events, link)


def memory_of(pid: int) -> int:
    """The most memory that a process has held so far, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def test_a_large_payload_passes_both_ways(api: Api) -> None:
    async with open_session(api) as (session, events, link):
        text = "x" * (3 * MIB)
        await link.call("send", {"text": text})
        _, request = await events.next_of("caller_tool_request")
        assert request["arguments"] == {"text": text}
        assert (await api.answer(session, request["request_id"], result=text)).status == 204
        assert (await link.receive())["result"] == text


async def test_a_call_that_waits_does_not_delay_a_hundred_others(api: Api) -> None:
    """FIELD section 2, defect 2; HAZARDS F12."""
    async with open_session(api, "send", "slow") as (session, events, link):
        await link.call("slow", id="slow")
        _, slow = await events.next_of("caller_tool_request")
        for number in range(100):
            await link.call("send", {"n": number}, id=number)
        requests = [(await events.next_of("caller_tool_request"))[1] for _ in range(100)]

        async def answer(some: list[Any]) -> None:
            for request in some:
                await api.answer(session, request["request_id"], result=request["arguments"]["n"])

        async with trio.open_nursery() as nursery:
            for start in range(4):
                nursery.start_soon(answer, requests[start::4])
        answers = [await link.receive() for _ in range(100)]
        assert {one["id"]: one["result"] for one in answers} == {number: number for number in range(100)}
        await api.answer(session, slow["request_id"], result="at last")
        assert await link.receive() == {"jsonrpc": "2.0", "id": "slow", "result": "at last"}


async def test_progress_reaches_the_agents_link(api: Api) -> None:
    async with open_session(api) as (session, events, link):
        await link.call("send", id="a")
        _, request = await events.next_of("caller_tool_request")
        path = f"/sessions/{session['session_id']}/requests/{request['request_id']}/progress"
        assert (await api.post(path, {"progress": 1, "total": 2, "message": "half"})).status == 204
        params = (await link.receive())["params"]
        assert params == {"request": "a", "progress": 1, "total": 2, "message": "half"}


async def test_an_agent_that_cancels_is_answered_and_its_caller_told(api: Api) -> None:
    async with open_session(api) as (session, events, link):
        await link.call("send", id=5)
        _, request = await events.next_of("caller_tool_request")
        await link.send({"method": "notifications/cancelled", "params": {"requestId": 5}})
        answer = await link.receive()
        assert (answer["id"], answer["error"]["code"]) == (5, -32800)
        _, cancelled = await events.next_of("caller_tool_cancelled")
        assert (cancelled["request_id"], cancelled["reason"]) == (request["request_id"], "agent_cancelled")
        late = await api.answer(session, request["request_id"], result=1)
        assert (late.status, late.error["kind"]) == (409, "conflict")


async def test_the_sessions_end_is_told_on_the_link_before_it_closes(api: Api) -> None:
    async with open_session(api) as (session, events, link):
        await link.call("send", id=1)
        await events.next_of("caller_tool_request")
        assert (await api.request("DELETE", f"/sessions/{session['session_id']}")).status == 200
        answer = await link.receive()
        assert (answer["error"]["code"], answer["error"]["data"]["kind"]) == (-32800, "cancelled")
        with pytest.raises(trio.EndOfChannel):
            await link.receive()
        _, cancelled = await events.next_of("caller_tool_cancelled")
        assert cancelled["reason"] == "session_ended"
        _, ended = await events.next_of("session_ended")
        assert ended["reason"] == "ended"


async def test_two_links_of_one_session_are_told_apart(api: Api) -> None:
    async with open_session(api) as (session, events, link), open_link(session["socket"]) as other:
        for one, name in ((link, "first"), (other, "second")):
            await one.call("send", {"from": name}, id=1)
        requests = {}
        for _ in range(2):
            _, request = await events.next_of("caller_tool_request")
            requests[request["arguments"]["from"]] = request["request_id"]
        await other.stream.aclose()
        _, cancelled = await events.next_of("caller_tool_cancelled")
        assert (cancelled["request_id"], cancelled["reason"]) == (requests["second"], "agent_gone")
        await api.answer(session, requests["first"], result="mine")
        assert (await link.receive())["result"] == "mine"


async def test_a_refused_answer_is_a_warning_in_the_log(api: Api, daemon: DaemonProcess) -> None:
    """WIRE section 3: "logged as a warning, and tell their sender". Another token of the same scope is refused."""
    created = await (await initialized(api)).call("token_create", name="other", scope="admin")
    other = Api(daemon.port, created["structuredContent"]["token"])
    async with open_session(api) as (session, events, link):
        await link.call("send", id=1)
        _, request = await events.next_of("caller_tool_request")
        assert (await other.answer(session, request["request_id"], result="stolen")).status == 403
        lines = [json.loads(line) for line in daemon.log_text.splitlines() if request["request_id"] in line]
        refused = [line for line in lines if line["level"] == "warning" and line.get("error") == "forbidden"]
        assert [line["session"] for line in refused] == [session["session_id"]]
        await api.answer(session, request["request_id"], result="mine")
        assert (await link.receive())["result"] == "mine"


# `kill -9`


class Agent:
    """A process beside a session: `oubliette-client` itself, or the example agent that starts one."""

    def __init__(self, session: Any, *command: str) -> None:
        environment = {
            **os.environ,
            "OUBLIETTE_SOCKET": session["socket"],
            "OUBLIETTE_CLIENT": f"{sys.executable} -m oubliette_client",
        }
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def send(self, *messages: Any) -> None:
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)


async def assert_told_promptly(events: EventReader, agent: Agent, *reasons: str) -> None:
    _, request = await events.next_of("caller_tool_request")
    agent.kill()
    with trio.fail_after(PROMPT):
        _, cancelled = await events.next_of("caller_tool_cancelled")
    assert cancelled["request_id"] == request["request_id"]
    assert cancelled["reason"] in reasons


async def test_a_client_that_is_killed_in_a_call_is_told_within_a_second(api: Api) -> None:
    """HAZARDS F9."""
    session = await api.start_session("send")
    async with api.events(f"/sessions/{session['session_id']}/events") as events:
        with Agent(session, "-m", "oubliette_client") as client:
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            client.send(
                {"id": 1, "method": "initialize", "params": hello},
                {"method": "notifications/initialized"},
                {"id": 2, "method": "tools/list"},
                {"id": 3, "method": "tools/call", "params": {"name": "myapp_send", "arguments": {}}},
            )
            await assert_told_promptly(events, client, "agent_gone")


async def test_an_agent_that_is_killed_in_a_call_is_told_within_a_second(api: Api) -> None:
    """HAZARDS F9: its client sees its stdin end, and goes."""
    session = await api.start_session("send")
    async with api.events(f"/sessions/{session['session_id']}/events") as events:
        with Agent(session, str(ROOT / "examples" / "agent.py"), "call myapp_send") as agent:
            await assert_told_promptly(events, agent, "agent_gone")
