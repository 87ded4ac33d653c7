"""The response to a POST: one JSON object where the answer comes soon and alone, else a stream (WIRE section 4.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.agents.base import Turn, TurnResult
from oubliette.errors import NotAcceptable
from tests.helpers.agents import FakeAgent, work_for_a_second
from tests.unit.mcp.harness import LOGGED, META, Endpoint, Served, is_attached, open_endpoint, text_of


async def think(turn: Turn) -> TurnResult:
    await trio.sleep(25)
    return TurnResult(text="done")


@asynccontextmanager
async def serving(endpoint: Endpoint, served: Served) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.run, served)
        await wait_all_tasks_blocked()
        yield
        served.gone.set()


async def test_an_answer_that_comes_soon_and_alone_is_one_json_object(tmp_path: Path) -> None:
    async with open_endpoint(tmp_path) as endpoint:
        arguments = {"message": "hi", "agent": "external"}
        served = await endpoint.run(endpoint.post("tools/call", name="session_message", arguments=arguments))
        assert served.status == 200
        assert served.json["result"]["structuredContent"]["status"] == "running"


async def test_comments_come_after_a_second_and_then_every_15(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_endpoint(tmp_path, agents={"thinker": FakeAgent(think)}) as endpoint:
        arguments = {"message": "x", "agent": "thinker", "wait": True}
        served = await endpoint.run(endpoint.post("tools/call", name="session_message", arguments=arguments))
        assert [(at, piece[:1]) for at, piece in served.pieces] == [(1, b":"), (16, b":"), (25, b"e")]
        assert served.has_ended
        (answer,) = served.messages
        assert answer["result"]["structuredContent"]["text"] == "done"
        assert served.headers[b"cache-control"] == b"no-store"
        assert served.headers[b"x-accel-buffering"] == b"no"


async def test_who_reads_json_alone_is_sent_json_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_endpoint(tmp_path, agents={"thinker": FakeAgent(think)}) as endpoint:
        arguments = {"message": "x", "agent": "thinker", "wait": True}
        params: dict[str, Any] = {
            "name": "session_message",
            "arguments": arguments,
            "_meta": {**LOGGED, "progressToken": 1},
        }
        served = await endpoint.run(endpoint.post("tools/call", {"accept": "application/json"}, **params))
        assert served.json["result"]["structuredContent"]["text"] == "done"
        for accept in ("application/json", "text/html"):
            with pytest.raises(NotAcceptable):
                await endpoint.run(endpoint.post("subscriptions/listen", {"accept": accept}, notifications={}))


async def test_events_make_the_response_a_stream_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_endpoint(tmp_path, agents={"worker": FakeAgent(work_for_a_second)}) as endpoint:
        arguments = {"message": "x", "agent": "worker", "wait": True}
        params: dict[str, Any] = {"name": "session_message", "arguments": arguments, "_meta": LOGGED}
        served = await endpoint.run(endpoint.post("tools/call", **params))
        assert served.pieces[0][0] == 0
        *events, answer = served.messages
        assert [event["method"] for event in events] == ["notifications/message"] * 4
        assert answer["id"] == 1


async def test_a_peer_that_goes_away_cancels_the_request(tmp_path: Path, autojump_clock: MockClock) -> None:
    """MCP 2026-07-28: "Closing the SSE response stream MUST be treated … as cancellation of that request"."""
    async with open_endpoint(tmp_path, agents={"thinker": FakeAgent(think)}) as endpoint:
        arguments = {"message": "x", "agent": "thinker", "wait": True}
        params: dict[str, Any] = {"name": "session_message", "arguments": arguments, "_meta": LOGGED}
        served = endpoint.post("tools/call", **params)
        async with serving(endpoint, served):
            (session,) = endpoint.domain.sessions.live
            assert is_attached(session)
        assert trio.current_time() < 25
        assert not is_attached(session)
        assert session.status == "running"
        assert not served.has_ended
        assert endpoint.domain.sessions.watchers == set()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_the_end_of_the_response_is_not_taken_for_a_peer_that_goes_away(tmp_path: Path, is_stream: bool) -> None:
    """A long answer to a slow reader was cut off: both are announced as `http.disconnect`."""
    async with open_endpoint(tmp_path) as endpoint:
        session = await endpoint.domain.start()
        await endpoint.domain.sessions.end(session)
        arguments = {"session_id": session.id, "follow": is_stream}
        params: dict[str, Any] = {
            "name": "session_events",
            "arguments": arguments,
            "_meta": LOGGED if is_stream else META,
        }
        served = endpoint.post("tools/call", **params)
        served.reads_slowly = True
        await endpoint.run(served)
        answer = served.messages[-1] if is_stream else served.json
        assert len(answer["result"]["structuredContent"]["events"]) == 3


@pytest.mark.parametrize("meta", [None, 5, {"progressToken": None}, {"progressToken": []}])
async def test_an_earlier_request_whose_meta_is_malformed_is_answered_all_the_same(tmp_path: Path, meta: Any) -> None:
    async with open_endpoint(tmp_path) as endpoint:
        session = await endpoint.domain.start()
        text = text_of("tools/call", name="session_events", arguments={"session_id": session.id}, _meta=meta)
        served = await endpoint.run(endpoint.within(endpoint.open_session(), text))
        assert len(served.json["result"]["structuredContent"]["events"]) == 2


@pytest.mark.parametrize("id", [None, 1, "one", 1.5])
async def test_an_id_must_not_be_null(tmp_path: Path, id: Any) -> None:
    async with open_endpoint(tmp_path) as endpoint:
        served = await endpoint.run(endpoint.post("tools/list", id=id))
        assert served.json["id"] == id
        assert served.status == (400 if id is None else 200)
        assert id is not None or served.json["error"]["code"] == -32600
