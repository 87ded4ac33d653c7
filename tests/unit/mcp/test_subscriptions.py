"""Changes, told to who asked: `subscriptions/listen`, and the GET stream of the earlier revisions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette import changes
from oubliette.changes import GATHER
from oubliette.mcp.resources import RESOURCES, Resource
from oubliette.mcp.session import McpSession
from oubliette.session import Session
from tests.helpers.domain import STRANGER
from tests.unit.mcp.harness import Asker, Endpoint, Served, open_asker, open_endpoint, text_of

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
EVERYTHING: dict[str, Any] = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


def uri_of(session: Session) -> str:
    return f"oubliette://sessions/{session.id}/events"


@asynccontextmanager
async def listening(asker: Asker, *, id: Any = 1, **wanted: Any) -> AsyncIterator[list[Any]]:
    """Listens in the background; yields where the response will be. Leaving cancels it, as a peer that leaves."""
    answers: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            answers.append(await asker.ask("subscriptions/listen", id=id, notifications=wanted))

        nursery.start_soon(listen)
        await wait_all_tasks_blocked()
        yield answers
        nursery.cancel_scope.cancel()


async def told(asker: Asker) -> list[str]:
    """The methods of what was told since the acknowledgement."""
    await trio.sleep(2 * GATHER)
    return [message["method"].removeprefix("notifications/") for message in asker.sent.messages[1:]]


# subscriptions/listen


@pytest.mark.parametrize("id", [7, "listen-1", 1.0, "Ü\n"])
async def test_the_acknowledgement_comes_first_and_names_the_subscription(tmp_path: Path, id: Any) -> None:
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        wanted = {**EVERYTHING, "promptsListChanged": False, "resourceSubscriptions": [uri_of(session)]}
        async with listening(asker, id=id, **wanted):
            granted = {key: value for key, value in wanted.items() if value}
            params = {"notifications": granted, "_meta": {SUBSCRIPTION_ID: id}}
            method = "notifications/subscriptions/acknowledged"
            assert asker.sent.messages == [{"jsonrpc": "2.0", "method": method, "params": params}]


async def test_what_cannot_be_read_is_left_out_of_the_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RESOURCES, "oubliette://fixed", Resource(entry={}, contents={}))
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        uris = ["nope", "oubliette://sessions/ses_0/events", uri_of(session), "oubliette://fixed", uri_of(session)]
        async with listening(asker, resourceSubscriptions=uris):
            granted = asker.sent.messages[0]["params"]["notifications"]
            assert granted == {"resourceSubscriptions": [uri_of(session), "oubliette://fixed"]}
        stranger = Asker(asker.domain, STRANGER)
        async with listening(stranger, resourceSubscriptions=uris[:3]):
            assert stranger.sent.messages[0]["params"]["notifications"] == {}


@pytest.mark.parametrize(("key", "kind"), [(f"{kind}ListChanged", kind) for kind in changes.LISTS])
async def test_only_what_was_asked_for_is_told(tmp_path: Path, autojump_clock: MockClock, key: str, kind: Any) -> None:
    async with open_asker(tmp_path) as asker, listening(asker, id="x", **{key: True}):
        for each in changes.LISTS:
            asker.domain.services.changes.announce(each)
        assert await told(asker) == [f"{kind}/list_changed"]
        assert asker.sent.messages[1]["params"] == {"_meta": {SUBSCRIPTION_ID: "x"}}


async def test_updates_are_gathered_and_each_resource_is_told_of_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_asker(tmp_path) as asker:
        mine, other, unasked = [await asker.domain.start() for _ in range(3)]
        async with listening(asker, id=3, resourceSubscriptions=[uri_of(mine), uri_of(other)]):
            begun = trio.current_time()
            for session in (mine, mine, unasked, other, mine):
                session.message("x")
            assert await told(asker) == ["resources/updated", "resources/updated"]
            params = asker.sent.params("notifications/resources/updated")
            assert [each["uri"] for each in params] == [uri_of(mine), uri_of(other)]
            assert {each["_meta"][SUBSCRIPTION_ID] for each in params} == {3}
            assert asker.sent.times[-1] - begun == GATHER
            mine.message("y")
            assert await told(asker) == ["resources/updated"] * 3


async def test_what_happens_while_the_acknowledgement_is_on_its_way_is_told_behind_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        asker.sent.reads = trio.Event()
        async with listening(asker, toolsListChanged=True, resourceSubscriptions=[uri_of(session)]):
            for _ in range(1000):
                session.message("x")
                asker.domain.services.changes.announce("tools")
            await trio.sleep(60)
            asker.sent.reads.set()
            assert await told(asker) == ["tools/list_changed", "resources/updated"]


async def test_a_stop_of_the_daemon_ends_it_with_a_result(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        async with listening(asker, id="s", resourceSubscriptions=[uri_of(session)]) as answers:
            (watch,) = asker.domain.services.standing
            watch.finish()
            await wait_all_tasks_blocked()
            (answer,) = answers
            assert answer["id"] == "s"
            assert answer["result"]["resultType"] == "complete"
            assert answer["result"]["_meta"].keys() == {SUBSCRIPTION_ID, SERVER_INFO}
            assert answer["result"]["_meta"][SUBSCRIPTION_ID] == "s"
        assert_nothing_is_left(asker, session)


async def test_a_peer_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        session = await asker.domain.start()
        async with listening(asker, **EVERYTHING, resourceSubscriptions=[uri_of(session)]):
            assert session.log.watchers
            assert asker.domain.services.changes.watches
        assert_nothing_is_left(asker, session)
        assert session.status == "running"


def assert_nothing_is_left(asker: Asker, session: Session) -> None:
    assert session.log.watchers == {}
    assert asker.domain.services.changes.watches == set()
    assert asker.domain.services.standing == set()


async def test_two_subscriptions_are_told_apart(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_asker(tmp_path) as asker:
        second = Asker(asker.domain)
        async with listening(asker, id=1, toolsListChanged=True), listening(second, id=2, toolsListChanged=True):
            asker.domain.services.changes.announce("tools")
            await told(asker)
            for id, sent in ((1, asker.sent), (2, second.sent)):
                assert {message["params"]["_meta"][SUBSCRIPTION_ID] for message in sent.messages} == {id}
                assert len(sent.messages) == 2


async def test_there_is_a_limit_to_the_resources_of_one(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        wanted = {"resourceSubscriptions": ["x"] * (changes.MAX_RESOURCES + 1)}
        error = await asker.error("subscriptions/listen", notifications=wanted)
        assert error["data"]["kind"] == "limit_exceeded"
        assert asker.sent.messages == []


@pytest.mark.parametrize("params", [{}, {"notifications": None}, {"notifications": {"toolsListChanged": "yes"}}])
async def test_a_malformed_filter_is_invalid_params(tmp_path: Path, params: dict[str, Any]) -> None:
    async with open_asker(tmp_path) as asker:
        assert (await asker.error("subscriptions/listen", **params))["code"] == -32602


async def test_its_response_stays_open_with_comments(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_endpoint(tmp_path) as endpoint:
        served = endpoint.post("subscriptions/listen", notifications={"toolsListChanged": True})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(endpoint.run, served)
            await trio.sleep(20)
            endpoint.domain.services.changes.announce("tools")
            await trio.sleep(10)
            for standing in list(endpoint.domain.services.standing):
                standing.finish()
        assert [(at, piece[:1]) for at, piece in served.pieces] == [
            (0, b"e"),
            (1, b":"),
            (16, b":"),
            (20 + GATHER, b"e"),
            (30, b"e"),
        ]
        assert served.has_ended
        acknowledged, changed, answer = served.messages
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert changed["method"] == "notifications/tools/list_changed"
        assert answer["result"]["resultType"] == "complete"


# The GET stream of the earlier revisions


@asynccontextmanager
async def streaming(endpoint: Endpoint, session: McpSession) -> AsyncIterator[Served]:
    """Opens the GET stream; leaving closes it."""
    served = endpoint.within(session)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.run, served)
        await wait_all_tasks_blocked()
        yield served
        served.gone.set()


async def ask(endpoint: Endpoint, session: McpSession, method: str, **params: Any) -> Any:
    return (await endpoint.run(endpoint.within(session, text_of(method, **params)))).json


async def changed(served: Served) -> list[Any]:
    await trio.sleep(2 * GATHER)
    return [message for message in served.messages if "list_changed" in str(message) or "updated" in str(message)]


async def test_changes_of_lists_come_on_the_get_stream(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_endpoint(tmp_path) as endpoint, streaming(endpoint, endpoint.open_session()) as served:
        endpoint.domain.services.changes.announce("tools")
        endpoint.domain.services.changes.announce("tools")
        endpoint.domain.services.changes.announce("prompts")
        assert await changed(served) == [
            {"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed", "params": {}}
            for kind in ("tools", "prompts")
        ]
        assert b"id:" not in served.body, "a change cannot be resumed from"


async def test_updates_come_between_subscribe_and_unsubscribe(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_endpoint(tmp_path) as endpoint:
        session, mcp = await endpoint.domain.start(), endpoint.open_session()
        async with streaming(endpoint, mcp) as served:
            for _ in range(2):
                assert (await ask(endpoint, mcp, "resources/subscribe", uri=uri_of(session)))["result"] == {}
            session.message("heard")
            updated = {"jsonrpc": "2.0", "method": "notifications/resources/updated"}
            assert await changed(served) == [{**updated, "params": {"uri": uri_of(session)}}]
            for _ in range(2):
                assert (await ask(endpoint, mcp, "resources/unsubscribe", uri=uri_of(session)))["result"] == {}
            session.message("unheard")
            assert len(await changed(served)) == 1
        assert session.log.watchers == {}


async def test_what_changes_without_a_get_stream_is_told_on_the_next(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_endpoint(tmp_path) as endpoint:
        session, mcp = await endpoint.domain.start(), endpoint.open_session()
        await ask(endpoint, mcp, "resources/subscribe", uri=uri_of(session))
        session.message("x")
        endpoint.domain.services.changes.announce("tools")
        async with streaming(endpoint, mcp) as first, streaming(endpoint, mcp) as second:
            assert await changed(first) == []
            assert first.has_ended
            assert len(await changed(second)) == 2
            session.message("y")
            assert len(await changed(second)) == 3


async def test_subscribing_to_what_there_is_not_is_refused(tmp_path: Path) -> None:
    async with open_endpoint(tmp_path) as endpoint:
        mcp = endpoint.open_session()
        for uri in ("nope", "oubliette://sessions/ses_0/events", "oubliette://sessions//events"):
            error = (await ask(endpoint, mcp, "resources/subscribe", uri=uri))["error"]
            assert (error["code"], error["data"]["uri"]) == (-32002, uri)


async def test_the_end_of_an_mcp_session_ends_its_subscriptions(tmp_path: Path) -> None:
    async with open_endpoint(tmp_path) as endpoint:
        session, mcp = await endpoint.domain.start(), endpoint.open_session()
        await ask(endpoint, mcp, "resources/subscribe", uri=uri_of(session))
        assert session.log.watchers
        endpoint.mcp_sessions.close(mcp)
        assert session.log.watchers == {}
        assert endpoint.domain.services.changes.watches == set()


async def test_a_resource_that_never_changes_may_be_subscribed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RESOURCES, "oubliette://fixed", Resource(entry={}, contents={}))
    async with open_endpoint(tmp_path) as endpoint:
        mcp = endpoint.open_session()
        assert (await ask(endpoint, mcp, "resources/subscribe", uri="oubliette://fixed"))["result"] == {}
        assert (await ask(endpoint, mcp, "resources/unsubscribe", uri="oubliette://fixed"))["result"] == {}
