"""What goes over to a proxied MCP server and what comes back, to the letter (WIRE section 1; HAZARDS T19, T23)."""

from __future__ import annotations

import json
import logging
import os
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from oubliette.errors import ServerError, ServerTimeout
from oubliette.upstreams import Upstreams
from tests.helpers.upstreams import (
    CARRIED,
    ModernHttp,
    Observed,
    ScriptedHttp,
    http,
    journal,
    modern,
    refused,
    running,
    scripted,
)
from tests.helpers.waiting import LIMIT, until

# For localhost, vouched for by itself, and known to everybody.
OWN_CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgj332us/zjw5n6OGP
RAZOZK5b3qdQSJxs9I81IzvVAjehRANCAAQCU63GNmTQFLZcPu37de9dcAasgXAL
psspY8muFsI5BNL+FRjRhT1uoSEF6C54M8jvWh/fMSQgNsvi24oPnr38
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBmjCCAUGgAwIBAgIUXjRtZeKQLUYhbpEykeoapfEJuvowCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMjA1NDIzNFoYDzIxMjYxMDI5
MDU0MjM0WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQCU63GNmTQFLZcPu37de9dcAasgXALpsspY8muFsI5BNL+FRjRhT1u
oSEF6C54M8jvWh/fMSQgNsvi24oPnr38o28wbTAdBgNVHQ4EFgQUN7LxUlObsdCv
Y2n8r4jQ3+Wxno0wHwYDVR0jBBgwFoAUN7LxUlObsdCvY2n8r4jQ3+Wxno0wDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDRwAwRAIgQrLWd2eeC4NaYWzEKtjuJXg2IEjTgyaCXKxFfncvT/kCIA+f
miYzImnXLl+VZ4Mcp2HTNDhs17LzrGv9jeqrSIbs
-----END CERTIFICATE-----
"""


@pytest.mark.parametrize("way", ["stdio", "http", "http without session"])
async def test_payloads_are_passed_on_as_they_are_spelled(way: str) -> None:
    """WIRE section 1: "with their number spelling, key order and Unicode kept"."""
    odd = '{"z":1.10,"a":1e400,"n":123456789012345678901234567890,"u":"\\u00e9é","-":-0.0}'
    process = CARRIED[way]() if way in CARRIED else None
    try:
        with trio.fail_after(LIMIT):
            async with running(one=http(process.url) if process else scripted()) as upstreams:
                line = json.loads(await upstreams.call("one", "line", odd.encode()))["content"][0]["text"]
                assert f'"arguments":{odd}' in line
                result = f'{{"content":[],"structuredContent":{odd},"_meta":{{"a":null}}}}'
                message = f'{{"jsonrpc":"2.0","id":$ID,"result":{result}}}'
                arguments = json.dumps({"message": message}).encode()
                assert (await upstreams.call("one", "text", arguments)).decode() == result
    finally:
        if process is not None:
            process.kill()


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ('{"content":[{"type":"text","text":NaN}]}', "is no CallToolResult"),
        ('{"content":[],"structuredContent":{"a":NaN}}', "holds what JSON cannot say"),
        ('{"content":"text"}', "is no CallToolResult"),
        ("null", "is not what MCP says"),
        ("[]", "is not what MCP says"),
        ('{"content":[],"a":"\\ud800"}', None),
    ],
)
async def test_an_answer_that_is_no_result_is_the_server_s_error(result: str, why: str | None) -> None:
    with trio.fail_after(LIMIT):
        async with running(one=scripted()) as upstreams:
            message = f'{{"jsonrpc":"2.0","id":$ID,"result":{result}}}'
            if why is None:
                assert (await upstreams.answer("one", "text", message=message))["a"] == "?"
                return
            with pytest.raises(ServerError, match=why):
                await upstreams.answer("one", "text", message=message)
            await upstreams.answer("one", "echo")


async def test_a_process_gets_its_own_environment_and_not_the_daemon_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAEMON_SECRET", "hunter2")
    with trio.fail_after(LIMIT):
        async with running(one=scripted(env={"TOKEN": "its own"})) as upstreams:
            environment = (await upstreams.answer("one", "seen"))["structuredContent"]["env"]
    assert environment["TOKEN"] == "its own"
    assert environment["PATH"] == os.environ["PATH"]
    assert "DAEMON_SECRET" not in environment
    assert "hunter2" not in json.dumps(environment)


async def test_its_headers_go_to_a_server_and_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """HAZARDS T19: nothing of a caller's is in them, for nothing of a caller's ever gets here."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with ScriptedHttp() as process, trio.fail_after(LIMIT):
        async with running(one=http(process.url, {"Authorization": "Bearer its-own"})) as upstreams:
            headers = (await upstreams.answer("one", "seen"))["structuredContent"]["headers"]
    assert {name.lower() for name in headers} == {
        "host", "accept", "accept-encoding", "authorization", "connection", "content-length", "content-type",
        "mcp-protocol-version", "mcp-session-id", "user-agent",
    }  # fmt: skip
    found = {name.lower(): value for name, value in headers.items()}
    assert (found["authorization"], found["accept-encoding"]) == ("Bearer its-own", "identity")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ({"statuses": {"initialize": 307}, "location": "/mcp"}, "it answered HTTP 307"),
        ({"statuses": {"initialize": 401}}, "it answered HTTP 401"),
        ({"statuses": {"initialize": 500}}, "it answered HTTP 500"),
        ({"statuses": {"initialize": 202}}, "it answered HTTP 202"),
        ({"encoding": "gzip"}, "a compressed message"),
    ],
)
async def test_an_answer_that_is_none_is_told_and_no_redirect_followed(script: dict[str, Any], why: str) -> None:
    """HAZARDS T23, "redirect": "not fetched"."""
    with ScriptedHttp(**script) as process, trio.fail_after(LIMIT):
        upstreams = Observed()
        async with trio.open_nursery() as nursery:
            await nursery.start(upstreams.run)
            upstreams.configure({"one": http(process.url)})
            await until(lambda: why in upstreams.problems["one"])
            nursery.cancel_scope.cancel()


async def test_a_certificate_that_nobody_vouches_for_is_told(tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_text(OWN_CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem")
    upstreams = Observed()
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_ssl_over_tcp, host="127.0.0.1", handler_nursery=nursery)
            [listener] = await nursery.start(partial(serve, _shake_hands, 0, context))
            await nursery.start(upstreams.run)
            port = listener.transport_listener.socket.getsockname()[1]
            upstreams.configure({"one": http(f"https://localhost:{port}/mcp")})
            await until(lambda: "its certificate is not trusted: self-signed" in upstreams.problems["one"])
            nursery.cancel_scope.cancel()


async def _shake_hands(stream: trio.SSLStream[trio.SocketStream]) -> None:
    with suppress(trio.BrokenResourceError):
        await stream.do_handshake()
    await trio.aclose_forcefully(stream)


async def test_what_a_process_prints_astray_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "oubliette")
    noise = [
        "Listening…",
        '{"level": "info"}',
        "",
        "[1]",
        '{"jsonrpc": "2.0"}',
        '{"jsonrpc": "2.0", "id": 99, "result": {}}',
    ]
    complaints = ["starting with token s3cr3t-value", "\x1b[31mred\x1b[0m", "<10000 x>"]
    server = scripted(noise=noise, stderr=complaints, env={"TOKEN": "s3cr3t-value", "A": "a"})
    with trio.fail_after(LIMIT):
        async with running(one=server) as upstreams:
            await upstreams.answer("one", "echo")
            await until(lambda: "of over 4096 bytes" in caplog.text)
    assert "starting with token …" in caplog.text
    assert "'line': 'red'" in caplog.text
    assert "s3cr3t-value" not in caplog.text


async def test_a_server_that_asks_and_does_not_read_the_answers_is_left(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT):
        async with running(one=scripted()) as upstreams:
            error = await refused(upstreams, "one", "flood", b"{}")
            assert "more than 64 requests that wait for an answer" in error.message


async def test_a_server_that_does_not_read_holds_nobody_up() -> None:
    """Its calls end by their deadline, and so does a stop."""
    server = scripted(silent=["tools/call"], timeout=0.2)
    with trio.fail_after(LIMIT):
        async with running(one=server) as upstreams, trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(_time_out, upstreams)


async def _time_out(upstreams: Upstreams) -> None:
    with pytest.raises(ServerTimeout):
        await upstreams.call("one", "echo", b'{"text": "%b"}' % (b"x" * 100_000))


async def test_a_stream_that_ends_before_its_answer_is_taken_up_again(tmp_path: Path) -> None:
    """MCP, "Resumability and Redelivery"."""
    written = tmp_path / "journal"
    with ScriptedHttp(breaks="resumed", journal=str(written)) as process, trio.fail_after(LIMIT):
        async with running(one=http(process.url)) as upstreams:
            assert (await upstreams.answer("one", "echo", a=1))["structuredContent"] == {"a": 1}
    assert [entry for entry in journal(written) if "resumed" in entry] == [{"resumed": "1"}]


async def test_a_stream_that_is_not_taken_up_again_costs_its_call() -> None:
    with ScriptedHttp(breaks="lost") as process, trio.fail_after(LIMIT):
        async with running(one=http(process.url)) as upstreams:
            with pytest.raises(ServerError, match="its stream ended without an answer"):
                await upstreams.answer("one", "echo")
            assert upstreams.status == {"one": "connected"}


async def test_a_result_of_2026_07_28_loses_the_mark_of_its_hop_and_no_more() -> None:
    result = '{"resultType":"complete","content":[],"_meta":{"n":1.10},"isError":false}'
    with trio.fail_after(LIMIT):
        async with running(one=scripted(modern=True)) as upstreams:
            arguments = json.dumps({"message": f'{{"jsonrpc":"2.0","id":$ID,"result":{result}}}'}).encode()
            answer = await upstreams.call("one", "text", arguments)
            assert answer == b'{"content":[],"_meta":{"n":1.10},"isError":false}'


async def test_arguments_of_2026_07_28_travel_as_headers_where_the_tool_says_so() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    tools = [{"name": "seen", "inputSchema": schema}, "no tool"]
    with ScriptedHttp(modern=True, sessions=False, tools=tools) as process, trio.fail_after(LIMIT):
        async with running(one=http(process.url)) as upstreams:
            headers = (await upstreams.answer("one", "seen", region="eu"))["structuredContent"]["headers"]
    found = {name.lower(): value for name, value in headers.items()}
    assert (found["mcp-param-region"], found["mcp-name"], found["mcp-method"]) == ("eu", "seen", "tools/call")


async def test_a_server_of_2026_07_28_that_asks_for_input_is_declined() -> None:
    result = '{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}'
    with trio.fail_after(LIMIT):
        async with running(one=scripted(modern=True)) as upstreams:
            with pytest.raises(ServerError, match='it asks for "input_required", which nobody here can give'):
                await upstreams.answer("one", "text", message=f'{{"jsonrpc":"2.0","id":$ID,"result":{result}}}')


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_a_call_of_2026_07_28_is_cancelled_and_reports_progress(way: str, tmp_path: Path) -> None:
    """Over HTTP, its stream is closed: there is no notice."""
    told: list[Any] = []
    written = tmp_path / "cancelled"
    with ModernHttp() as process, trio.fail_after(LIMIT):
        async with running(one=http(process.url) if way == "http" else modern()) as upstreams:
            async with trio.open_nursery() as nursery:
                arguments = json.dumps({"journal": str(written)}).encode()
                nursery.start_soon(upstreams.call, "one", "slow", arguments, lambda *news: told.append(news))
                await until(lambda: told)
                nursery.cancel_scope.cancel()
            await until(written.exists)
    assert told == [(1, 2, "half")]
