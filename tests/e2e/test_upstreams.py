"""Proxied MCP servers in earnest: real processes, the official SDK, both transports (issue 5, item 6)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from oubliette.errors import ServerDisconnected, ServerError, ServerTimeout
from oubliette.upstreams import ServerConfig
from tests.helpers.mcp_server import PICTURE
from tests.helpers.upstreams import ScriptedHttp, http, journal, running, scripted, stdio
from tests.helpers.waiting import LIMIT, until

EVERYTHING = Path(__file__).parents[1] / "servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
NOTICED = 1.0  # seconds: "a dead server noticed within a second"

needs_everything = pytest.mark.skipif(
    not EVERYTHING.exists() or shutil.which("node") is None,
    reason="needs Node and server-everything: npm ci --prefix tests/servers",
)


@pytest.fixture(params=["stdio", "http", "http without stream", "http without session"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerConfig]:
    """The scripted server, carried in each way."""
    written = str(tmp_path / "journal")
    if request.param == "stdio":
        yield scripted(journal=written)
        return
    ways: dict[str, dict[str, Any]] = {
        "http": {},
        "http without stream": {"stream": False},
        "http without session": {"stream": False, "sessions": False, "sse": False},
    }
    with ScriptedHttp(journal=written, **ways[request.param]) as process:
        yield http(process.url)


@pytest.fixture(params=["stdio", "http"])
def everything(request: pytest.FixtureRequest) -> Iterator[ServerConfig]:
    """The official example server."""
    if request.param == "stdio":
        yield stdio("node", str(EVERYTHING), "stdio")
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["node", str(EVERYTHING), "streamableHttp"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env={**os.environ, "PORT": str(port)}, **quiet) as process:  # type: ignore[call-overload]  # the two are keywords of it
        yield http(f"http://127.0.0.1:{port}/mcp")
        process.kill()


# The official server


@needs_everything
async def test_the_official_server_is_connected_and_called(everything: ServerConfig) -> None:
    with trio.fail_after(LIMIT):
        async with running(everything=everything) as upstreams:
            assert {"echo", "get-sum", "get-tiny-image", "get-structured-content"} <= set(upstreams.names("everything"))
            echo = await upstreams.answer("everything", "echo", message="wörld")
            assert echo == {"content": [{"type": "text", "text": "Echo: wörld"}]}
            image = await upstreams.answer("everything", "get-tiny-image")
            assert [block["type"] for block in image["content"]] == ["text", "image", "text"]
            assert image["content"][1]["data"].startswith("iVBOR")
            weather = await upstreams.answer("everything", "get-structured-content", location="New York")
            assert json.loads(weather["content"][0]["text"]) == weather["structuredContent"]


@needs_everything
async def test_the_official_server_reports_progress(everything: ServerConfig) -> None:
    told: list[tuple[float, float | None, str | None]] = []
    with trio.fail_after(LIMIT):
        async with running(everything=everything) as upstreams:
            arguments = b'{"duration": 0.2, "steps": 4}'
            await upstreams.call(
                "everything", "trigger-long-running-operation", arguments, lambda *news: told.append(news)
            )
    assert told[-1][:2] == (4, 4)
    assert told == sorted(told)


@needs_everything
async def test_arguments_that_the_official_server_refuses_are_its_error(everything: ServerConfig) -> None:
    with trio.fail_after(LIMIT):
        async with running(everything=everything) as upstreams:
            result = await upstreams.answer("everything", "get-sum", a="x")
            assert result["isError"]


# Calls


async def test_a_result_is_kept_whole(server: ServerConfig) -> None:
    with trio.fail_after(LIMIT):
        async with running(one=server) as upstreams:
            assert await upstreams.answer("one", "picture") == PICTURE


async def test_arguments_arrive_as_they_were_sent(server: ServerConfig) -> None:
    sent: dict[str, Any] = {"null": None, "list": [1, 1.5, -0.0, 10**30, None], "text": "é\u2028\U0001f600", "": {}}
    with trio.fail_after(LIMIT):
        async with running(one=server) as upstreams:
            assert (await upstreams.answer("one", "echo", **sent))["structuredContent"] == sent


async def test_a_cancelled_call_is_cancelled_on_the_server(server: ServerConfig, tmp_path: Path) -> None:
    started = trio.Event()
    with trio.fail_after(LIMIT):
        async with running(one=server) as upstreams:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(upstreams.call, "one", "slow", b"{}", lambda *news: started.set())
                await until(lambda: any(entry == _call("slow", entry) for entry in journal(tmp_path / "journal")))
                nursery.cancel_scope.cancel()
            await until(lambda: "slow was cancelled" in journal(tmp_path / "journal"))
            assert upstreams.status == {"one": "connected"}


def _call(tool: str, entry: Any) -> Any:
    """The entry, if it is a call of that tool."""
    called = isinstance(entry, dict) and entry.get("method") == "tools/call" and entry["params"]["name"] == tool
    return entry if called else None


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_progress_arrives_in_order(way: str) -> None:
    told: list[Any] = []
    with ScriptedHttp() as process, trio.fail_after(LIMIT):
        async with running(one=scripted() if way == "stdio" else http(process.url)) as upstreams:
            arguments = b'{"steps": 50, "seconds": 0.05}'
            await upstreams.call("one", "slow", arguments, lambda *news: told.append(news))
    assert told[-1] == (50, 50, "working")
    assert told == sorted(told)


async def test_a_call_that_takes_too_long_is_ended_and_the_server_told(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT):
        async with running(one=scripted(journal=str(tmp_path / "journal"), timeout=0.1)) as upstreams:
            with pytest.raises(ServerTimeout, match=r"tool 'slow' of server 'one' timed out after 0\.1 s") as caught:
                await upstreams.answer("one", "slow")
            assert caught.value.retry_safe is False
            await until(lambda: "slow was cancelled" in journal(tmp_path / "journal"))


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_what_the_server_asks_for_is_declined(way: str) -> None:
    with ScriptedHttp() as process, trio.fail_after(LIMIT):
        async with running(one=scripted() if way == "stdio" else http(process.url)) as upstreams:
            answers = (await upstreams.answer("one", "ask"))["structuredContent"]
    assert answers == {
        "sampling/createMessage": "Sampling not supported",
        "elicitation/create": "Elicitation not supported",
        "roots/list": "List roots not supported",
    }


async def test_a_server_s_error_is_told_in_its_words_and_cleaned() -> None:
    with trio.fail_after(LIMIT):
        async with running(one=scripted()) as upstreams:
            with pytest.raises(ServerError, match=r"answered with an error: no good$"):
                await upstreams.answer("one", "refuse", message="no\x1b[31m good\u202e")


async def test_a_result_that_is_too_long_is_refused_and_the_server_goes_on(server: ServerConfig) -> None:
    with trio.fail_after(LIMIT):
        async with running(one=server) as upstreams:
            with pytest.raises(ServerError, match="at most 4194304 can be passed on"):
                await upstreams.answer("one", "big", bytes=5_000_000)
            assert upstreams.status == {"one": "connected"}
            await upstreams.answer("one", "echo")


async def test_a_message_without_end_costs_its_own_server_alone(server: ServerConfig) -> None:
    with trio.fail_after(LIMIT):
        async with running(one=server, other=scripted()) as upstreams:
            with pytest.raises((ServerError, ServerDisconnected), match="more than 8388608 bytes"):
                await upstreams.answer("one", "big", bytes=9_000_000)
            assert upstreams.status["other"] == "connected"
            await upstreams.until_connected()
            await upstreams.answer("one", "echo")
