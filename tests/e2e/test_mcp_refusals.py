"""What `/mcp` refuses, and in which words, in revision 2026-07-28 and in the earlier ones (WIRE section 4.1)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.helpers.http import Api
from tests.helpers.mcp_http import ACCEPT, initialized
from tests.helpers.mcp_socket import LOGGED, META
from tests.helpers.mcp_stateless import PREFIX, SUPPORTED, VERSION, StatelessMcp, another, headers_of, message_of
from tests.helpers.peer import open_peer


@pytest.fixture
def mcp(api: Api) -> StatelessMcp:
    return StatelessMcp(api)


# Revision 2026-07-28


async def refused(mcp: StatelessMcp, message: Any, headers: Any = None) -> tuple[int, Any]:
    """The status and the error of a refusal; its id is the message's."""
    reply = await mcp.post(message, headers)
    assert reply.json["id"] == message["id"]
    return reply.status, reply.json["error"]


ONE_KEY: list[Any] = [{key: META[key]} for key in META]


@pytest.mark.parametrize("meta", [{}, None, 5, *ONE_KEY, {**META, f"{PREFIX}logLevel": "loud"}])
async def test_what_a_request_must_say_of_itself(mcp: StatelessMcp, meta: Any) -> None:
    status, error = await refused(mcp, message_of("tools/list", id="x", meta=meta))
    assert (status, error["code"]) == (400, -32602)


async def test_a_request_that_says_its_revision_in_the_body_alone_is_told_of_the_header(mcp: StatelessMcp) -> None:
    status, error = await refused(mcp, message_of("tools/list"), {"MCP-Protocol-Version": None})
    assert (status, error["code"]) == (400, -32020)
    broken = message_of("tools/list", meta={**META, f"{PREFIX}logLevel": "loud"})
    status, error = await refused(mcp, broken, {"MCP-Protocol-Version": None})
    assert (status, error["code"]) == (400, -32602)


@pytest.mark.parametrize(
    "headers",
    [
        {"MCP-Protocol-Version": None},
        {"MCP-Protocol-Version": "2025-11-25"},
        {"MCP-Protocol-Version": "1999-01-01"},
        {"Mcp-Method": None},
        {"Mcp-Method": "tools/list"},
        {"Mcp-Method": "TOOLS/CALL"},
        {"Mcp-Name": None},
        {"Mcp-Name": "session_get"},
        {"Mcp-Name": "=?base64?c2Vzc2lvbl9nZXQ=?="},
        {"Mcp-Name": "=?base64?c2Vzc2lvbl9saXN0"},
        {"Mcp-Name": "=?base64?c2Vzc2lvbl9saXN?="},
        {"Mcp-Name": "=?BASE64?c2Vzc2lvbl9saXN0?="},
    ],
)
async def test_headers_that_are_missing_or_say_something_else(mcp: StatelessMcp, headers: Any) -> None:
    message = message_of("tools/call", id="h", name="session_list", arguments={"limit": 1})
    status, error = await refused(mcp, message, headers)
    assert (status, error["code"], error["data"]["kind"]) == (400, -32020, "invalid_request")
    assert next(iter(headers)) in error["message"]


async def test_a_name_may_come_in_base64(mcp: StatelessMcp) -> None:
    encoded = f"=?base64?{base64.b64encode(b'session_list').decode()}?="
    message = message_of("tools/call", name="session_list", arguments={"limit": 1})
    assert (await mcp.post(message, {"Mcp-Name": encoded})).status == 200
    uri = "oubliette://sessions/Grüße/events"
    status, error = await refused(mcp, message_of("resources/read", uri=uri))
    assert (status, error["code"], error["data"]["uri"]) == (400, -32602, uri)


@pytest.mark.parametrize("name", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"])
async def test_a_header_that_comes_twice_is_refused(mcp: StatelessMcp, name: str) -> None:
    """Who reads the first line and who reads the last would disagree."""
    message = message_of("tools/call", name="session_list", arguments={"limit": 1})
    body, headers = json.dumps(message).encode(), headers_of(message)
    lines = [*headers.items(), (name, headers[name]), ("Host", "localhost"), ("Content-Type", "application/json")]
    lines += [("Authorization", f"Bearer {mcp.api.token}"), ("Content-Length", str(len(body)))]
    head = "".join(f"{key}: {value}\r\n" for key, value in lines)
    async with open_peer(mcp.api.port) as peer:
        await peer.send(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
        status, _, answer = await peer.response("POST")
    assert (status, json.loads(answer)["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("requested", ["2025-11-25", "1999-01-01", "2027-01-01"])
async def test_another_revision_is_refused_with_those_that_are_spoken(mcp: StatelessMcp, requested: str) -> None:
    message = message_of("tools/list", meta={**META, f"{PREFIX}protocolVersion": requested})
    status, error = await refused(mcp, message, {"MCP-Protocol-Version": requested})
    assert (status, error["code"]) == (400, -32022)
    assert (error["data"]["supported"], error["data"]["requested"]) == (SUPPORTED, requested)


@pytest.mark.parametrize("method", ["nope", "initialize", "ping", "logging/setLevel", "resources/subscribe"])
async def test_unknown_and_removed_methods_are_404(mcp: StatelessMcp, method: str) -> None:
    status, error = await refused(mcp, message_of(method, uri="x", level="info"))
    assert (status, error["code"]) == (404, -32601)


async def test_failures_of_a_known_tool_are_200_and_an_unknown_one_is_invalid(mcp: StatelessMcp) -> None:
    for arguments in ({}, {"session_id": 5}, {"session_id": "ses_0"}, {"nope": 1}):
        result = await mcp.call("session_get", **arguments)
        assert result["isError"] is True
        assert result["resultType"] == "complete"
        assert result["_meta"]["oubliette/error"]["field"]
        assert result["content"][0]["text"] == result["_meta"]["oubliette/error"]["message"]
    status, error = await refused(mcp, message_of("tools/call", name="nope", arguments={}))
    assert (status, error["code"], error["data"]["field"]) == (400, -32602, "name")
    reader = await another(mcp, "admin:ro")
    forbidden = await reader.call("session_end", session_id="ses_0")
    assert forbidden["_meta"]["oubliette/error"]["kind"] == "forbidden"


async def test_an_unknown_resource_has_the_code_of_the_era(mcp: StatelessMcp, api: Api) -> None:
    status, error = await refused(mcp, message_of("resources/read", uri="nope"))
    assert (status, error["code"]) == (400, -32602)
    legacy = (await (await initialized(api)).request("resources/read", uri="nope"))["error"]
    assert legacy["code"] == -32002
    assert legacy["message"] == error["message"]


async def test_what_is_no_single_request(mcp: StatelessMcp) -> None:
    headers = headers_of(message_of("tools/list"))
    batch = await mcp.api.request("POST", "/mcp", [message_of("tools/list")], headers)
    assert (batch.status, batch.json["error"]["code"]) == (400, -32600)
    assert await refused(mcp, message_of("tools/list", id=None)) == (
        400,
        {"code": -32600, "message": "the id of a request must not be null", "data": {"kind": "invalid_request"}},
    )
    for silent in (
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}},
    ):
        reply = await mcp.api.request("POST", "/mcp", silent, headers)
        assert (reply.status, reply.body) == (202, b"")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Accept": "text/html"}, 406),
        ({"Accept": "application/json"}, 200),
        ({"Accept": "text/event-stream"}, 200),
        ({"Accept": "*/*"}, 200),
        ({"Accept": None}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Mcp-Session-Id": "f" * 32}, 200),
        ({"Last-Event-ID": "nonsense"}, 200),
    ],
)
async def test_headers_of_http(mcp: StatelessMcp, headers: Any, status: int) -> None:
    reply = await mcp.post(message_of("prompts/list"), headers)
    assert reply.status == status
    assert "mcp-session-id" not in reply.headers


async def test_a_subscription_is_only_for_who_reads_streams(mcp: StatelessMcp) -> None:
    reply = await mcp.post(message_of("subscriptions/listen", notifications={}), {"Accept": "application/json"})
    assert reply.status == 406


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_there_is_neither_a_get_stream_nor_a_session_to_delete(api: Api, method: str) -> None:
    for session in ({}, {"Mcp-Session-Id": (await initialized(api)).headers["Mcp-Session-Id"]}):
        headers = {"Accept": ACCEPT, "MCP-Protocol-Version": VERSION, **session}
        reply = await api.request(method, "/mcp", None, headers)
        assert reply.status == 405
        assert VERSION in reply.json["error"]["message"]


# The same questions to the earlier revisions


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_the_earlier_revisions_keep_their_own_answers(api: Api, revision: str) -> None:
    mcp = await initialized(api, revision)
    for version in ("1999-01-01", "2024-11-05", "2027-01-01", "nonsense"):
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        reply = await mcp.post(ping, {"MCP-Protocol-Version": version})
        assert (reply.status, reply.json["error"]["code"]) == (400, -32022)
        assert reply.json["error"]["data"]["supported"] == SUPPORTED
    without_session = {key: value for key, value in mcp.headers.items() if key != "Mcp-Session-Id"}
    for method, body in (("POST", ping), ("GET", None), ("DELETE", None)):
        assert (await api.request(method, "/mcp", body, without_session)).status == 400
    for unknown in ("nope", "server/discover", "subscriptions/listen"):
        assert (await mcp.request(unknown))["error"]["code"] == -32601
    assert (await mcp.request("tools/call", name="nope"))["error"]["code"] == -32602
    assert (await mcp.request("tools/call", name="session_get", _meta=None))["result"]["isError"] is True
    # Headers of the later revision mean nothing here, and neither does a log level in `_meta`.
    listed = await mcp.post({**ping, "method": "tools/list"}, {"Mcp-Method": "nope", "Mcp-Name": "nope"})
    assert "resultType" not in listed.json["result"]
    level = {f"{PREFIX}logLevel": LOGGED[f"{PREFIX}logLevel"]}
    arguments = {"session_id": (await api.start_session())["session_id"], "wait_seconds": 1}
    plain = await mcp.request("tools/call", name="session_events", arguments=arguments, _meta=level)
    assert json.loads(plain["result"]["content"][0]["text"])["last_index"] == 2
    foreign = await another(StatelessMcp(api))
    assert (await foreign.api.request("POST", "/mcp", ping, mcp.headers)).status == 404
