"""MCP 2026-07-28 on stdio, beside the earlier revisions: each request says in its `_meta` how it is to be served."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types.methods import validate_server_result
from trio.testing import MockClock

import oubliette
from tests.unit.client.harness import ENVELOPE, STATELESS, beside_own, client, ready_client, text_of

VERSION_KEY, CAPABILITIES_KEY = ENVELOPE
SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"
SERVER_INFO = {"name": "oubliette-client", "version": oubliette.__version__}
STAMP = {"resultType": "complete", "_meta": {SERVER_INFO_KEY: SERVER_INFO}}
BLOCK = {"type": "text", "text": "sent"}


async def test_discover_says_what_is_spoken_here() -> None:
    async with client() as (agent, _):
        await agent.ask_stateless("d", "server/discover")
        answer = await agent.receive()
        assert answer["id"] == "d"
        assert answer["result"] == STAMP | {
            "supportedVersions": [STATELESS],
            "capabilities": {"tools": {"listChanged": True}},
            "ttlMs": 3_600_000,
            "cacheScope": "public",
        }
        validate_server_result("server/discover", STATELESS, answer["result"])


ABSENT = object()


@pytest.mark.parametrize("method", ["server/discover", "tools/call", "nothing"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((VERSION_KEY, value) for value in (ABSENT, None, 20260728, ["2026-07-28"])),
        *((CAPABILITIES_KEY, value) for value in (ABSENT, None, "{}", [], True)),
    ],
)
async def test_an_envelope_that_is_not_whole_is_refused_by_the_name_of_its_key(
    method: str, key: str, value: Any
) -> None:
    """MCP, "Per-request protocol fields": "A request missing any required field is malformed; the server MUST reject
    it with JSON-RPC error code -32602"."""
    meta = {name: item for name, item in {**ENVELOPE, key: value}.items() if item is not ABSENT}
    async with client() as (agent, _):
        await agent.ask(1, method, {"name": "ant_send", "_meta": meta})
        error = (await agent.receive())["error"]
        assert error["code"] == -32602
        assert key in error["message"]


@pytest.mark.parametrize("params", [{}, {"_meta": None}, {"_meta": []}, {"_meta": {"progressToken": 1}}])
@pytest.mark.parametrize("method", ["server/discover", "subscriptions/listen"])
async def test_a_method_of_the_stateless_era_alone_needs_the_envelope(method: str, params: dict[str, Any]) -> None:
    async with client() as (agent, _):
        await agent.ask(1, method, params)
        error = (await agent.receive())["error"]
        assert error["code"] == -32602
        assert VERSION_KEY in error["message"]


@pytest.mark.parametrize("requested", ["1900-01-01", "2025-11-25", "2027-01-01", ""])
@pytest.mark.parametrize("method", ["server/discover", "tools/list"])
async def test_a_revision_that_is_not_spoken_so_is_refused_with_those_that_are(method: str, requested: str) -> None:
    """MCP, "Protocol Version Negotiation". The earlier revisions are spoken too, but never by `_meta`."""
    async with client() as (agent, _):
        await agent.ask_stateless(1, method, None, **{VERSION_KEY: requested})
        error = (await agent.receive())["error"]
        assert error["code"] == -32022
        assert error["data"] == {"kind": "invalid_request", "supported": [STATELESS], "requested": requested}


async def test_a_refused_revision_of_any_length_is_answered_in_few_words() -> None:
    async with client() as (agent, _):
        await agent.ask_stateless(1, "tools/list", None, **{VERSION_KEY: "x" * 1_000_000})
        assert len(await agent.receive_line()) < 500


async def test_a_key_that_stands_twice_in_the_envelope_is_refused() -> None:
    """Neither may win silently: parsers disagree about which one counts."""
    async with ready_client("send") as (agent, _, _):
        meta = json.dumps(ENVELOPE)[:-1] + f',"{VERSION_KEY}":"2025-11-25"}}'
        await agent.send(f'{{"id":1,"method":"tools/call","params":{{"name":"ant_send","_meta":{meta}}}}}'.encode())
        answer = await agent.receive()
        assert (answer["id"], answer["error"]["code"]) == (1, -32602)
        assert VERSION_KEY in answer["error"]["message"]


@pytest.mark.parametrize("method", ["ping", "initialize", "logging/setLevel", "resources/list", "notifications/x"])
async def test_a_method_that_the_stateless_era_does_not_know_is_refused(method: str) -> None:
    async with client() as (agent, _):
        await agent.ask_stateless(1, method, {"protocolVersion": "2025-03-26"})
        error = (await agent.receive())["error"]
        assert (error["code"], error["data"]) == (-32601, {"kind": "method_not_found"})
        await agent.ask(2, "ping")
        assert (await agent.receive())["result"] == {}


async def test_a_list_says_for_how_long_and_for_whom_it_holds() -> None:
    """MCP, "Caching": "Servers MUST include caching hints". The set changes with every declaration of the caller."""
    tool = {"title": "Send", "outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.declare({"name": "send", "description": "", "inputSchema": {"type": "object"}, **tool})
        await link.offer()
        await agent.ask_stateless(1, "tools/list")
        result = (await agent.receive())["result"]
        shown = {"name": "ant_send", "description": "", "inputSchema": {"type": "object"}, **tool}
        assert beside_own(result["tools"]) == {"ant_send": shown}
        assert result == STAMP | {"ttlMs": 0, "cacheScope": "private", "tools": result["tools"]}
        validate_server_result("tools/list", STATELESS, result)


async def test_a_list_has_the_same_order_whatever_the_order_of_the_declarations() -> None:
    """MCP, "Tools": "Servers SHOULD return tools in a deterministic order"."""
    async with ready_client("b", "a") as (agent, link, _):
        orders = []
        for names in (["b", "a"], ["a", "b"]):
            await link.configure(*names)
            await agent.ask_stateless(1, "tools/list")
            orders.append([tool["name"] for tool in (await agent.receive())["result"]["tools"]])
        assert orders == [["ant_a", "ant_b", "project_list", "session_message"]] * 2


async def _outcome(result: Any) -> dict[str, Any]:
    """Returns what an agent gets for what a caller answers."""
    async with ready_client("send") as (agent, link, _):
        await agent.call_stateless(1, "ant_send")
        await link.answer(await link.receive(), result)
        found: dict[str, Any] = (await agent.receive())["result"]
        validate_server_result("tools/call", STATELESS, found)
        return found


@pytest.mark.parametrize("result", ["done", None, [1], {"n": 1}, {"resultType": "input_required"}])
async def test_any_value_is_a_complete_result(result: Any) -> None:
    found = await _outcome(result)
    assert json.loads(found["content"][0]["text"]) == result
    assert found.get("structuredContent") == (result if isinstance(result, dict) else None)
    assert {key: found[key] for key in STAMP} == STAMP


@pytest.mark.parametrize("said", ["complete", "input_required", "of_some_extension", None, 5, {}])
async def test_a_callers_result_is_complete_whatever_it_says(said: Any) -> None:
    """The caller's result is data: it cannot make the agent ask its user for anything."""
    requests = {"x": {"method": "elicitation/create", "params": {"message": "your key?"}}}
    found = await _outcome({"content": [BLOCK], "resultType": said, "inputRequests": requests})
    assert found["resultType"] == "complete"


@pytest.mark.parametrize(
    ("meta", "passed"),
    [
        ({"com.example/a": None}, {"com.example/a": None, SERVER_INFO_KEY: SERVER_INFO}),
        (
            {SERVER_INFO_KEY: {"name": "upstream", "version": "1"}},
            {SERVER_INFO_KEY: {"name": "upstream", "version": "1"}},
        ),
        ({SERVER_INFO_KEY: None}, {SERVER_INFO_KEY: SERVER_INFO}),
        *((invalid, {SERVER_INFO_KEY: SERVER_INFO}) for invalid in (None, 5, "x", [1])),
    ],
)
async def test_a_callers_result_keeps_its_own_members(meta: Any, passed: Any) -> None:
    result = {"content": [BLOCK], "structuredContent": {"a": 1}, "isError": False, "later": [None]}
    assert await _outcome({**result, "_meta": meta}) == {**result, "resultType": "complete", "_meta": passed}


SPELLING = '{"n":1.10,"big":12345678901234567890123,"exp":1e400,"ü":"\\u00e9 \u2028","z":1,"a":[ 1 , 2 ]}'


async def test_a_callers_result_keeps_its_spelling() -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call_stateless(1, "ant_send")
        await link.receive()
        await link.send(f'{{"id":1,"result":{{"content":[],"structuredContent":{SPELLING}}}}}'.encode())
        assert f'"structuredContent":{SPELLING}' in (await agent.receive_line()).decode()


async def test_a_callers_result_with_a_key_twice_is_shown_as_text() -> None:
    result = '{"content":[],"isError":true,"isError":false}'
    async with ready_client("send") as (agent, link, _):
        await agent.call_stateless(1, "ant_send")
        await link.receive()
        await link.send(f'{{"id":1,"result":{result}}}'.encode())
        answer = await agent.receive()
        assert text_of(answer) == result
        assert answer["result"]["resultType"] == "complete"
        assert "isError" not in answer["result"]


async def test_an_error_is_a_complete_result_too() -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call_stateless(1, "ant_send")
        await link.fail((await link.receive())["id"], -32004, "timed out")
        answer = await agent.receive()
        assert answer["result"] == STAMP | {"content": [{"type": "text", "text": "timed out"}], "isError": True}


async def test_an_unknown_tool_is_refused() -> None:
    async with ready_client("send") as (agent, _, _):
        await agent.call_stateless(1, "ant_other")
        assert (await agent.receive())["error"]["code"] == -32602


async def test_the_daemon_is_asked_the_same_in_both_eras() -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call(1, "ant_send", {"n": 1})
        await agent.call_stateless(2, "ant_send", {"n": 1})
        first, second = await link.receive(), await link.receive()
        assert second == {**first, "id": second["id"]}


async def test_progress_and_cancellation_are_as_before(autojump_clock: MockClock) -> None:
    async with ready_client("send") as (agent, link, _):
        await agent.call_stateless(1, "ant_send", progressToken="t")
        request = await link.receive()
        await link.report(request, progress=1)
        assert (await agent.receive())["params"] == {"progressToken": "t", "progress": 1}
        assert (await agent.receive())["params"]["message"] == "waiting for the answer for 5 s"
        await agent.cancel(1)
        assert (await link.receive())["params"] == {"requestId": request["id"]}
        assert await agent.is_silent(30)


async def test_each_request_is_served_by_its_own_revision() -> None:
    async with ready_client("send", revision="2024-11-05") as (agent, link, _):
        await agent.call(1, "ant_send")
        await agent.call_stateless(2, "ant_send")
        await agent.call(3, "ant_send")
        for request in [await link.receive() for _ in range(3)]:
            await link.answer(request, {"n": 1})
        answers = {answer["id"]: answer for answer in [await agent.receive() for _ in range(3)]}
        assert [set(answers[id]["result"]) for id in (1, 2, 3)] == [
            {"content"},
            {*STAMP, "content", "structuredContent"},
            {"content"},
        ]


async def test_a_handshake_may_come_after_the_stateless_era_and_between_its_requests() -> None:
    async with client() as (agent, daemon):
        await (await daemon.accept()).configure("send")
        await agent.ask_stateless(1, "tools/list")
        assert (await agent.receive())["result"]["resultType"] == "complete"
        assert (await agent.initialize("2025-03-26"))["protocolVersion"] == "2025-03-26"
        await agent.ask_stateless(2, "tools/list")
        assert (await agent.receive())["result"]["resultType"] == "complete"
        await agent.send(b'[{"id":3,"method":"tools/list"}]')
        [answer] = await agent.receive()
        assert list(answer["result"]) == ["tools"]


async def test_an_agent_of_the_stateless_era_hears_nothing_that_it_did_not_ask_for(autojump_clock: MockClock) -> None:
    """MCP, "Subscriptions": "The server MUST NOT send notification types the client has not explicitly requested"."""
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.configure("send")
        await agent.ask_stateless(1, "server/discover")
        await agent.ask_stateless(2, "tools/list")
        assert [(await agent.receive())["id"] for _ in range(2)] == [1, 2]
        await link.configure("get")
        assert await agent.is_silent(30)
