"""The HTTP door of a real daemon: who gets in, with what, and how a refusal reads (WIRE sections 4 and 7)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from tests.helpers.http import Api
from tests.helpers.link import open_link
from tests.helpers.mcp_http import initialized
from tests.helpers.peer import Peer, open_peer
from tests.helpers.process import DaemonProcess

MIB = 1024 * 1024
# The least that may be configured, so that the bounds are cheap to reach.
SMALL = 64 * 1024
SMALL_CONFIG = f"""
server: {{allowed_hosts: [relay.example, "pinned.example:8443"], allowed_origins: ["https://app.example"]}}
relay: {{max_message_bytes: {SMALL}}}
"""
ROUTES = [
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("DELETE", "/mcp"),
    ("POST", "/sessions"),
    ("GET", "/sessions/x"),
    ("DELETE", "/sessions/x"),
    ("GET", "/sessions/x/events"),
    ("POST", "/sessions/x/messages"),
    ("POST", "/sessions/x/requests/y"),
    ("POST", "/sessions/x/requests/y/progress"),
    ("GET", "/events"),
    ("GET", "/nope"),
]
OPEN_ROUTES = [("GET", "/health"), ("GET", "/ready")]


@pytest.fixture(scope="module")
def small_daemon() -> Iterator[DaemonProcess]:
    """A daemon with hosts of its own and small bounds."""
    with DaemonProcess(SMALL_CONFIG) as process:
        yield process


@pytest.fixture
def small(small_daemon: DaemonProcess) -> Api:
    return Api(small_daemon.port, small_daemon.admin_token)


async def token_of(api: Api, scope: str, **more: Any) -> Any:
    mcp = await initialized(api)
    return (await mcp.call("token_create", name="test", scope=scope, **more))["structuredContent"]


def head(method: str, path: str, *lines: str) -> bytes:
    """A request without a body, but for POST, whose body would start a session were it let in."""
    body = b'{"message": "hi", "agent": "external"}' if method == "POST" else b""
    more = ["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join((f"{method} {path} HTTP/1.1", *lines, *more)).encode("latin-1") + b"\r\n\r\n" + body


async def ask(peer: Peer, sent: bytes) -> tuple[int, dict[bytes, bytes], Any]:
    await peer.send(sent)
    status, headers, body = await peer.response(sent.partition(b" ")[0].decode())
    return status, headers, json.loads(body) if body else None


# --- Host and Origin ---


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: evil.com",),
        ("Host: localhost.evil.com",),
        ("Host: 127.0.0.1.",),
        ("Host: localhost@evil.com",),
        ("Host: user@localhost",),
        ("Host: [::1",),
        ("Host: relay.example",),
        ("Host:",),
        ("Host: localhost", "Origin: http://evil.com"),
        ("Host: localhost", "Origin: null"),
        ("Host: localhost", "Origin: http://localhost.evil.com"),
        ("Host: localhost", "Origin: http://localhost."),
        ("Host: localhost", "Origin: http://user@localhost"),
        ("Host: localhost", "Origin: http://[::1"),
        ("Host: localhost", "Origin:"),
        ("Host: localhost", "Origin: http://evil.com", "Origin: http://localhost"),
    ],
)
async def test_a_foreign_host_or_origin_is_refused_on_every_route_before_the_token(
    daemon: DaemonProcess, lines: tuple[str, ...]
) -> None:
    sessions_before = daemon.log_text.count("session started")
    async with open_peer(daemon.port) as peer:
        for method, path in ROUTES + OPEN_ROUTES:
            for token in ("bad", daemon.admin_token):
                status, _, error = await ask(peer, head(method, path, *lines, f"Authorization: Bearer {token}"))
                assert status == 403, (method, path)
                told = error["error"]["data"] if path == "/mcp" else error["error"]
                assert told["kind"] == "forbidden"
    assert daemon.log_text.count("session started") == sessions_before


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: localhost",),
        ("Host: LOCALHOST:1",),
        ("Host: 127.0.0.1:65535",),
        ("Host: [::1]:8080",),
        ("Host: localhost", "Origin: http://localhost:3000"),
        ("Host: localhost", "Origin: https://127.0.0.1"),
        ("Host: localhost", "Origin: http://[::1]:9"),
    ],
)
async def test_hosts_and_origins_of_this_machine_get_as_far_as_the_token(
    daemon: DaemonProcess, lines: tuple[str, ...]
) -> None:
    async with open_peer(daemon.port) as peer:
        for method, path in ROUTES:
            assert (await ask(peer, head(method, path, *lines)))[0] == 401, (method, path)
        for method, path in OPEN_ROUTES:
            assert (await ask(peer, head(method, path, *lines)))[0] == 200, (method, path)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("Host: relay.example",), 401),
        (("Host: Relay.Example:99",), 401),
        (("Host: pinned.example:8443",), 401),
        (("Host: pinned.example",), 403),
        (("Host: relay.example.evil.com",), 403),
        (("Host: localhost", "Origin: https://app.example"), 401),
        (("Host: localhost", "Origin: https://relay.example"), 401),
        (("Host: localhost", "Origin: http://app.example"), 403),
        (("Host: localhost", "Origin: https://app.example:8443"), 403),
    ],
)
async def test_configured_hosts_and_origins(small: Api, lines: tuple[str, ...], status: int) -> None:
    async with open_peer(small.port) as peer:
        assert (await ask(peer, head("GET", "/events", *lines)))[0] == status


@pytest.mark.parametrize(
    "sent",
    [
        head("GET", "http://localhost/health", "Host: localhost"),
        head("GET", "http://[::1", "Host: localhost"),
        head("GET", "//[::1", "Host: [::1"),
        head("OPTIONS", "*", "Host: localhost"),
        head("CONNECT", "localhost:80", "Host: localhost"),
        head("GET", "/health", "Host: localhost", "Host: localhost"),
        head("GET", "/health", "Host: localhost", "Host: evil.com"),
        head("GET", "/health"),
        head("POST", "/sessions", "Host: localhost", "Transfer-Encoding: chunked"),
    ],
)
async def test_targets_and_framing_that_servers_disagree_on_are_refused(daemon: DaemonProcess, sent: bytes) -> None:
    async with open_peer(daemon.port) as peer:
        status, headers, error = await ask(peer, sent)
        assert status in (400, 403)
        assert headers[b"content-type"] == b"application/json"
        assert error["error"]["kind"] in ("invalid_request", "forbidden")


# --- tokens ---


async def test_every_route_but_health_and_ready_asks_for_a_token(api: Api) -> None:
    """A fresh install, walked with no token, a bad one, an expired and a revoked one (HAZARDS G11)."""
    expired = await token_of(api, "admin", expires_in_seconds=0.001)
    revoked = await token_of(api, "admin")
    mcp = await initialized(api)
    assert (await mcp.call("token_revoke", token_id=revoked["token_id"]))["structuredContent"] == {"revoked": True}
    good = api.token or ""
    wrong_secret = good[:-1] + ("0" if good[-1] != "0" else "1")
    async with open_peer(api.port) as peer:
        for token in ("", "bad", "oub__", expired["token"], revoked["token"], wrong_secret, good.upper(), good + " x"):
            for method, path in ROUTES:
                sent = head(method, path, "Host: localhost", f"Authorization: Bearer {token}")
                status, headers, error = await ask(peer, sent)
                assert (status, headers[b"www-authenticate"]) == (401, b"Bearer"), (method, path, token)
                told = error["error"]["data"] if path == "/mcp" else error["error"]
                assert told["kind"] == "unauthorized"
        for method, path in OPEN_ROUTES:
            assert (await ask(peer, head(method, path, "Host: localhost")))[0] == 200


async def test_what_lies_outside_a_scope_does_not_exist_and_read_only_is_read_only(api: Api) -> None:
    session = await api.start_session("echo")
    routes = [("GET", ""), ("DELETE", ""), ("GET", "/events"), ("POST", "/messages"), ("POST", "/requests/x")]
    for scope, status in (("project:other", 404), ("project:other:ro", None), ("admin:ro", None)):
        asker = Api(api.port, (await token_of(api, scope))["token"])
        for method, suffix in routes:
            body = {"message": "hi"} if suffix == "/messages" else {"result": 1} if method == "POST" else None
            headers = {"Accept": "application/json"}
            reply = await asker.request(method, f"/sessions/{session['session_id']}{suffix}", body, headers)
            reads = method == "GET"
            seen = 200 if scope == "admin:ro" else 404
            assert reply.status == (status or (seen if reads else 403)), (scope, method, suffix)
    assert (await api.get(f"/sessions/{session['session_id']}")).json["status"] == "running"


async def test_only_the_owner_answers_and_only_once(api: Api) -> None:
    """HAZARDS F5, F7 and F8: whatever else is said changes nothing, and the call waits on."""
    session = await api.start_session("echo")
    other = Api(api.port, (await token_of(api, "admin"))["token"])
    stranger = Api(api.port, (await token_of(api, "project:other"))["token"])
    async with api.events(f"/sessions/{session['session_id']}/events") as events, open_link(session["socket"]) as link:
        await link.call("echo")
        _, request = await events.next_of("caller_tool_request")
        id = request["request_id"]
        assert (await other.answer(session, id, result=1)).error["kind"] == "forbidden"
        assert (await stranger.answer(session, id, result=1)).error["kind"] == "not_found"
        assert (await api.answer(session, "00000000-0000-4000-8000-000000000000", result=1)).status == 404
        for wrong in ({}, {"result": 1, "error": "both"}, {"error": 5}, {"error": None}, {"result": 1, "more": 1}):
            refused = await api.answer(session, id, **wrong)
            assert (refused.status, refused.error["kind"]) == (400, "invalid_params"), wrong
        too_long = await api.answer(session, id, result="x" * (4 * MIB))
        assert too_long.status == 413
        progress = await api.post(f"/sessions/{session['session_id']}/requests/{id}/progress", {"progress": 0.5})
        assert progress.status == 204
        assert (await link.receive())["params"] == {"request": 1, "progress": 0.5, "total": None, "message": None}
        assert (await api.answer(session, id, result="first")).status == 204
        assert (await api.answer(session, id, result="second")).error["kind"] == "conflict"
        assert (await link.receive())["result"] == "first"


# --- bodies ---


@pytest.mark.parametrize("excess", [-1, 0, 1])
async def test_the_bound_of_a_body_is_exact(small: Api, excess: int) -> None:
    wrapping = len(json.dumps({"message": "", "agent": "external"}))
    body = {"message": "x" * (SMALL + excess - wrapping), "agent": "external"}
    assert len(json.dumps(body)) == SMALL + excess
    assert (await small.post("/sessions", body)).status == (413 if excess > 0 else 201)


@pytest.mark.parametrize("mebibytes", [5, 20, 60])
def test_a_client_that_is_still_sending_sees_413(daemon: DaemonProcess, mebibytes: int) -> None:
    """As Python's own client does it: it sends all before it reads."""
    status, error = send_at_length(daemon, mebibytes * MIB)
    assert (status, error["error"]["kind"]) == (413, "invalid_request")
    assert "max_message_bytes" in error["error"]["message"]


def send_at_length(daemon: DaemonProcess, length: int) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)
    try:
        headers = {"Authorization": f"Bearer {daemon.admin_token}", "Content-Type": "application/json"}
        connection.request("POST", "/sessions", b"x" * length, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


async def test_more_than_64_mib_is_cut_off_and_the_daemon_goes_on(daemon: DaemonProcess) -> None:
    """Also without an end: whoever reads finds the answer, who does not is cut off."""
    sent = 0
    async with open_peer(daemon.port) as peer, trio.open_nursery() as nursery:
        lines = ("Host: localhost", f"Authorization: Bearer {daemon.admin_token}", "Content-Type: application/json")
        start = "\r\n".join(("POST /sessions HTTP/1.1", *lines, "Transfer-Encoding: chunked")).encode()

        async def flood() -> None:
            nonlocal sent
            await peer.send(start + b"\r\n\r\n")
            try:
                while True:
                    await peer.send(b"100000\r\n" + bytes(MIB) + b"\r\n")
                    sent += 1
            except trio.BrokenResourceError:
                pass

        nursery.start_soon(flood)
        assert (await peer.response("POST"))[0] == 413
    assert 4 <= sent < 80
    assert (await Api(daemon.port).get("/health")).status == 200


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("Content-Type: text/plain", "Content-Length: 2"), 415),
        (("Content-Type: application/x-www-form-urlencoded", "Content-Length: 2"), 415),
        (("Content-Type: multipart/form-data; boundary=a", "Content-Length: 2"), 415),
        (("Content-Length: 2",), 415),
        (("Content-Type: application/json", "Content-Encoding: gzip", "Content-Length: 2"), 415),
        (("Content-Type: application/json", "Content-Length: 1073741824"), 413),
        (("Content-Type: application/json", "Content-Length: 99999999999999999999"), 413),
        (("Content-Type: application/json", "Content-Length: -1"), 400),
        (("Content-Type: application/json", "Content-Length: two"), 400),
        (("Content-Type: application/json", "Content-Length: 2", "Content-Length: 3"), 400),
        (("Content-Type: application/json", "Transfer-Encoding: gzip, chunked"), 501),
        (("Content-Type: application/json", "Transfer-Encoding: chunked", "Content-Length: 2"), 400),
    ],
)
@pytest.mark.parametrize("path", ["/sessions", "/mcp"])
async def test_a_body_is_judged_by_its_head(
    daemon: DaemonProcess, path: str, lines: tuple[str, ...], status: int
) -> None:
    """Before any of it is read, and what it asks for is not done (HAZARDS T2 and T32)."""
    known = ("Host: localhost", f"Authorization: Bearer {daemon.admin_token}")
    async with open_peer(daemon.port) as peer:
        await peer.send("\r\n".join((f"POST {path} HTTP/1.1", *known, *lines)).encode() + b"\r\n\r\n")
        assert (await peer.response("POST"))[0] == status


BAD_BODIES = [
    (b"", "parse_error"),
    (b"{", "parse_error"),
    (b"nonsense", "parse_error"),
    (b'{"message": NaN}', "parse_error"),
    (b'{"message": "hi"} {}', "parse_error"),
    (b'{"message": "\xff"}', "parse_error"),
    (b'{"\xff": 1}', "parse_error"),
    (b'{"message": "\\ud800"}', "parse_error"),
    (b"\xef\xbb\xbf{}", "parse_error"),
    (b'{"message": ' + b"[" * 129 + b"]" * 129 + b"}", "parse_error"),
    (b"[" * 1_000_000, "parse_error"),
    (b"[]", "invalid_request"),
    (b'"text"', "invalid_request"),
    (b"null", "invalid_request"),
    (b'{"message": "a", "message": "b"}', "invalid_request"),
    (b'{"message": "a", "mess\\u0061ge": "b"}', "invalid_request"),
    (b'{"Message": "a"}', "invalid_params"),
    (b'{"message\\u0000": "a"}', "invalid_params"),
    (b'{"session_id": "other"}', "invalid_params"),
    (b'{"message": 5}', "invalid_params"),
    (b'{"result": 1, "error": "both"}', "invalid_params"),
    (b'{"progress": "much"}', "invalid_params"),
]


@pytest.mark.parametrize("suffix", ["", "/{id}/messages", "/{id}/requests/x", "/{id}/requests/x/progress"])
async def test_bodies_that_are_refused(api: Api, suffix: str) -> None:
    path = "/sessions" + suffix.format(id=(await api.start_session())["session_id"])
    for body, kind in BAD_BODIES:
        reply = await api.request("POST", path, body)
        assert (reply.status, reply.error["kind"]) == (400, kind), (body[:40], reply.body)
        assert reply.headers["content-type"] == "application/json"


# --- routes and methods ---


async def test_unknown_paths_are_404_and_other_methods_405_in_json(api: Api) -> None:
    for path in (
        "/",
        "/nope",
        "/sessions/",
        "/sessions//x",
        "/sessions/a/b/c",
        "/sessions/..%2fready",
        "/%00",
        "/%ff",
    ):
        reply = await api.get(path)
        assert (reply.status, reply.error["kind"]) == (404, "not_found"), path
    allowed = {
        "/health": ["GET"],
        "/ready": ["GET"],
        "/events": ["GET"],
        "/mcp": ["DELETE", "GET", "POST"],
        "/sessions": ["OPTIONS", "POST"],
        "/sessions/x/events": ["GET", "HEAD", "OPTIONS"],
    }
    for path, methods in allowed.items():
        for method in ("PUT", "PATCH", "TRACE", "PROPFIND"):
            reply = await api.request(method, path)
            assert reply.status == 405, (method, path)
            assert sorted(reply.headers["allow"].split(", ")) == methods, (method, path)
            assert reply.json["error"]["message"]


@pytest.mark.parametrize(
    "query",
    [
        "since_index=x",
        "since_index=-1",
        "since_index=1.5",
        "since_index=1_0",
        "since_index=",
        "since_index=%D9%A3",
        "limit=0",
        "limit=1001",
        "limit=many",
        "wait_seconds=31",
        "wait_seconds=nan",
        "wait_seconds=-1",
    ],
)
async def test_a_page_names_the_parameter_that_it_does_not_take(api: Api, query: str) -> None:
    session = await api.start_session()
    reply = await api.get(f"/sessions/{session['session_id']}/events?{query}", {"Accept": "application/json"})
    assert (reply.status, reply.error["kind"]) == (400, "invalid_params")
    assert reply.error["field"] == query.partition("=")[0]


async def test_one_connection_serves_request_after_request(api: Api) -> None:
    """Refusals too leave it open, pipelined or not; `HEAD` has no body."""
    token = f"Authorization: Bearer {api.token}"
    async with open_peer(api.port) as peer:
        sent = [
            head("GET", "/health", "Host: localhost"),
            head("HEAD", "/health", "Host: localhost"),
            head("GET", "/nope", "Host: localhost", token),
            head("POST", "/sessions", "Host: localhost"),
            head("POST", "/sessions", "Host: evil.com"),
            head("POST", "/sessions", "Host: localhost", token),
        ]
        await peer.send(b"".join(sent))
        answers = [(await peer.response(request.partition(b" ")[0].decode())) for request in sent]
        assert [status for status, _, _ in answers] == [200, 200, 404, 401, 403, 201]
        assert answers[1][2] == b""
