"""What a stream covers as sessions start: descendants, or everything of its principal (WIRE sections 4.2 and 4.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oubliette.following import Following
from oubliette.session import Session
from oubliette.streams import Stream
from tests.helpers.domain import OTHER, OWNER, Domain, open_domain
from tests.unit.mcp.harness import child_of, is_attached


@pytest.fixture
async def domain(tmp_path: Path) -> AsyncIterator[Domain]:
    async with open_domain(tmp_path) as domain:
        yield domain


class Follower:
    """A stream of a principal and what it follows."""

    def __init__(self, domain: Domain, principal: str = OWNER.token_id) -> None:
        self.stream = Stream(principal, domain.records).stay_open()
        self.following = Following(self.stream, domain.sessions, principal)

    async def read(self) -> list[tuple[str, str]]:
        """The sessions and the texts, or else the types, of what is ready."""
        events: list[Any] = [msgspec.json.decode(entry.data) for entry in await self.stream.ready(1000)]
        return [(event["session_id"], event.get("text", event["type"])) for event in events]


async def start_as(domain: Domain, principal: Any) -> Session:
    view = await domain.run(principal, "session_message", message="hello")
    return await domain.sessions.find(view["session_id"])


async def test_descendants_to_come_are_covered_from_their_first_event(domain: Domain) -> None:
    root, stranger, follower = await domain.start(), await domain.start(), Follower(domain)
    with follower.stream, follower.following as following:
        following.descendants(root)
        child = child_of(domain, root, "ses_child")
        grandchild = child_of(domain, child, "ses_grandchild")
        unrelated = child_of(domain, stranger, "ses_unrelated")
        for session in (grandchild, child, unrelated, root):
            session.message("x")
        assert await follower.read() == [("ses_grandchild", "x"), ("ses_child", "x")]
        assert is_attached(child)
        assert not is_attached(unrelated)


async def test_descendants_that_there_are_are_covered_from_now_on(
    domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, follower = await domain.start(), Follower(domain)
    child = child_of(domain, root, "ses_child")
    grandchild = child_of(domain, child, "ses_grandchild")
    monkeypatch.setattr(domain.sessions, "_live", {session.id: session for session in (root, child, grandchild)})
    for session in (child, grandchild):
        session.message("before")
    with follower.stream, follower.following as following:
        following.descendants(root)
        for session in (child, grandchild):
            session.message("after")
        assert await follower.read() == [("ses_child", "after"), ("ses_grandchild", "after")]


async def test_everything_is_what_the_principal_owns(domain: Domain) -> None:
    before, follower = await domain.start(), Follower(domain)
    with follower.stream, follower.following as following:
        following.everything()
        others = await start_as(domain, OTHER)
        later = await domain.start()
        for session in (before, others, later):
            session.message("x")
        assert await follower.read() == [
            (later.id, "session_started"),
            (later.id, "hello"),
            (before.id, "x"),
            (later.id, "x"),
        ]
        assert not is_attached(others)


async def test_a_descendant_counts_once_whatever_is_followed(domain: Domain) -> None:
    root, follower = await domain.start(), Follower(domain)
    with follower.stream, follower.following as following:
        following.everything()
        following.descendants(root)
        child_of(domain, root, "ses_child").message("x")
        assert await follower.read() == [("ses_child", "x")]


async def test_everything_resumes_without_what_was_read(domain: Domain) -> None:
    session = await domain.start()
    seq = domain.sessions.journal.last_seq
    session.message("missed")
    follower = Follower(domain)
    with follower.stream, follower.following as following:
        await following.resume_everything(seq)
        later = await domain.start()
        assert await follower.read() == [
            (session.id, "missed"),
            (later.id, "session_started"),
            (later.id, "hello"),
        ]


async def test_outside_its_block_nothing_more_is_covered(domain: Domain) -> None:
    follower = Follower(domain)
    with follower.stream:
        with follower.following as following:
            following.everything()
        session = await domain.start()
        assert await follower.read() == []
        assert not is_attached(session)
    assert domain.sessions.watchers == set()
