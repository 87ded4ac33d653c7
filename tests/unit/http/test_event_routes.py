"""The two event streams over a domain without sockets: what is covered, and what an `id:` says."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from oubliette.events import RingLimits
from oubliette.http.event_routes import EventRoutes
from oubliette.http.positions import Positions
from oubliette.http.request import Request
from oubliette.session import Session
from oubliette.starting import NewSession
from tests.helpers.domain import OTHER, OWNER, Domain, open_domain

# One event of a stream: its id, where it has one, its type, and the session that it is of.
_EVENT = re.compile(rb'(?:id: (\S+)\n)?event: (\w+)\ndata: \{"type":"\w+","session_id":"(\w+)"')


class Follower:
    """A request for a stream, and what was answered."""

    def __init__(self, path: str, headers: dict[bytes, bytes], query: bytes = b"") -> None:
        self.answer = b""
        scope = {"method": "GET", "path": path, "headers": list(headers.items()), "query_string": query}
        self.request = Request(scope, self._receive, self._send)
        self.request.principal = OWNER

    @property
    def events(self) -> list[tuple[str, str, str]]:
        return [(id.decode(), kind.decode(), of.decode()) for id, kind, of in _EVENT.findall(self.answer)]

    async def _receive(self) -> Any:
        await trio.sleep_forever()

    async def _send(self, message: dict[str, Any]) -> None:
        self.answer += message.get("body", b"")


@asynccontextmanager
async def following(
    domain: Domain, path: str, headers: dict[bytes, bytes] | None = None, query: bytes = b""
) -> AsyncIterator[Follower]:
    routes = EventRoutes(domain.services, Positions("x", domain.sessions.journal))
    follower = Follower(path, headers or {}, query)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(routes, follower.request)
        await wait_all_tasks_blocked()
        yield follower
        nursery.cancel_scope.cancel()


@pytest.fixture
async def domain(tmp_path: Path) -> AsyncIterator[Domain]:
    async with open_domain(tmp_path, ring=RingLimits(events=2)) as domain:
        yield domain


async def start_child(domain: Domain, parent: Session, owner: str = "owner") -> Session:
    """Starts a session below `parent`, as an agent's `session_message` does."""
    project = domain.services.projects.project("default")
    new = NewSession(
        owner=owner,
        project=project,
        workspace=domain.services.projects.workspace(project, None),
        agent="external",
        message="go",
        declaration=None,
    )

    def adopt(session: Session) -> None:
        session.parent_id = parent.id

    child, _ = await domain.sessions.start(new, adopt)
    return child


async def test_descendants_are_added_where_they_are_asked_for(domain: Domain) -> None:
    root = await domain.start()
    before = await start_child(domain, root)
    path = f"/sessions/{root.id}/events"
    async with following(domain, path) as alone, following(domain, path, query=b"children=true") as family:
        later = await start_child(domain, before)
        root.message("to the root")
        before.message("to the child")
        await wait_all_tasks_blocked()
        assert alone.events == [("3", "message", root.id)]
        assert family.events == [
            ("", "session_started", later.id),
            ("", "message", later.id),
            ("3", "message", root.id),
            ("", "message", before.id),
        ], "an index names an event of the session that was asked for, so a descendant's is no id here"


@pytest.mark.parametrize("method", ["sessions_since", "last_indexes"])
async def test_a_session_that_starts_while_a_stream_resumes_is_delivered_once(domain: Domain, method: str) -> None:
    old = await domain.start()
    for number in range(5):
        old.message(str(number))
    read = getattr(domain.records, method)
    started: list[Session] = []

    async def read_and_start(*arguments: Any) -> Collection[Any]:
        found: Collection[Any] = await read(*arguments)
        if not started:
            started.append(await domain.start())
        return found

    setattr(domain.records, method, read_and_start)
    async with following(domain, "/events", {b"last-event-id": b"x-2"}) as follower:
        old.message("last")
        await wait_all_tasks_blocked()
        ids = [id for id, _, _ in follower.events]
        assert len(ids) == len(set(ids)) == 8, follower.events
        assert [kind for _, kind, of in follower.events if of == started[0].id] == ["session_started", "message"]
        assert [of for _, _, of in follower.events].count(old.id) == 6


async def test_all_of_a_principal_are_its_own(domain: Domain) -> None:
    mine = await domain.start()
    async with following(domain, "/events") as follower:
        await start_child(domain, mine, owner=OTHER.token_id)
        mine.message("hi")
        await wait_all_tasks_blocked()
        assert follower.events == [("x-5", "message", mine.id)]


async def test_a_reader_of_all_may_come_back_with_any_id(domain: Domain) -> None:
    """Whatever the last id was that it saw: what follows is the rest, in order, once."""
    one, two = await domain.start(), await domain.start()
    async with following(domain, "/events", {b"last-event-id": b"x-0"}) as first:
        for number in range(4):
            one.message(str(number))
            two.message(str(number))
            await wait_all_tasks_blocked()
        await domain.sessions.end(two)
        await wait_all_tasks_blocked()
        whole = first.events
    assert len(whole) == 13
    for position, (id, _, _) in enumerate(whole):
        async with following(domain, "/events", {b"last-event-id": id.encode()}) as again:
            assert again.events == whole[position + 1 :]
