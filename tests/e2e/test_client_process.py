"""`oubliette-client` as an agent starts it: a process on stdio, beside a unix socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.subscriptions import ToolsListChanged
from oubliette_client.link import LOST

from tests.unit.client.harness import Agent, DaemonEnd, text_of

COMMAND = [sys.executable, "-m", "oubliette_client"]
# Beyond anything that a loaded machine needs, so that it ends a test that hangs and nothing else.
PATIENCE_SECONDS = 30
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'


@pytest.fixture
def path() -> Iterator[str]:
    """A path short enough for a socket, wherever pytest keeps its own files."""
    with tempfile.TemporaryDirectory(prefix="oub-") as folder:
        yield str(Path(folder) / "relay.sock")


class SocketDaemon:
    """A daemon's socket: each connection can be accepted once. Leaving it is the daemon's death."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = trio.socket.socket(trio.socket.AF_UNIX)
        self._connections: list[trio.SocketStream] = []

    async def __aenter__(self) -> SocketDaemon:
        await self._socket.bind(self._path)
        self._socket.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()
        os.unlink(self._path)
        for connection in self._connections:
            connection.socket.close()

    async def accept(self) -> DaemonEnd:
        connection, _ = await self._socket.accept()
        self._connections.append(trio.SocketStream(connection))
        return DaemonEnd(self._connections[-1])


@asynccontextmanager
async def process(path: str, command: list[str] = COMMAND) -> AsyncIterator[tuple[Agent, trio.Process]]:
    """Starts a client; what it leaves running is killed."""
    with trio.fail_after(PATIENCE_SECONDS):
        running = await trio.lowlevel.open_process(
            [*command, "--socket", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert running.stdio is not None
        try:
            yield Agent(running.stdio), running
        finally:
            with suppress(ProcessLookupError):
                running.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE_SECONDS):
                await running.wait()
            await _close(running)


async def _close(running: trio.Process) -> None:
    for stream in (running.stdin, running.stdout, running.stderr):
        assert stream is not None
        with suppress(trio.BrokenResourceError):
            await stream.aclose()


async def stderr_of(running: trio.Process) -> str:
    """Returns all that a process says on stderr until its end."""
    assert running.stderr is not None
    said = b"".join([bytes(chunk) async for chunk in running.stderr])
    return said.decode()


def memory_of(pid: int, line: str) -> int:
    """Returns a figure of /proc in KiB."""
    [found] = [row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith(line)]
    return int(found.split()[1])


async def test_a_process_shows_tools_relays_a_call_and_ends_with_its_stdin(path: str) -> None:
    async with SocketDaemon(path) as daemon, process(path) as (agent, running):
        link = await daemon.accept()
        await link.configure("send")
        await agent.initialize()
        assert list(await agent.tools()) == ["ant_send"]
        assert memory_of(running.pid, "VmRSS") <= 30 * 1024
        await agent.call(1, "ant_send", {"n": 1})
        await link.answer(await link.receive(), "done")
        assert text_of(await agent.receive()) == '"done"'
        assert running.stdin is not None
        await running.stdin.aclose()
        assert await running.wait() == 0
        assert await stderr_of(running) == ""
        assert await link.receive_line() == b""


async def test_the_console_script_is_the_client(path: str) -> None:
    script = str(Path(sys.executable).parent / "oubliette-client")
    async with SocketDaemon(path), process(path, [script]) as (agent, _):
        assert (await agent.initialize())["serverInfo"]["name"] == "oubliette-client"


NOISY = """
import os, subprocess, sys, warnings
from oubliette_client import tools
from oubliette_client.__main__ import main
take = tools.ToolSet.take
def noisy(self, kind, params):
    print("printed", flush=True)
    os.write(1, b"written\\n")
    subprocess.run(["echo", "echoed"])
    warnings.warn("warned")
    return take(self, kind, params)
tools.ToolSet.take = noisy
sys.exit(main())
"""


async def test_what_is_printed_by_accident_goes_to_stderr(path: str) -> None:
    """HAZARDS F36."""
    async with SocketDaemon(path) as daemon, process(path, [sys.executable, "-c", NOISY]) as (agent, running):
        await (await daemon.accept()).configure("send")
        await agent.ask(1, "tools/list")
        assert (await agent.receive())["id"] == 1
        assert running.stdin is not None
        await running.stdin.aclose()
        assert await agent.receive_line() == b""
        said = await stderr_of(running)
        assert all(said.count(word) >= 1 for word in ("printed", "written", "echoed", "warned"))


IMPATIENT = """
import sys
from oubliette_client import link
from oubliette_client.__main__ import main
link.START_SECONDS = 0.3
sys.exit(main())
"""


def _nothing(path: str) -> None:
    return None


def _stale_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)


def _regular_file(path: str) -> None:
    Path(path).write_text("")


@pytest.mark.parametrize("make", [_nothing, _stale_socket, _regular_file])
async def test_a_socket_that_cannot_be_opened_is_exit_code_2_and_one_line(path: str, make: object) -> None:
    assert callable(make)
    make(path)
    async with process(path, [sys.executable, "-c", IMPATIENT]) as (agent, running):
        await agent.initialize()
        assert await running.wait() == 2
        [line] = (await stderr_of(running)).splitlines()
        assert line.startswith(f"oubliette-client: cannot open the socket {path} within 0.3 s: ")
        assert await agent.receive_line() == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_client_without_a_word(path: str, number: signal.Signals) -> None:
    async with SocketDaemon(path) as daemon, process(path) as (agent, running):
        link = await daemon.accept()
        await link.configure("send")
        await agent.initialize()
        await agent.call(1, "ant_send", token="t")
        await link.receive()
        running.send_signal(number)
        assert await running.wait() == 0
        assert await stderr_of(running) == ""


async def test_a_signal_while_the_client_loads_ends_it_without_a_word(path: str) -> None:
    script = """
import os, signal, sys
from oubliette_client import __main__, stdio
take_over = stdio.take_over
def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    return take_over()
stdio.take_over = interrupted
sys.exit(__main__.main())
"""
    async with process(path, [sys.executable, "-c", script]) as (_, running):
        assert await running.wait() == 0
        assert await stderr_of(running) == ""


async def test_an_agent_that_is_gone_ends_the_client_without_a_word(path: str) -> None:
    async with SocketDaemon(path), process(path) as (agent, running):
        await agent.initialize()
        assert running.stdout is not None
        await running.stdout.aclose()
        await agent.ask(1, "ping")
        assert await running.wait() == 0
        assert await stderr_of(running) == ""


async def test_a_killed_daemon_fails_calls_within_1_s_and_a_new_one_is_found(path: str) -> None:
    """HAZARDS F14, with a real socket."""
    async with process(path) as (agent, _):
        async with SocketDaemon(path) as daemon:
            link = await daemon.accept()
            await link.configure("send")
            await agent.initialize()
            assert list(await agent.tools()) == ["ant_send"]
            for id in range(3):
                await agent.call(id, "ant_send")
                await link.receive()
        with trio.fail_after(1):
            answers = [await agent.receive() for _ in range(3)]
        assert [text_of(answer) for answer in answers] == [LOST] * 3
        async with SocketDaemon(path) as daemon:
            link = await daemon.accept()
            await link.configure("send", "get")
            assert (await agent.receive())["method"] == "notifications/tools/list_changed"


async def test_endless_input_without_a_line_end_costs_no_memory(path: str) -> None:
    """HAZARDS F22."""
    async with SocketDaemon(path), process(path) as (agent, running):
        await agent.initialize()
        before = memory_of(running.pid, "VmHWM")
        for _ in range(64):
            await agent.stream.send_all(b"x" * 1024 * 1024)
        await agent.send(b"", PING.strip())
        assert (await agent.receive())["error"]["code"] == -32600
        assert (await agent.receive())["id"] == 1
        assert memory_of(running.pid, "VmHWM") - before < 16 * 1024


@pytest.mark.parametrize("stdout_is", ["a file", "a pipe"])
@pytest.mark.parametrize("stdin_is", ["a file", "/dev/null", "a socket"])
def test_stdin_and_stdout_may_be_other_things_than_pipes(path: str, stdin_is: str, stdout_is: str) -> None:
    folder = Path(path).parent
    (folder / "in").write_bytes(PING)
    left, right = socket.socketpair()
    left.sendall(PING)
    left.shutdown(socket.SHUT_WR)
    with (
        left,
        right,
        (folder / "in").open("rb") as file,
        Path(os.devnull).open("rb") as null,
        (folder / "out").open("wb") as out,
    ):
        done = subprocess.run(
            [*COMMAND, "--socket", path],
            stdin={"a file": file.fileno(), "/dev/null": null.fileno(), "a socket": right.fileno()}[stdin_is],
            stdout=out if stdout_is == "a file" else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")
    written = (folder / "out").read_bytes() if stdout_is == "a file" else done.stdout
    assert written == (b"" if stdin_is == "/dev/null" else PONG)


# The tools that a client has whatever the daemon tells.
OWN = {"session_message", "project_list"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}


async def _answer_calls(daemon: SocketDaemon) -> None:
    """A daemon with one caller tool, which doubles `n` and reports progress."""
    link = await daemon.accept()
    await link.declare({"name": "double", "inputSchema": SCHEMA, "outputSchema": {"type": "object"}})
    await link.offer({"pack": "ot", "name": "health", "description": "How it goes"})
    while line := await link.receive_line():
        request = json.loads(line)
        if request["params"].get("name") == "ot.health":
            await link.fail(request["id"], -32003, "caller disconnected")
            continue
        await link.report(request, progress=1, total=2, message="half way")
        await link.answer(request, {"doubled": request["params"]["arguments"]["n"] * 2})


async def test_the_official_client_session_lists_and_calls(path: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--socket", path])
    with trio.fail_after(PATIENCE_SECONDS):
        async with SocketDaemon(path) as daemon, trio.open_nursery() as nursery:
            nursery.start_soon(_answer_calls, daemon)
            async with stdio_client(server) as streams, ClientSession(*streams) as session:
                await session.initialize()
                tools = (await session.list_tools()).tools
                assert {tool.name: tool.input_schema for tool in tools if tool.name not in OWN} == {
                    "ant_double": SCHEMA,
                    "ot_health": {"type": "object"},
                }
                result = await session.call_tool("ant_double", {"n": 21}, progress_callback=on_progress)
                assert result.structured_content == {"doubled": 42}
                assert not result.is_error
                failed = await session.call_tool("ot_health", {})
                assert failed.is_error
            nursery.cancel_scope.cancel()
    assert heard == [(1, 2, "half way")]


@pytest.mark.parametrize(("mode", "revision"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_the_official_client_finds_its_way_in_either_era(path: str, mode: str, revision: str) -> None:
    """`Client` asks `server/discover` first, unless it is told to begin with `initialize`."""
    heard: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--socket", path])
    with trio.fail_after(PATIENCE_SECONDS):
        async with SocketDaemon(path) as daemon, trio.open_nursery() as nursery:
            nursery.start_soon(_answer_calls, daemon)
            async with Client(server, mode=mode) as client:
                assert client.protocol_version == revision
                assert client.server_info is not None
                assert client.server_info.name == "oubliette-client"
                assert {tool.name for tool in (await client.list_tools()).tools} == {
                    *OWN,
                    "ant_double",
                    "ot_health",
                }
                result = await client.call_tool("ant_double", {"n": 4}, progress_callback=on_progress)
                assert result.structured_content == {"doubled": 8}
                assert (await client.call_tool("ot_health", {})).is_error
            nursery.cancel_scope.cancel()
    assert heard == [1]


async def test_the_official_client_hears_of_changed_tools_on_a_subscription(path: str) -> None:
    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--socket", path])
    with trio.fail_after(PATIENCE_SECONDS):
        async with SocketDaemon(path) as daemon, Client(server) as client:
            link = await daemon.accept()
            await link.configure("send")
            async with client.listen(tools_list_changed=True, prompts_list_changed=True) as subscription:
                assert subscription.honored.model_dump(exclude_none=True) == {"tools_list_changed": True}
                await link.configure("send", "get")
                assert await anext(subscription) == ToolsListChanged()
                assert [tool.name for tool in (await client.list_tools()).tools] == [
                    "ant_get",
                    "ant_send",
                    "project_list",
                    "session_message",
                ]
