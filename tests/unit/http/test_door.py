"""What is decided of every request before a route sees it, and what becomes of its errors (WIRE sections 4 and 7)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import oubliette.http.door
from oubliette.errors import Conflict, Forbidden, MethodNotAllowed
from oubliette.gate import BURST
from oubliette.http.door import BODY_RATE, BODY_TIMEOUT, DRAIN_SECONDS
from oubliette.http.request import Request
from tests.helpers.peer import Peer
from tests.unit.http.harness import OWNER, OneToken, connected, make_door, slowly_read

TOKEN = "Authorization: Bearer good"
JSON = "Content-Type: application/json"
MAX = 100


def request(*lines: str, method: str = "POST", path: str = "/x", host: str = "localhost", body: bytes = b"") -> bytes:
    head = "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {host}", *lines))
    return head.encode() + b"\r\n\r\n" + body


def with_body(body: bytes, *lines: str, **more: str) -> bytes:
    return request(TOKEN, JSON, f"Content-Length: {len(body)}", *lines, body=body, **more)


async def answer(peer: Peer, sent: bytes, method: str = "POST") -> tuple[int, Any]:
    """Sends a request and returns the status and the decoded body of the answer."""
    await peer.send(sent)
    status, _, body = await peer.response(method)
    return status, json.loads(body) if body else None


async def test_the_order_of_decisions() -> None:
    """Each request is wrong in several ways; the first in the door's order is told."""
    door = make_door(max_body=MAX)
    long, text = "Content-Length: 101", "Content-Type: text/plain"
    async with connected(door) as peer:
        for status, sent in [
            (400, request(path="*", host="evil.com")),
            (403, request(text, host="evil.com")),
            (403, request("Origin: http://evil.com", text)),
            (401, request(text)),
            (415, request(TOKEN, text, "Content-Encoding: gzip", "Content-Length: 0")),
            (415, request(TOKEN, text, "Content-Length: 0")),
            (200, request(TOKEN, JSON, "Content-Length: 0")),
            (413, request(TOKEN, text, long, body=bytes(101))),
        ]:
            assert (await answer(peer, sent))[0] == status, sent
        door.is_stopping = True
        assert (await answer(peer, request(host="evil.com")))[0] == 403
        status, body = await answer(peer, request())
        assert (status, body["error"]["kind"]) == (503, "shutting_down")
        assert (await answer(peer, request(path="/open", method="GET"), "GET"))[0] == 200


@pytest.mark.parametrize(("size", "status"), [(0, 200), (MAX - 1, 200), (MAX, 200), (MAX + 1, 413), (50 * MAX, 413)])
async def test_a_body_is_bounded_by_its_declared_and_by_its_received_length(size: int, status: int) -> None:
    body = b"1" * size
    async with connected(make_door(max_body=MAX)) as peer:
        declared, error = await answer(peer, with_body(body))
        assert declared == status
        assert status == 200 or error["error"]["kind"] == "invalid_request"
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 30]), body[at : at + 30]) for at in range(0, size, 30))
        chunked = request(TOKEN, JSON, "Transfer-Encoding: chunked", body=chunks + b"0\r\n\r\n")
        assert (await answer(peer, chunked))[0] == status


@pytest.mark.parametrize("method", ["POST", "DELETE", "GET"])
async def test_every_methods_body_is_checked(method: str) -> None:
    async with connected(make_door(max_body=MAX)) as peer:
        assert await answer(peer, with_body(b"1", method=method), method) == (200, 1)
        assert (await answer(peer, with_body(bytes(MAX + 1), method=method), method))[0] == 413
        plain = request(TOKEN, "Content-Type: text/plain", "Content-Length: 1", method=method, body=b"1")
        assert (await answer(peer, plain, method))[0] == 415
        assert (await answer(peer, request(TOKEN, method=method), method))[0] == (415 if method == "POST" else 200)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("Content-Type: application/json",), 200),
        (("Content-Type: Application/JSON; charset=utf-8",), 200),
        (("content-type:application/json",), 200),
        (("Content-Type: application/json", "Content-Encoding: identity"), 200),
        ((), 415),
        (("Content-Type:",), 415),
        (("Content-Type: text/plain",), 415),
        (("Content-Type: application/x-www-form-urlencoded",), 415),
        (("Content-Type: multipart/form-data; boundary=x",), 415),
        (("Content-Type: application/jsonp",), 415),
        (("Content-Type: application/json", "Content-Type: text/plain"), 415),
        (("Content-Type: application/json", "Content-Encoding: gzip"), 415),
        (("Content-Type: application/json", "Content-Encoding: br"), 415),
    ],
)
async def test_only_json_as_it_is_gets_in(lines: tuple[str, ...], status: int) -> None:
    async with connected(make_door()) as peer:
        assert (await answer(peer, request(TOKEN, *lines, "Content-Length: 1", body=b"1")))[0] == status


@pytest.mark.parametrize(
    "line",
    [
        "X: y",
        "Authorization: good",
        "Authorization: Bearer",
        "Authorization: Bearer bad",
        "Authorization: Basic good",
        "Authorization: Bearer good, Bearer good",
        "Authorization: Bearer bad\r\nAuthorization: Bearer good",
        "Authorization: Bearer \xff\xfe",
        "Cookie: token=good",
        "Authorization: Bearer oub_x_" + "0" * 64,
    ],
)
async def test_what_is_no_token(line: str) -> None:
    async with connected(make_door()) as peer:
        await peer.send(request(line, JSON, "Content-Length: 1", body=b"1").replace("\xff\xfe".encode(), b"\xff\xfe"))
        status, headers, body = await peer.response("POST")
        assert (status, headers[b"www-authenticate"]) == (401, b"Bearer")
        assert json.loads(body)["error"]["kind"] == "unauthorized"
        assert await answer(peer, with_body(b"1")) == (200, 1), "the connection goes on"


async def test_the_scheme_is_spelt_in_any_case() -> None:
    seen: list[Any] = []

    async def route(request: Request) -> None:
        seen.append(request.known_principal)
        await request.respond(204)

    async with connected(make_door(route)) as peer:
        assert (await answer(peer, request("Authorization: bEARER  good", method="GET"), "GET"))[0] == 204
    assert seen == [OWNER]


# --- slow and unwilling peers ---


@pytest.mark.parametrize("declared", [10, 10 * BODY_RATE])
async def test_a_body_that_drips_is_given_up(declared: int, autojump_clock: MockClock) -> None:
    async with connected(make_door(max_body=declared)) as peer, trio.open_nursery() as nursery:
        await peer.send(request(TOKEN, JSON, f"Content-Length: {declared}"))

        async def drip() -> None:
            for _ in range(9):
                await peer.send(b"1")
                await trio.sleep(20)

        nursery.start_soon(drip)
        status, _, body = await peer.response("POST")
        assert (status, json.loads(body)["error"]["kind"]) == (408, "invalid_request")
        assert trio.current_time() == BODY_TIMEOUT + declared / BODY_RATE
        assert await peer.rest() == b""
        assert trio.current_time() == BODY_TIMEOUT + declared / BODY_RATE + DRAIN_SECONDS
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "head",
    [
        request(JSON, "Content-Length: 1000"),
        request(JSON, "Content-Length: 1000", host="evil.com"),
        request(TOKEN, JSON, "Content-Length: 1000"),
        request(TOKEN, JSON, "Transfer-Encoding: chunked") + b"65\r\n" + bytes(101) + b"\r\n",
    ],
)
async def test_who_is_refused_sees_the_answer_at_once_and_is_heard_for_two_seconds(
    head: bytes, autojump_clock: MockClock
) -> None:
    async with connected(make_door(max_body=MAX)) as peer:
        await peer.send(head)
        assert (await peer.response("POST"))[0] in (401, 403, 413)
        assert trio.current_time() == 0
        await trio.sleep(1.5)
        await peer.send(b"x")
        assert await peer.rest() == b""
        assert trio.current_time() == DRAIN_SECONDS == 2


async def test_a_refused_body_that_ends_leaves_the_connection_usable(autojump_clock: MockClock) -> None:
    async with connected(make_door(max_body=MAX)) as peer:
        assert (await answer(peer, request(TOKEN, JSON, "Content-Length: 5000")))[0] == 413
        for _ in range(5):
            await peer.send(bytes(1000))
            await trio.sleep(0.1)
        assert await answer(peer, with_body(b"1")) == (200, 1)


async def test_no_more_is_dropped_than_64_mib(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    assert oubliette.http.door.DRAIN_BYTES == 64 * 1024 * 1024
    monkeypatch.setattr(oubliette.http.door, "DRAIN_BYTES", 10_000)
    async with connected(make_door(max_body=MAX)) as peer:
        await peer.send(request(TOKEN, JSON, "Content-Length: 1000000"))
        assert (await peer.response("POST"))[0] == 413
        await peer.send(bytes(20_000))
        assert await peer.rest() == b""
        assert trio.current_time() < DRAIN_SECONDS


async def test_a_body_that_is_longer_than_declared_is_the_next_request() -> None:
    async with connected(make_door()) as peer:
        assert await answer(peer, request(TOKEN, JSON, "Content-Length: 1", body=b"1234\r\n\r\n")) == (200, 1)
        status, _, error = await peer.response()
        assert status == 400
        assert json.loads(error)["error"]["kind"] == "invalid_request"


async def test_a_peer_that_leaves_within_its_body_is_no_request(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Request] = []

    async def route(request: Request) -> None:
        seen.append(request)

    async with connected(make_door(route)) as peer:
        await peer.send(request(TOKEN, JSON, "Content-Length: 10", body=b"12"))
        await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert seen == []
    assert "failed" not in caplog.text


# --- errors of routes ---


async def test_an_error_for_the_peer_is_told_in_json_and_in_json_rpc_on_mcp() -> None:
    async def route(request: Request) -> None:
        raise Conflict("it has ended", field="request_id")

    async with connected(make_door(route)) as peer:
        told = {"kind": "conflict", "field": "request_id"}
        assert await answer(peer, with_body(b"1")) == (409, {"error": {"message": "it has ended", **told}})
        status, body = await answer(peer, with_body(b"1", path="/mcp"))
        error = {"code": -32007, "message": "it has ended", "data": told}
        assert (status, body) == (409, {"jsonrpc": "2.0", "id": None, "error": error})


@pytest.mark.parametrize(("path", "allowed"), [("/mcp", b"GET, POST, DELETE"), ("/open", b"GET")])
async def test_a_method_that_is_refused_comes_with_those_that_are_not(path: str, allowed: bytes) -> None:
    async def route(request: Request) -> None:
        raise MethodNotAllowed("no")

    async with connected(make_door(route)) as peer:
        await peer.send(with_body(b"1", path=path, method="PUT"))
        status, headers, _ = await peer.response("PUT")
        assert (status, headers[b"allow"]) == (405, allowed)


async def in_a_group(error: Exception) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        raise error


@pytest.mark.parametrize("error", [ValueError("a secret"), RecursionError("a secret"), KeyError("a secret")])
@pytest.mark.parametrize("in_nursery", [False, True])
async def test_an_error_of_ours_is_in_the_log_and_not_on_the_wire(
    error: Exception, in_nursery: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def route(request: Request) -> None:
        if in_nursery:
            await in_a_group(error)
        raise error

    async with connected(make_door(route)) as peer:
        await peer.send(with_body(b"1"))
        status, _, body = await peer.response("POST")
        assert (status, json.loads(body)["error"]["kind"]) == (500, "internal_error")
        assert b"secret" not in body
        assert "a request failed" in caplog.text
        assert (await answer(peer, with_body(b"1")))[0] == 500, "the connection goes on"


async def test_an_error_behind_the_head_cuts_the_answer_short(caplog: pytest.LogCaptureFixture) -> None:
    """Without an end of the body, so that nobody takes the half for the whole."""

    async def route(request: Request) -> None:
        await request.start(200, [])
        await request.write(b"half")
        raise Forbidden("too late for this") if request.path == "/late" else ValueError("boom")

    for path in ("/late", "/boom"):
        async with connected(make_door(route)) as peer:
            await peer.send(with_body(b"1", path=path))
            assert (await peer.rest()).endswith(b"\r\n4\r\nhalf\r\n")
    assert caplog.text.count("a request failed") == 1


@pytest.mark.parametrize("in_company", [False, True])
async def test_an_error_in_the_way_out_of_a_cancelled_request_is_logged(
    in_company: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What quart-trio would drop: the half of a group that is not the cancellation."""

    async def route(request: Request) -> None:
        async with trio.open_nursery() as nursery:
            if in_company:
                nursery.start_soon(trio.sleep_forever)

            async def clean_up_badly() -> None:
                try:
                    await trio.sleep_forever()
                finally:
                    raise ValueError("boom in cleaning up")

            nursery.start_soon(clean_up_badly)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_door(route), *scope_of_a_request())
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert "boom in cleaning up" in caplog.text


def scope_of_a_request() -> tuple[Any, Any, Any]:
    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer good")]
    scope = {"type": "http", "method": "GET", "path": "/x", "headers": headers, "query_string": b""}

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        await trio.sleep_forever()

    return scope, receive, send


async def test_a_websocket_is_decided_like_every_request() -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eHl6")
    async with connected(make_door()) as peer:
        assert (await answer(peer, request(*upgrade, method="GET", path="/mcp"), "GET"))[0] == 401
        foreign = request(TOKEN, *upgrade, "Origin: http://evil.com", method="GET", path="/mcp")
        assert (await answer(peer, foreign, "GET"))[0] == 403
        await peer.send(request(TOKEN, *upgrade, method="GET", path="/mcp"))
        assert (await peer.response())[0] == 200, "a route that knows of no WebSocket answers as ever"


# What becomes of a request when its token is worthless (HAZARDS G12, F33), and of those that never had one (T17)


class Revocable(OneToken):
    """A token that the test revokes."""

    def revoke_now(self) -> None:
        self._tell(OWNER.token_id)


async def test_a_request_that_waits_is_refused_when_its_token_goes() -> None:
    tokens = Revocable()

    async def wait(request: Request) -> None:
        tokens.revoke_now()
        await trio.sleep_forever()

    async with connected(make_door(wait, tokens=tokens)) as peer:
        status, body = await answer(peer, with_body(b"1"))
        assert (status, body["error"]["kind"]) == (401, "unauthorized")
        status, body = await answer(peer, with_body(b"1", path="/mcp"))
        assert (status, body["error"]["code"]) == (401, -32001)


async def test_a_stream_ends_in_good_order_when_its_token_goes() -> None:
    tokens = Revocable()

    async def stream(request: Request) -> None:
        await request.start(200, [])
        await request.write(b"1")
        tokens.revoke_now()
        await trio.sleep_forever()

    async with connected(make_door(stream, tokens=tokens)) as peer:
        assert await answer(peer, with_body(b"1")) == (200, 1)


async def test_a_peer_that_does_not_read_ends_with_its_token_too(autojump_clock: MockClock) -> None:
    tokens = Revocable()

    async def stream(request: Request) -> None:
        await request.start(200, [])
        await request.write(b"1")

    async with slowly_read(make_door(stream, tokens=tokens)) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(peer.send, with_body(b"1"))
        await trio.sleep(1)
        tokens.revoke_now()
        await peer.rest()
        assert trio.current_time() < 2


async def test_beyond_a_limit_wrong_tokens_are_told_when_to_come_back() -> None:
    door = make_door()
    wrong = request("Authorization: Bearer oub_x_" + "0" * 64, "Content-Length: 0")
    async with connected(door) as peer:
        for _ in range(BURST):
            assert (await answer(peer, wrong))[0] == 401
        await peer.send(wrong)
        status, headers, body = await peer.response("POST")
        assert (status, headers[b"retry-after"], json.loads(body)["error"]["kind"]) == (429, b"1", "limit_exceeded")
        assert b"www-authenticate" not in headers
        assert (await answer(peer, request("Content-Length: 0")))[0] == 401
        assert (await answer(peer, with_body(b"1")))[0] == 200
