"""Streams of events over plain HTTP, and pages: what is delivered, once, in order, to whom (WIRE section 4.3)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from oubliette.protocol.sse import ServerSentEvent
from tests.helpers.http import Api, EventReader
from tests.helpers.link import open_link
from tests.helpers.mcp_http import initialized
from tests.helpers.peer import break_off, open_peer
from tests.helpers.process import DaemonProcess

MIB = 1024 * 1024
PAGE = {"Accept": "application/json"}


@pytest.fixture(scope="module")
def tiny_daemon() -> Iterator[DaemonProcess]:
    """A daemon whose rings hold five events."""
    with DaemonProcess("sessions: {event_buffer: 5}") as process:
        yield process


@pytest.fixture
def tiny(tiny_daemon: DaemonProcess) -> Api:
    return Api(tiny_daemon.port, tiny_daemon.admin_token)


async def say(api: Api, session: Any, *texts: str) -> None:
    for text in texts:
        assert (await api.post(f"/sessions/{session['session_id']}/messages", {"message": text})).status == 202


async def take(events: EventReader, count: int) -> list[ServerSentEvent]:
    return [await events.next() for _ in range(count)]


async def drain(events: EventReader) -> list[ServerSentEvent]:
    """Returns what comes until the end of the response."""
    found = []
    while True:
        try:
            found.append(await events.next())
        except trio.EndOfChannel:
            return found


async def end(api: Api, session: Any) -> None:
    assert (await api.request("DELETE", f"/sessions/{session['session_id']}")).status == 200


def path_of(session: Any, query: str = "") -> str:
    return f"/sessions/{session['session_id']}/events{query}"


def ids(events: list[ServerSentEvent]) -> list[str]:
    return [event.id for event in events]


@asynccontextmanager
async def another(api: Api, scope: str = "admin") -> AsyncIterator[Api]:
    """Another token of that scope, as an API."""
    mcp = await initialized(api)
    created = (await mcp.call("token_create", name="another", scope=scope))["structuredContent"]
    yield Api(api.port, created["token"])


# --- one session ---


async def test_how_a_stream_looks_on_the_wire(api: Api) -> None:
    session = await api.start_session()
    async with open_peer(api.port) as peer:
        lines = f"GET {path_of(session, '?since_index=0')} HTTP/1.1\r\nHost: localhost\r\n"
        await peer.send(f"{lines}Authorization: Bearer {api.token}\r\n\r\n".encode())
        await end(api, session)
        status, headers, body = await peer.response()
    assert status == 200
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert (headers[b"cache-control"], headers[b"x-accel-buffering"]) == (b"no-store", b"no")
    assert headers[b"transfer-encoding"] == b"chunked"
    first, *frames, last = body.split(b"\n\n")
    assert (first, last) == (b": open", b"")
    for index, (frame, kind) in enumerate(zip(frames, ["session_started", "message", "session_ended"], strict=True)):
        id, event, data = frame.split(b"\n")
        assert (id, event) == (b"id: %d" % (index + 1), b"event: %b" % kind.encode())
        decoded = json.loads(data.removeprefix(b"data: "))
        assert (decoded["type"], decoded["index"]) == (kind, index + 1)
        assert decoded["session_id"] == session["session_id"]


async def test_a_client_of_http_1_0_gets_a_stream_too(api: Api) -> None:
    session = await api.start_session()
    await end(api, session)
    async with open_peer(api.port) as peer:
        lines = f"GET {path_of(session, '?since_index=2')} HTTP/1.0\r\nHost: localhost\r\n"
        await peer.send(f"{lines}Authorization: Bearer {api.token}\r\n\r\n".encode())
        head, _, body = (await peer.rest()).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body.startswith(b": open\n\nid: 3\nevent: session_ended\ndata: {")


@pytest.mark.parametrize(
    ("headers", "query", "first"),
    [
        ({}, "?since_index=0", "1"),
        ({}, "?since_index=3", "4"),
        ({"Last-Event-ID": "3"}, "", "4"),
        ({"Last-Event-ID": "3"}, "?since_index=0", "4"),
        ({"Last-Event-ID": "0"}, "", "1"),
        ({}, "", "6"),
    ],
)
async def test_a_stream_resumes_where_it_is_told(api: Api, headers: dict[str, str], query: str, first: str) -> None:
    session = await api.start_session()
    await say(api, session, "3", "4", "5")
    async with api.events(path_of(session, query), headers) as events:
        await end(api, session)
        assert ids(await drain(events)) == [str(index) for index in range(int(first), 7)]


@pytest.mark.parametrize("index", ["x", "-1", "1.5", "1e3", " ", "٣", "9" * 19, "3,4", "3 4", "0x3", "null"])
async def test_a_malformed_resume_point_is_refused(api: Api, index: str) -> None:
    session = await api.start_session()
    if index.strip() and index.isascii():
        reply = await api.get(path_of(session), {"Last-Event-ID": index})
        assert (reply.status, reply.error["kind"]) == (400, "invalid_params")
    quoted = "".join(f"%{byte:02x}" for byte in index.encode())
    reply = await api.get(path_of(session, f"?since_index={quoted}"))
    assert (reply.status, reply.error["field"]) == (400, "since_index")


async def test_pending_requests_come_first_without_id_and_once_a_stream(api: Api) -> None:
    """Given at most once on one stream, and again on another: for the caller `request_id` is the idempotency key."""
    session = await api.start_session("echo")
    async with open_link(session["socket"]) as link, api.events(path_of(session)) as first:
        for number in range(3):
            await link.call("echo", {"n": number}, id=number)
        given = await take(first, 3)
        assert ids(given) == ["3", "4", "5"]
        async with api.events(path_of(session)) as second, api.events(path_of(session, "?since_index=3")) as third:
            again = await take(second, 3)
            assert [event.data for event in again] == [event.data for event in given]
            assert ids(again) == ["", "", ""]
            assert ids(await take(third, 2)) == ["4", "5"]
            for event in given:
                reply = await api.answer(session, json.loads(event.data)["request_id"], result=None)
                assert reply.status == 204
            for events in (first, second, third):
                resolved = await take(events, 3)
                assert [event.type for event in resolved] == ["caller_tool_resolved"] * 3
                assert ids(resolved) == ["6", "7", "8"]
        async with api.events(path_of(session)) as late:
            await say(api, session, "more")
            assert (await late.next()).id == "9", "what was answered is not pending"


async def test_the_stream_of_an_ended_session_ends(api: Api) -> None:
    session = await api.start_session()
    await end(api, session)
    async with api.events(path_of(session)) as events:
        assert await drain(events) == []
    async with api.events(path_of(session, "?since_index=0")) as events:
        assert [event.type for event in await drain(events)] == ["session_started", "message", "session_ended"]


@pytest.mark.parametrize(
    ("accept", "status", "kind"),
    [
        ("", 200, "text/event-stream"),
        ("*/*", 200, "text/event-stream"),
        ("text/event-stream", 200, "text/event-stream"),
        ("application/json, text/event-stream", 200, "text/event-stream"),
        ("Application/JSON", 200, "application/json"),
        ("text/html", 406, "application/json"),
    ],
)
async def test_accept_chooses_between_a_stream_and_a_page(api: Api, accept: str, status: int, kind: str) -> None:
    session = await api.start_session()
    await end(api, session)
    reply = await api.get(path_of(session), {"Accept": accept})
    assert reply.status == status
    assert reply.headers["content-type"].startswith(kind)


# --- slow readers ---


async def test_events_older_than_the_ring_come_from_the_records(tiny: Api) -> None:
    session = await tiny.start_session()
    await say(tiny, session, *(f"message {number}" for number in range(20)))
    await end(tiny, session)
    everything = [str(index) for index in range(1, 24)]
    for since in (0, 1, 17, 18, 22, 23):
        async with tiny.events(path_of(session, f"?since_index={since}")) as events:
            assert ids(await drain(events)) == everything[since:]
    page = (await tiny.get(path_of(session, "?since_index=2&limit=3"), PAGE)).json
    assert [event["index"] for event in page["events"]] == [3, 4, 5]


async def test_a_reader_that_falls_out_of_the_ring_is_told_and_resumes(tiny: Api) -> None:
    """Healthy readers of the same session miss nothing meanwhile (HAZARDS G5)."""
    session = await tiny.start_session()
    texts = [f"{number}" * MIB for number in range(9)]
    async with tiny.events(path_of(session)) as slow, tiny.events(path_of(session)) as healthy:
        for text in texts:
            await say(tiny, session, text)
            assert json.loads((await healthy.next()).data)["text"] == text
        found = await drain(slow)
        assert b"you fell behind" in slow.comments
        assert 0 < len(found) < len(texts)
    async with tiny.events(path_of(session), {"Last-Event-ID": found[-1].id}) as again:
        found += await take(again, len(texts) - len(found))
    assert [json.loads(event.data)["text"] for event in found] == texts


# --- all sessions of a principal ---


async def test_the_stream_of_all_sessions_resumes_without_loss_or_repetition(api: Api) -> None:
    async with another(api) as owner, another(api) as stranger:
        async with owner.events("/events") as events:
            one = await owner.start_session("echo")
            two = await owner.start_session("echo")
            await stranger.start_session("echo")
            await say(owner, one, "a", "b")
            await say(owner, two, "c")
            await end(owner, one)
            whole = await take(events, 8)
        assert len(set(ids(whole))) == 8
        assert [json.loads(event.data)["session_id"] for event in whole] == [
            *[one["session_id"]] * 2,
            *[two["session_id"]] * 2,
            *[one["session_id"]] * 2,
            two["session_id"],
            one["session_id"],
        ]
        for position, event in enumerate(whole[:-1]):
            async with owner.events("/events", {"Last-Event-ID": event.id}) as again:
                assert await take(again, 7 - position) == whole[position + 1 :]


@pytest.mark.parametrize("id", ["", "5", "nonsense", "0123456789abcdef0123456789abcdef-1"])
async def test_an_unknown_id_on_the_stream_of_all_is_a_fresh_one(api: Api, id: str) -> None:
    async with another(api) as owner:
        session = await owner.start_session("echo")
        async with open_link(session["socket"]) as link:
            await link.call("echo")
            async with owner.events("/events", {"Last-Event-ID": id}) as events:
                pending = await events.next()
                assert (pending.type, pending.id) == ("caller_tool_request", "")
                await say(owner, session, "next")
                assert (await events.next()).type == "message"


async def test_positions_survive_a_restart(tiny_daemon: DaemonProcess) -> None:
    async with another(Api(tiny_daemon.port, tiny_daemon.admin_token)) as owner:
        async with owner.events("/events") as events:
            sessions = [await owner.start_session() for _ in range(3)]
            for _ in range(3):
                for session in sessions:
                    await say(owner, session, "hello")
            whole = await take(events, 15)
            assert tiny_daemon.stop() == 0
            tiny_daemon.kill()
            whole += await drain(events)
        assert [event.type for event in whole[15:]] == ["session_ended"] * 3
        tiny_daemon.start()
        after = Api(tiny_daemon.port, owner.token)
        for position in (0, 7, 14, 16):
            async with after.events("/events", {"Last-Event-ID": whole[position].id}) as again:
                assert await take(again, 17 - position) == whole[position + 1 :]
        async with after.events("/events", {"Last-Event-ID": whole[17].id}) as again:
            fresh = await after.start_session()
            assert json.loads((await again.next()).data)["session_id"] == fresh["session_id"]
        for session in sessions:
            async with after.events(path_of(session, "?since_index=1")) as events:
                ended = await drain(events)
            assert ids(ended) == ["2", "3", "4", "5", "6"]
            assert json.loads(ended[-1].data)["reason"] == "shutdown"


# --- who counts ---


async def test_an_observer_sees_everything_and_does_not_count(api: Api) -> None:
    session = await api.start_session("echo")
    async with another(api) as observer, open_link(session["socket"]) as link:
        async with observer.events(path_of(session)) as seen:
            async with api.events(path_of(session)) as events:
                await link.call("echo")
                assert (await seen.next()).id == (await events.next()).id == "3"
            error = (await link.receive())["error"]
            assert (error["code"], error["data"]["retry_safe"]) == (-32003, False)
            assert (await seen.next()).type == "caller_tool_cancelled"
            await link.call("echo", id=2)
            error = (await link.receive())["error"]
            assert (error["code"], error["data"]["retry_safe"]) == (-32003, True), "the observer is nobody's caller"
        async with observer.events("/events") as others:
            mine = await observer.start_session()
            assert json.loads((await others.next()).data)["session_id"] == mine["session_id"]


@pytest.mark.parametrize("polite", [True, False])
async def test_the_last_stream_that_closes_ends_what_is_pending(api: Api, polite: bool) -> None:
    """HAZARDS F1: with FIN and with RST. One of two that closes ends nothing."""
    session = await api.start_session("echo")
    token = f"Authorization: Bearer {api.token}"
    sent = f"GET {path_of(session)} HTTP/1.1\r\nHost: localhost\r\n{token}\r\n\r\n".encode()
    async with open_link(session["socket"]) as link:
        async with api.events(path_of(session)) as events:
            await link.call("echo")
            await break_off(api.port, sent, polite=polite, reads=True)
            _, request = await events.next_of("caller_tool_request")
            assert (await api.answer(session, request["request_id"], result=1)).status == 204
            assert (await link.receive())["result"] == 1
            await link.call("echo", id=2)
            await events.next_of("caller_tool_request")
        assert (await link.receive())["error"]["data"] == {"kind": "caller_disconnected", "retry_safe": False}


# --- pages ---


async def test_pages_of_events(api: Api) -> None:
    session = await api.start_session()
    await say(api, session, *(str(number) for number in range(5)))

    async def page(query: str) -> list[int]:
        found = (await api.get(path_of(session, query), PAGE)).json
        assert (found["last_index"], found["status"], found["failed"]) == (7, "running", False)
        return [event["index"] for event in found["events"]]

    assert await page("") == [1, 2, 3, 4, 5, 6, 7]
    assert await page("?since_index=5") == [6, 7]
    assert await page("?since_index=2&limit=2") == [3, 4]
    assert await page("?since_index=7") == []
    assert await page("?since_index=7&wait_seconds=0.01") == []
    assert await page("?since_index=6&wait_seconds=20") == [7], "what is there is not waited for"


async def test_a_poll_returns_with_the_first_event_and_counts_as_connected(api: Api) -> None:
    session = await api.start_session("echo")
    pages: list[Any] = []

    async def poll() -> None:
        pages.append((await api.get(path_of(session, "?since_index=2&wait_seconds=15"), PAGE)).json)

    async with open_link(session["socket"]) as link:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await link.call("echo")
        (request,) = pages[0]["events"]
        assert request["type"] == "caller_tool_request"
        assert (await api.answer(session, request["request_id"], result="polled")).status == 204
        assert (await link.receive())["result"] == "polled"
        # Within the grace a request waits for the next poll; after it there is nobody.
        await link.call("echo", id=2)
        error = (await link.receive())["error"]
        assert error["data"] == {"kind": "caller_disconnected", "retry_safe": True}
        await link.call("echo", id=3)
        assert (await link.receive())["error"]["data"]["kind"] == "caller_disconnected"
