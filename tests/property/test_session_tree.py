"""A tree of sessions, grown and cut at random: who lives beneath whom, within which bounds, and what goes with an end.

Hypothesis chooses the steps; a small model beside the domain says which sessions are alive (HAZARDS F35, G10).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from oubliette.errors import Conflict, LimitExceeded, RequestCancelled
from oubliette.relay import Pending
from oubliette.session import Session
from tests.helpers.agents import FakeAgent, FakeRuntime, echo, fail
from tests.helpers.domain import OWNER, Domain, open_domain

MAX_DEPTH, MAX_CHILDREN = 3, 2

numbers = st.integers(min_value=0, max_value=50)
steps = st.one_of(
    st.tuples(st.sampled_from(["start", "spawn", "end", "fail", "declare", "call"]), numbers),
    # More of what makes a tree than of what cuts it.
    st.tuples(st.just("spawn"), numbers),
)
FAIL: Final = "fail"


async def obey(turn: Any) -> Any:
    """Says what it was told, or fails where it was told to."""
    return await (fail if turn.prompt == FAIL else echo)(turn)


class Tree:
    """The domain's sessions, and the model: `parents` of those that should be alive, by name."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.all: list[Session] = []
        self.parents: dict[str, str | None] = {}
        self.calls: list[tuple[Session, Pending]] = []
        self.callers: dict[str, str | None] = {}

    def pick(self, number: int) -> Session | None:
        return self.all[number % len(self.all)] if self.all else None

    def beneath(self, id: str) -> set[str]:
        children = {child for child, parent in self.parents.items() if parent == id}
        return children.union(*(self.beneath(child) for child in children))

    def grew(self, session: Session, caller: str | None) -> None:
        self.all.append(session)
        self.parents[session.id] = session.parent_id
        self.callers[session.id] = caller

    def was_cut(self, id: str) -> None:
        for gone in self.beneath(id) | {id}:
            self.parents.pop(gone, None)

    def depth(self, id: str) -> int:
        parent = self.parents[id]
        return 0 if parent is None else self.depth(parent) + 1

    async def start(self, number: int) -> None:
        self.grew(await self.domain.start("send", agent="fake"), "myapp")

    async def spawn(self, number: int) -> None:
        parent = self.pick(number)
        if parent is None:
            return
        children = sum(one == parent.id for one in self.parents.values())
        is_alive = parent.id in self.parents
        may = is_alive and self.depth(parent.id) < MAX_DEPTH and children < MAX_CHILDREN
        if may:
            child, _ = await self.domain.sessions.spawn(parent, "work")
            self.grew(child, self.callers[parent.id])
        else:
            with pytest.raises(LimitExceeded if is_alive else Conflict):
                await self.domain.sessions.spawn(parent, "work")

    async def end(self, number: int) -> None:
        session = self.pick(number)
        if session is not None:
            beneath = self.beneath(session.id)
            await self.domain.sessions.end(session)
            assert all(one.over.is_set() for one in self.all if one.id in beneath)
            self.was_cut(session.id)

    async def fail(self, number: int) -> None:
        session = self.pick(number)
        if session is not None and session.id in self.parents:
            session.message(FAIL)
            await session.over.wait()
            assert session.status == "failed"
            self.was_cut(session.id)

    async def declare(self, number: int) -> None:
        session = self.pick(number)
        if session is not None and session.id in self.parents:
            context = {"caller_id": f"c{number}", "caller_tools": [{"name": "send"}]}
            await self.domain.run(OWNER, "session_message", session_id=session.id, message="x", context=context)
            self.callers.update(dict.fromkeys(self.beneath(session.id) | {session.id}, f"c{number}"))

    async def call(self, number: int) -> None:
        session = self.pick(number)
        if session is not None and session.id in self.parents:
            self.calls.append((session, session.relay.begin("send", b"{}")))

    async def check(self) -> None:
        live = {session.id: session for session in self.domain.sessions.live}
        assert {id: session.parent_id for id, session in live.items()} == self.parents
        for id, session in live.items():
            assert {child.id for child in session.children} == {c for c, parent in self.parents.items() if parent == id}
            assert session.depth == self.depth(id) <= MAX_DEPTH
            assert session.caller.caller_id == self.callers[id]
        for session, pending in list(self.calls):
            assert pending.has_ended.is_set() == (session.id not in live)
            if pending.has_ended.is_set():
                assert isinstance(pending.outcome, RequestCancelled)
                self.calls.remove((session, pending))


async def grow_and_cut(chosen: list[tuple[str, int]], folder: Path) -> None:
    runtime = FakeRuntime()
    async with open_domain(
        folder, agents={"fake": FakeAgent(obey)}, runtime=runtime, max_depth=MAX_DEPTH, max_children=MAX_CHILDREN
    ) as domain:
        tree = Tree(domain)
        for kind, number in chosen:
            await getattr(tree, kind)(number)
            await tree.check()
        await domain.sessions.end_all("shutdown")
        assert (list(domain.sessions.live), runtime.open_now) == ([], 0)
        ended = [msgspec.json.decode(event.data) for event in domain.records.stored if event.type == "session_ended"]
        assert sorted(event["session_id"] for event in ended) == sorted(session.id for session in tree.all)
        assert not list((folder / "agents").glob("ses_*"))


@settings(deadline=None, max_examples=50)
@given(st.lists(steps, min_size=1, max_size=40).map(lambda chosen: [("start", 0), *chosen]))
def test_a_tree_of_sessions_is_what_the_model_says(chosen: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(grow_and_cut, chosen, Path(folder), clock=MockClock(autojump_threshold=0))
