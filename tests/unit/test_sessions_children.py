"""Child sessions: what they inherit, within which limits, and how they end (issue 6, item 5; HAZARDS F35, T9)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.errors import CallerDisconnected, Conflict, InvalidParams, LimitExceeded, NotFound, RequestCancelled
from oubliette.following import Following
from oubliette.relay import RelayLimits
from oubliette.runtimes.base import Room
from oubliette.session import Session
from oubliette.streams import Stream
from oubliette.toolbox import box
from oubliette.toolbox.call import Call
from tests.helpers.agents import FakeAgent, FakeRuntime, fail, never_end
from tests.helpers.domain import OTHER, OWNER, STRANGER, Domain, open_domain


@asynccontextmanager
async def open_family(folder: Path, **limits: Any) -> AsyncIterator[Domain]:
    agents = {"external": None, "echo": FakeAgent(), "busy": FakeAgent(never_end), "weak": FakeAgent(fail)}
    async with open_domain(folder, agents=agents, **limits) as domain:
        yield domain


async def spawn(domain: Domain, parent: Session, message: str = "help me") -> Session:
    child, _ = await domain.sessions.spawn(parent, message)
    return child


async def line_of(domain: Domain, root: Session, depth: int) -> list[Session]:
    """A root and its descendants, each the only child of the one before."""
    found = [root]
    for _ in range(depth):
        found.append(await spawn(domain, found[-1]))
    return found


def events_of(domain: Domain, session: Session) -> list[Any]:
    stored = [event.data for event in domain.records.stored if event.session_id == session.id]
    return [msgspec.json.decode(data) for data in stored]


# What a child is


async def test_a_child_has_what_its_parent_has(tmp_path: Path) -> None:
    runtime = FakeRuntime("podman", ("a warning",))
    async with open_domain(tmp_path, agents={"echo": FakeAgent()}, runtime=runtime) as domain:
        project = await domain.project("own")
        parent = await domain.start("send", agent="echo", project_id=project.project_id)
        child, turn = await domain.sessions.spawn(parent, "help me")
        assert turn is not None
        await turn.done.wait()
        assert turn.text == "help me"
        assert child.id != parent.id
        for same in ("owner", "project_id", "workspace_id", "agent_name", "runtime", "declaration"):
            assert getattr(child, same) == getattr(parent, same), same
        assert (child.parent_id, child.depth, parent.children) == (parent.id, 1, [child])
        started = events_of(domain, child)[0]
        assert (started["type"], started["parent_id"]) == ("session_started", parent.id)
        ours, theirs = runtime.rooms
        assert (ours.workspace, ours.project_id) == (theirs.workspace, theirs.project_id)
        assert ours.home != theirs.home


async def test_callers_are_shown_whose_child_it_is(tmp_path: Path) -> None:
    async with open_family(tmp_path) as domain:
        _, child, grandchild = await line_of(domain, await domain.start(), 2)
        view = await domain.run(OWNER, "session_get", session_id=grandchild.id)
        assert (view["parent_id"], view["depth"], view["owner"]) == (child.id, 2, OWNER.token_id)
        listed = (await domain.run(OWNER, "session_list"))["sessions"]
        assert {one["depth"] for one in listed} == {0, 1, 2}
        record = domain.records.saved[grandchild.id]
        assert (record.parent_id, record.depth) == (child.id, 2)
        with pytest.raises(NotFound):
            await domain.run(STRANGER, "session_get", session_id=child.id)


async def test_a_later_declaration_reaches_the_children_under_way(tmp_path: Path) -> None:
    async with open_family(tmp_path) as domain:
        root, child, grandchild = await line_of(domain, await domain.start("send"), 2)
        ended = await spawn(domain, root)
        await domain.sessions.end(ended)
        told: list[str] = []
        for session in (root, child, grandchild, ended):
            session.on_declared.append(lambda id=session.id: told.append(id))  # type: ignore[misc]  # bound early
        context = {"caller_id": "ant", "caller_tools": [{"name": "get"}]}
        await domain.run(OWNER, "session_message", session_id=root.id, message="x", context=context)
        assert sorted(told) == sorted([root.id, child.id, grandchild.id])
        for session in (root, child, grandchild):
            assert session.caller.caller_id == "ant"
            recorded = domain.records.saved[session.id].caller
            assert recorded is not None
            assert b'"caller_id":"ant"' in recorded
        assert ended.caller.caller_id == "myapp"


async def test_a_declaration_on_a_child_is_its_own(tmp_path: Path) -> None:
    async with open_family(tmp_path) as domain:
        root, child = await line_of(domain, await domain.start("send"), 1)
        context = {"caller_id": "ant", "caller_tools": []}
        await domain.run(OWNER, "session_message", session_id=child.id, message="x", context=context)
        assert (root.caller.caller_id, child.caller.caller_id) == ("myapp", "ant")


# Limits


@pytest.mark.parametrize("depth", [0, 1, 3])
async def test_children_are_so_deep_and_no_deeper(tmp_path: Path, depth: int) -> None:
    """HAZARDS F35: "depth and count caps hold"."""
    async with open_family(tmp_path, max_depth=depth) as domain:
        deepest = (await line_of(domain, await domain.start(), depth))[-1]
        with pytest.raises(LimitExceeded, match=rf"may be {depth} deep \(sessions.max_depth\)"):
            await spawn(domain, deepest)
        assert (deepest.depth, deepest.children, len(domain.sessions.live)) == (depth, [], depth + 1)


async def test_a_session_has_so_many_children_at_once(tmp_path: Path) -> None:
    async with open_family(tmp_path, max_children=3) as domain:
        root = await domain.start()
        children = [await spawn(domain, root) for _ in range(3)]
        with pytest.raises(LimitExceeded, match=r"3 child sessions under way.*sessions\.max_children"):
            await spawn(domain, root)
        await spawn(domain, children[0])
        await domain.sessions.end(children[1])
        await spawn(domain, root)
        with pytest.raises(LimitExceeded):
            await spawn(domain, root)


async def test_children_that_start_together_keep_to_the_limit(tmp_path: Path) -> None:
    async with open_family(tmp_path, max_children=3) as domain:
        root, refused = await domain.start(), []

        async def start() -> None:
            try:
                await spawn(domain, root)
            except LimitExceeded as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(start)
        assert (len(root.children), len(refused)) == (3, 5)


async def test_children_count_among_the_sessions_of_their_project(tmp_path: Path) -> None:
    async with open_family(tmp_path, max_active=2) as domain:
        root = await domain.start()
        await spawn(domain, root)
        with pytest.raises(LimitExceeded, match="active sessions"):
            await spawn(domain, root)


async def test_a_session_that_has_ended_has_no_more_children(tmp_path: Path) -> None:
    async with open_family(tmp_path) as domain:
        root = await domain.start()
        await domain.sessions.end(root)
        with pytest.raises(Conflict):
            await spawn(domain, root)


async def test_a_child_that_cannot_be_started_leaves_no_trace(tmp_path: Path) -> None:
    async with open_family(tmp_path) as domain:
        root, save = await domain.start(), domain.records.save_session

        async def refuse(record: Any) -> None:
            await trio.lowlevel.checkpoint()
            raise InvalidParams("not now")

        domain.records.save_session = refuse  # type: ignore[method-assign]  # the fault that is injected
        with pytest.raises(InvalidParams):
            await spawn(domain, root)
        assert (root.children, list(domain.sessions.live)) == ([], [root])
        domain.records.save_session = save  # type: ignore[method-assign]
        assert (await spawn(domain, root)).status == "running"


# The end


class SlowRuntime(FakeRuntime):
    """Takes a second over closing, as an agent does that does not want to go."""

    @asynccontextmanager
    async def open(self, room: Room) -> AsyncIterator[Any]:
        async with super().open(room) as sandbox:
            try:
                yield sandbox
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)


async def assert_all_ended(domain: Domain, sessions: list[Session], reasons: list[str]) -> None:
    assert [events_of(domain, session)[-1]["type"] for session in sessions] == ["session_ended"] * len(sessions)
    assert [events_of(domain, session)[-1]["reason"] for session in sessions] == reasons
    assert not set(sessions) & set(domain.sessions.live)
    assert all(session.children == [] for session in sessions)


async def test_the_end_of_the_root_is_that_of_all(tmp_path: Path, autojump_clock: MockClock) -> None:
    """HAZARDS F35: "all descendants and their calls end ≤ 2 s"."""
    runtime = SlowRuntime()
    async with open_domain(tmp_path, agents={"busy": FakeAgent(never_end)}, runtime=runtime) as domain:
        sessions = await line_of(domain, await domain.start("send", agent="busy"), 3)
        await wait_all_tasks_blocked()
        calls = [session.relay.begin("send", b"{}") for session in sessions]
        begun = trio.current_time()
        await domain.run(OWNER, "session_end", session_id=sessions[0].id)
        assert trio.current_time() - begun == 1, "they stop side by side"
        for session, call in zip(sessions, calls, strict=True):
            with pytest.raises(RequestCancelled):
                await session.relay.outcome(call)
        await assert_all_ended(domain, sessions, ["ended"] * 4)
        assert runtime.open_now == 0
        order = [event.session_id for event in domain.records.stored if event.type == "session_ended"]
        assert order == [session.id for session in reversed(sessions)], "leaves first"


async def test_the_failure_of_a_parent_ends_its_children(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def work_then_fail(turn: Any) -> Any:
        await trio.sleep(5)
        return await fail(turn)

    agent = FakeAgent(work_then_fail)
    async with open_domain(tmp_path, agents={"fake": agent}) as domain:
        root = await domain.start(agent="fake")
        await trio.sleep(1)
        child, grandchild = (await line_of(domain, root, 2))[1:]
        await root.over.wait()
        assert trio.current_time() == 5
        await assert_all_ended(domain, [root, child, grandchild], ["failed", "ended", "ended"])


async def test_a_stop_of_the_daemon_ends_all(tmp_path: Path) -> None:
    async with open_family(tmp_path) as domain:
        sessions = await line_of(domain, await domain.start(agent="busy"), 3)
        await domain.sessions.end_all("shutdown")
        await assert_all_ended(domain, sessions, ["shutdown"] * 4)


async def test_the_end_of_a_child_is_its_own_and_its_childrens(tmp_path: Path) -> None:
    async with open_family(tmp_path) as domain:
        root, child, grandchild = await line_of(domain, await domain.start(), 2)
        sibling = await spawn(domain, root)
        await domain.sessions.end(child)
        await assert_all_ended(domain, [child, grandchild], ["ended", "ended"])
        assert (root.status, sibling.status, root.children) == ("running", "running", [sibling])


async def test_a_child_that_fails_does_not_fail_its_parent(tmp_path: Path) -> None:
    async with open_domain(tmp_path, agents={"weak": FakeAgent(fail), "external": None}) as domain:
        root = await domain.start()
        root.agent_name = "weak"
        child = await spawn(domain, root)
        await child.over.wait()
        assert (child.status, root.status, root.ending.is_set()) == ("failed", "running", False)


async def test_a_child_that_is_being_started_ends_with_its_parent(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_family(tmp_path) as domain:
        root, save = await domain.start(), domain.records.save_session

        async def take_a_while(record: Any) -> None:
            await trio.sleep(1)
            await save(record)

        domain.records.save_session = take_a_while  # type: ignore[method-assign]  # the records are slow
        errors: list[Conflict] = []

        async def start() -> None:
            try:
                await spawn(domain, root)
            except Conflict as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            await wait_all_tasks_blocked()
            await domain.sessions.end(root)
        assert len(errors) == 1
        assert list(domain.sessions.live) == []
        assert {record.status for record in domain.records.saved.values()} == {"ended"}


# Idle expiry


async def test_a_parent_lives_for_as_long_as_a_child_is_in_use(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_family(tmp_path, idle_timeout=100) as domain:
        root, child, grandchild = await line_of(domain, await domain.start(), 2)
        alone = await domain.start()
        for _ in range(10):
            await trio.sleep(60)
            grandchild.message("still at it")
        assert alone.status == "completed"
        assert [session.status for session in (root, child, grandchild)] == ["running"] * 3
        await root.over.wait()
        await assert_all_ended(domain, [root, child, grandchild], ["idle"] * 3)


async def test_a_child_that_nobody_uses_expires_under_a_busy_parent(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_family(tmp_path, idle_timeout=100) as domain:
        root, child = await line_of(domain, await domain.start(), 1)
        for _ in range(4):
            await trio.sleep(60)
            root.message("at it")
        assert (root.status, child.status) == ("running", "completed")


# The owner's streams


async def read(stream: Stream) -> list[tuple[str, str]]:
    events: list[Any] = [msgspec.json.decode(entry.data) for entry in await stream.ready(1000)]
    return [(event["session_id"], event["type"]) for event in events]


async def test_a_stream_with_children_is_given_a_childs_request(tmp_path: Path) -> None:
    """WIRE section 4.2: "`?children=true` adds the descendants"; the request names the child's session."""
    async with open_family(tmp_path) as domain:
        root = await domain.start("send")
        with (
            Stream(OWNER.token_id, domain.records) as stream,
            Following(stream, domain.sessions, OWNER.token_id) as following,
        ):
            stream.cover(root)
            following.descendants(root)
            child, grandchild = (await line_of(domain, root, 2))[1:]
            pending = grandchild.relay.begin("send", b'{"a":1}')
            found = await read(stream)
            assert found == [
                (child.id, "session_started"),
                (child.id, "message"),
                (grandchild.id, "session_started"),
                (grandchild.id, "message"),
                (grandchild.id, "caller_tool_request"),
            ]
            assert pending.given
            answer = {"session_id": grandchild.id, "request_id": pending.request_id, "result": "fine"}
            await domain.run(OWNER, "caller_tool_response", **answer)
            assert await grandchild.relay.outcome(pending) == b'"fine"'
            await domain.sessions.end(root)
            # It ends behind the last of them, which is the root.
            entries = [(entry.session_id, entry.type) for entry in await stream.batch()]
            assert entries[-1] == (root.id, "session_ended")
            assert await stream.batch() == []


async def test_a_stream_of_the_parent_alone_is_no_presence_in_its_child(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_family(tmp_path, relay=RelayLimits(attach_grace=5)) as domain:
        root = await domain.start("send")
        with domain.stream(root):
            child = await spawn(domain, root)
            with pytest.raises(CallerDisconnected):
                await child.relay.outcome(child.relay.begin("send", b"{}"))
            assert trio.current_time() == 5


@pytest.mark.parametrize("tool", ["session_get", "session_events"])
async def test_who_names_a_session_names_its_descendants(tmp_path: Path, tool: str) -> None:
    """WIRE section 4.1: "started, messaged, or named …, and of their descendants"."""
    async with open_family(tmp_path) as domain:
        family = await line_of(domain, await domain.start(), 2)
        await domain.start()
        named: list[str] = []
        call = Call(
            principal=OWNER,
            services=domain.services,
            door="mcp",
            on_named=lambda session, after: named.append(session.id),
        )
        await box.run(call, box.TOOLS[tool], msgspec.json.encode({"session_id": family[0].id}))
        assert named == [session.id for session in family]


async def test_a_follower_of_a_session_is_held_until_its_descendants_are_over(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_domain(tmp_path, agents={"busy": FakeAgent(never_end)}, runtime=SlowRuntime()) as domain:
        root, child = await line_of(domain, await domain.start(agent="busy"), 1)
        await wait_all_tasks_blocked()
        root.end("ended")
        page = await domain.run(OWNER, "session_events", session_id=root.id, follow=True)
        assert (page["status"], child.over.is_set(), trio.current_time()) == ("ended", True, 1)


async def test_nobody_answers_for_a_child_of_a_lost_owner(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A token that was revoked cannot come back for what is started after it."""
    async with open_family(tmp_path) as domain:
        root, before = await line_of(domain, await domain.start("send"), 1)
        domain.sessions.lose_owner(OWNER.token_id)
        after = await spawn(domain, before)
        for session in (root, before, after):
            with pytest.raises(CallerDisconnected):
                session.relay.begin("send", b"{}")
        assert trio.current_time() == 0


async def test_others_cannot_answer_for_a_child(tmp_path: Path) -> None:
    async with open_family(tmp_path) as domain:
        _, child = await line_of(domain, await domain.start("send"), 1)
        with domain.stream(child):
            pending = child.relay.begin("send", b"{}")
            for principal in (OTHER, STRANGER):
                with pytest.raises(Exception, match=r"belongs to another token|no session"):
                    await domain.run(
                        principal,
                        "caller_tool_response",
                        session_id=child.id,
                        request_id=pending.request_id,
                        result="forged",
                    )
            assert not pending.has_ended.is_set()


# Runtimes


async def test_a_runtime_that_is_not_here_is_refused_with_those_there_are(tmp_path: Path) -> None:
    async with open_family(tmp_path) as domain:
        with pytest.raises(InvalidParams) as refused:
            await domain.run(OWNER, "project_create", name="p", runtime="podman")
        assert refused.value.message == "unknown runtime 'podman'; one of: process"
        project = await domain.project("own")
        moved = msgspec.structs.replace(project, runtime="podman")
        domain.services.projects._projects[project.project_id] = moved
        with pytest.raises(InvalidParams) as refused:
            await domain.start(project_id=project.project_id)
        assert refused.value.message == "the runtime 'podman' is not to be had here; there is: process"
        assert refused.value.field == "runtime"
        assert list(domain.sessions.live) == []
        assert (await domain.run(OWNER, "project_options"))["runtimes"] == ["process"]
