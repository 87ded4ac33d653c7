"""`session_message` and `session_events` of the link: an agent and the child sessions of its own session.

WIRE section 1; HAZARDS T9, T12, G2, F35.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.agents.base import Turn, TurnResult
from oubliette.link.children import MAX_PAGE
from oubliette.session import Session
from tests.helpers.agents import FakeAgent, fail, never_end, work_for_a_second
from tests.helpers.domain import OWNER
from tests.helpers.link import AgentLink
from tests.helpers.link_bench import MAX_BYTES, LinkBench, open_link_bench


class Parent:
    """An agent on the link of its session, whose children run `behave`."""

    def __init__(self, bench: LinkBench, link: AgentLink) -> None:
        self.bench = bench
        self.link = link

    async def ask(self, method: str, **params: Any) -> Any:
        """Sends a request and returns its result."""
        await self.link.ask(method, params)
        return (await self.link.receive())["result"]

    async def refused(self, method: str, **params: Any) -> Any:
        """Sends a request and returns its error."""
        await self.link.ask(method, params)
        return (await self.link.receive())["error"]

    async def spawn(self, message: str = "help me") -> Session:
        answer = await self.ask("session_message", message=message)
        assert answer.keys() == {"session_id", "spawned"}
        assert answer["spawned"] is True
        return await self.bench.domain.sessions.find(answer["session_id"])

    async def events(self, child: Session, since_index: int = 0, **params: Any) -> Any:
        page = await self.ask("session_events", session_id=child.id, since_index=since_index, **params)
        assert page.keys() == {"session_id", "status", "last_index", "events", "completed", "failed"}
        assert page["session_id"] == child.id
        return page


@asynccontextmanager
async def open_parent(folder: Path, agent: FakeAgent | None = None) -> AsyncIterator[Parent]:
    """A session whose agent the test plays, while its children have another one."""
    async with open_link_bench(folder, agents={"fake": agent or FakeAgent()}) as bench:
        bench.session.agent_name = "fake"
        yield Parent(bench, await bench.connect())


def types(page: Any) -> list[str]:
    return [event["type"] for event in page["events"]]


# session_message


async def test_a_message_starts_a_child_of_the_session(tmp_path: Path) -> None:
    async with open_parent(tmp_path) as parent:
        child = await parent.spawn("help me")
        own = parent.bench.session
        assert (child.parent_id, child.depth, child.owner) == (own.id, 1, own.owner)
        assert (child.project_id, child.workspace_id) == (own.project_id, own.workspace_id)
        assert child.caller.caller_id == "myapp"


async def test_a_child_is_spoken_to_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A message to a child that is at work is queued."""
    agent = FakeAgent(work_for_a_second)
    async with open_parent(tmp_path, agent) as parent:
        child = await parent.spawn("first")
        answer = await parent.ask("session_message", message="second", session_id=child.id)
        assert answer == {"session_id": child.id, "spawned": False}
        await trio.sleep(3)
        assert [turn.prompt for turn in agent.turns] == ["first", "second"]


@pytest.mark.parametrize("session_id", [None, "absent"])
async def test_a_null_id_is_an_absent_one(tmp_path: Path, session_id: Any) -> None:
    async with open_parent(tmp_path) as parent:
        params = {} if session_id else {"session_id": None}
        assert (await parent.ask("session_message", message="x", **params))["spawned"] is True


async def test_the_limits_are_told_in_words(tmp_path: Path) -> None:
    async with open_parent(tmp_path) as parent:
        for _ in range(20):
            await parent.spawn()
        error = await parent.refused("session_message", message="one too many")
        assert (error["code"], error["data"]["kind"]) == (-32006, "limit_exceeded")
        assert "sessions.max_children" in error["message"]


async def test_a_child_that_has_ended_takes_no_message(tmp_path: Path) -> None:
    async with open_parent(tmp_path) as parent:
        child = await parent.spawn()
        await parent.bench.domain.sessions.end(child)
        error = await parent.refused("session_message", message="x", session_id=child.id)
        assert (error["code"], error["data"]["kind"]) == (-32007, "conflict")


@pytest.mark.parametrize(
    ("method", "params", "named"),
    [
        ("session_message", {}, "message"),
        ("session_message", {"message": 5}, "message"),
        ("session_message", {"message": "x", "session_id": 5}, "session_id"),
        ("session_message", {"message": "x", "project_id": "other"}, "project_id"),
        ("session_message", {"message": "x", "agent": "other"}, "agent"),
        ("session_events", {}, "session_id"),
        ("session_events", {"session_id": "x", "since_index": -1}, "since_index"),
        ("session_events", {"session_id": "x", "wait_seconds": 31}, "wait_seconds"),
        ("session_events", {"session_id": "x", "wait_seconds": -1}, "wait_seconds"),
        ("session_events", {"session_id": "x", "follow": True}, "follow"),
    ],
)
async def test_params_that_are_wrong_are_named(tmp_path: Path, method: str, params: Any, named: str) -> None:
    async with open_parent(tmp_path) as parent:
        error = await parent.refused(method, **params)
        assert error["code"] == -32602
        assert named in error["message"]
        assert len(parent.bench.domain.sessions.live) == 1


# Whose children


async def test_only_own_children_exist(tmp_path: Path) -> None:
    """HAZARDS T9 and G2: itself, its parent, a grandchild, another's session and none get one and the same answer."""
    async with open_parent(tmp_path) as parent:
        sessions = parent.bench.domain.sessions
        child = await parent.spawn()
        grandchild, _ = await sessions.spawn(child, "deeper")
        other = await parent.bench.domain.start()
        others_child, _ = await sessions.spawn(other, "x")
        ids = [grandchild.id, other.id, others_child.id, parent.bench.session.id, "ses_" + "0" * 32, ""]
        for method, params in (("session_message", {"message": "x"}), ("session_events", {})):
            for id in ids:
                error = await parent.refused(method, session_id=id, **params)
                assert (error["code"], error["data"]) == (-32005, {"kind": "not_found", "field": "session_id"})
                assert error["message"] == f"this session has no child session {id!r}"
        assert other.log.last_index == 2, "it was told nothing"


async def test_a_child_cannot_reach_its_parent(tmp_path: Path) -> None:
    async with open_parent(tmp_path) as parent:
        child = await parent.spawn()
        inner = LinkBench(parent.bench.domain, child, parent.bench.stream, parent.bench.tasks)
        error = await Parent(inner, await inner.connect()).refused(
            "session_message", message="x", session_id=parent.bench.session.id
        )
        assert error["code"] == -32005


async def test_a_key_changes_nothing(tmp_path: Path) -> None:
    """HAZARDS T12: what a key opens is asked for with `oubliette_call_tool`."""
    async with open_parent(tmp_path) as parent:
        key, _ = await parent.bench.domain.services.tokens.create("key", "admin")
        other = await parent.bench.domain.start()
        error = await parent.refused("session_events", session_id=other.id, api_key=key)
        assert error["code"] == -32602
        assert key not in json.dumps(error)


async def test_an_agent_that_starts_sessions_with_a_key_has_no_children_by_that(tmp_path: Path) -> None:
    async with open_parent(tmp_path) as parent:
        key, record = await parent.bench.domain.services.tokens.create("key", "admin")
        arguments = {"message": "x", "agent": "external"}
        params = {"api_key": key, "tool": "session_message", "arguments": arguments}
        started = (await parent.ask("oubliette_call_tool", **params))["structuredContent"]
        assert (started["parent_id"], started["owner"]) == (None, record.token_id)
        assert (await parent.refused("session_events", session_id=started["session_id"]))["code"] == -32005


# session_events


async def test_events_tell_how_a_turn_goes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_parent(tmp_path, FakeAgent(work_for_a_second)) as parent:
        child = await parent.spawn("first")
        await wait_all_tasks_blocked()
        page = await parent.events(child)
        assert types(page) == ["session_started", "message", "message"]
        assert (page["status"], page["last_index"]) == ("running", 3)
        assert (page["completed"], page["failed"]) == (False, False)
        begun = trio.current_time()
        page = await parent.events(child, since_index=3, wait_seconds=30)
        assert 0 < trio.current_time() - begun <= 1
        assert (types(page), page["status"], page["completed"]) == (["turn_completed"], "idle", True)
        assert page["events"][0]["text"] == "first"


async def test_a_wait_is_over_in_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_parent(tmp_path, FakeAgent(never_end)) as parent:
        child = await parent.spawn()
        await wait_all_tasks_blocked()
        begun = trio.current_time()
        page = await parent.events(child, since_index=child.log.last_index, wait_seconds=7.5)
        assert (trio.current_time() - begun, page["events"]) == (7.5, [])


async def test_a_message_that_is_queued_is_no_rest(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_parent(tmp_path, FakeAgent(work_for_a_second)) as parent:
        child = await parent.spawn("first")
        await trio.sleep(2)
        assert (await parent.events(child))["completed"] is True
        await parent.ask("session_message", message="second", session_id=child.id)
        assert (await parent.events(child))["completed"] is False


async def test_a_child_that_fails_is_told_as_failed(tmp_path: Path) -> None:
    async with open_parent(tmp_path, FakeAgent(fail)) as parent:
        child = await parent.spawn()
        await child.over.wait()
        page = await parent.events(child)
        assert types(page)[-2:] == ["error", "session_ended"]
        assert (page["status"], page["completed"], page["failed"]) == ("failed", False, True)


async def test_the_agents_view_is_no_stream_of_the_owner(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It neither makes the caller count as connected, nor marks a request as given."""
    async with open_parent(tmp_path, FakeAgent(never_end)) as parent:
        child = await parent.spawn()
        await wait_all_tasks_blocked()
        pending = child.relay.begin("send", b"{}")
        assert types(await parent.events(child))[-1] == "caller_tool_request"
        await parent.link.ask(
            "session_events", {"session_id": child.id, "since_index": child.log.last_index, "wait_seconds": 5}
        )
        await wait_all_tasks_blocked()
        assert not child.relay.is_attached
        assert not pending.given
        await parent.link.receive()
        assert not child.relay.is_attached


async def test_pages_are_bounded_and_follow_each_other(tmp_path: Path) -> None:
    """A line of the link has a bound, which a page of long events would break."""

    async def talk(turn: Turn) -> TurnResult:
        for number in range(40):
            await turn.say(f"{number} " + "x" * 300)
        for _ in range(2 * MAX_PAGE):
            await turn.say("short")
        return TurnResult(text="\0" * (10 * MAX_BYTES))

    async with open_parent(tmp_path, FakeAgent(talk)) as parent:
        child = await parent.spawn()
        await wait_all_tasks_blocked()
        since, found = 0, []
        while since < child.log.last_index:
            page = await parent.events(child, since_index=since)
            assert len(json.dumps(page["events"])) <= 2 * MAX_BYTES
            assert 0 < len(page["events"]) <= MAX_PAGE
            found += page["events"]
            since = page["events"][-1]["index"]
        assert [event["index"] for event in found] == list(range(1, child.log.last_index + 1))
        assert found[-1]["text"] == "\0" * (MAX_BYTES // 6), "of a long text the end"


async def test_long_arguments_are_left_out(tmp_path: Path) -> None:
    async with open_parent(tmp_path, FakeAgent(never_end)) as parent:
        child = await parent.spawn()
        await wait_all_tasks_blocked()
        child.relay.begin("send", json.dumps({"long": "x" * (2 * MAX_BYTES)}).encode())
        [request] = (await parent.events(child, since_index=child.log.last_index - 1))["events"]
        assert (request["tool"], request["arguments"]) == ("send", {})


async def test_a_child_that_has_ended_can_be_read(tmp_path: Path) -> None:
    async with open_parent(tmp_path) as parent:
        child = await parent.spawn()
        await wait_all_tasks_blocked()
        await parent.bench.domain.sessions.end(child)
        page = await parent.events(child)
        assert types(page)[0] == "session_started"
        assert types(page)[-1] == "session_ended"
        assert (page["status"], page["completed"]) == ("ended", True)


# The end


async def test_a_cancelled_poll_leaves_the_child(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_parent(tmp_path, FakeAgent(never_end)) as parent:
        child = await parent.spawn()
        await wait_all_tasks_blocked()
        params = {"session_id": child.id, "since_index": child.log.last_index, "wait_seconds": 30}
        await parent.link.ask("session_events", params, id=7)
        await parent.link.send({"method": "notifications/cancelled", "params": {"requestId": 7}})
        answer = await parent.link.receive()
        assert (answer["id"], answer["error"]["code"]) == (7, -32800)
        assert (trio.current_time(), child.status) == (0, "running")


async def test_a_poll_ends_with_its_session(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_parent(tmp_path, FakeAgent(never_end)) as parent:
        child = await parent.spawn()
        await wait_all_tasks_blocked()
        params = {"session_id": child.id, "since_index": child.log.last_index, "wait_seconds": 30}
        await parent.link.ask("session_events", params)
        await wait_all_tasks_blocked()
        parent.bench.session.end("ended")
        parent.bench.connections[0].finish()
        answer = await parent.link.receive()
        # Either its own session's end came first, or the child's.
        assert answer.get("error", {}).get("code") == -32800 or types(answer["result"])[-1] == "session_ended"
        await child.over.wait()
        assert trio.current_time() == 0


async def test_a_session_that_ends_starts_no_child(tmp_path: Path) -> None:
    async with open_parent(tmp_path) as parent:
        parent.bench.session.end("ended")
        assert (await parent.refused("session_message", message="x"))["code"] == -32007


async def test_the_caller_answers_a_childs_request_by_the_childs_id(tmp_path: Path) -> None:
    async with open_parent(tmp_path, FakeAgent(never_end)) as parent:
        child = await parent.spawn()
        inner = LinkBench(parent.bench.domain, child, parent.bench.stream, parent.bench.tasks)
        link = await inner.connect()
        with parent.bench.domain.stream(child) as stream:
            inner.stream = stream
            await link.call("send", {"from": "the child"})
            request = await inner.next_request()
            assert (request["session_id"], request["arguments"]) == (child.id, {"from": "the child"})
            answer = {"session_id": child.id, "request_id": request["request_id"], "result": "done"}
            await parent.bench.domain.run(OWNER, "caller_tool_response", **answer)
            assert (await link.receive())["result"] == "done"
