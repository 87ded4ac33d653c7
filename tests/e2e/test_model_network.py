"""`runtime.network: model` from inside: a network namespace with the launcher in it, and the daemon's door outside.

What a program in there reaches is what `runtime.model_hosts` names, three ways; all else is refused or not there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from oubliette import bundle
from tests.helpers.model_door import SECONDS, Recorder, door, read_all, read_until, upstream

IN_A_NAMESPACE = ["bwrap", "--unshare-net", "--die-with-parent", "--dev-bind", "/", "/", "--proc", "/proc"]
# What the programs inside are made of: one HTTP request, and its answer as it came.
INSIDE = """
import json, os, socket, sys
def ask(port, data, host="127.0.0.1", end=True):
    with socket.create_connection((host, port), timeout=10) as way:
        way.sendall(data)
        if end:
            way.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := way.recv(65536):
            answer += chunk
        return answer.decode()
def refusal(port, host="127.0.0.1"):
    try:
        return ask(port, b"GET / HTTP/1.0\\r\\n\\r\\n", host)
    except OSError as error:
        return type(error).__name__
def get(target, host):
    return f"GET {target} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode()
allowed, other = int(sys.argv[1]), int(sys.argv[2])
"""


def _why_not() -> str:
    if shutil.which("bwrap") is None:
        return "bwrap is not installed here (Debian's package bubblewrap)"
    tried = subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, text=True, timeout=SECONDS, check=False)
    return f"bwrap makes no network namespace here: {tried.stderr.strip()}" if tried.returncode else ""


WHY_NOT = _why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "it works")


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="oub-") as folder:
        yield bundle.ensure(Path(folder))


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="oub-") as name:
        yield Path(name)


class World:
    """Two servers of the host, and a door that lets through to the first one."""

    def __init__(self, built: Path, folder: Path, allowed: int, other: int, refused: Any) -> None:
        self.folder = folder
        self.allowed = allowed
        self.other = other
        self.refused = refused
        self._launch = [sys.executable, *bundle.PYTHON_OPTIONS, str(built / "launch.py")]

    def command(self, script: str) -> list[str]:
        ways = ["--model", f"{self.folder}/model.sock", "--forward", f"127.0.0.1:{self.allowed}"]
        program = [sys.executable, "-c", INSIDE + script, str(self.allowed), str(self.other)]
        return [*IN_A_NAMESPACE, *self._launch, *ways, "--forward", "api.example.com:443", "--", *program]

    async def run(self, script: str) -> Any:
        """Returns what a program inside prints as JSON."""
        with trio.fail_after(3 * SECONDS):
            done = await trio.run_process(self.command(script), capture_stdout=True)
        return json.loads(done.stdout)


@asynccontextmanager
async def world(built: Path, folder: Path, handler: Any = None) -> AsyncIterator[World]:
    server, unheard = handler or Recorder(b"\r\n\r\n"), Recorder(b"\r\n\r\n")
    async with (
        upstream(server) as allowed,
        upstream(unheard) as other,
        door(folder, f"127.0.0.1:{allowed}") as listener,
    ):
        yield World(built, folder, allowed, other, lambda: listener.refused)
    assert unheard.heard == []


async def test_the_model_is_reached_by_its_own_address_and_through_the_proxy(built: Path, folder: Path) -> None:
    server = Recorder(b"\r\n\r\n")
    async with world(built, folder, server) as outside:
        base_url, absolute, tunnel = await outside.run("""
at = f"127.0.0.1:{allowed}"
connect = f"CONNECT {at} HTTP/1.1\\r\\nHost: {at}\\r\\n\\r\\n".encode()
print(json.dumps([
    ask(allowed, get("/base", at)),
    ask(3128, get(f"http://{at}/absolute", at)),
    ask(3128, connect + get("/tunnel", at)),
]))
""")
        assert outside.refused() == 0
    assert base_url == "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    assert absolute == "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    assert tunnel == "HTTP/1.1 200 Connection established\r\n\r\n" + base_url
    assert sorted(heard.split()[1] for heard in server.heard) == [b"/absolute", b"/base", b"/tunnel"]


async def test_nothing_else_is_reached(built: Path, folder: Path) -> None:
    server = Recorder(b"\r\n\r\n")
    async with world(built, folder, server) as outside:
        answers, errors = await outside.run("""
answers = [
    ask(3128, get("http://api.example.com/", "api.example.com")),
    ask(3128, b"CONNECT api.example.com:443 HTTP/1.1\\r\\nHost: api.example.com:443\\r\\n\\r\\n"),
    ask(3128, get(f"http://127.0.0.1:{other}/", f"127.0.0.1:{allowed}")),
    ask(3128, f"CONNECT 127.0.0.1:{other} HTTP/1.0\\r\\n\\r\\n".encode()),
    ask(3128, f"CONNECT localhost:{allowed} HTTP/1.0\\r\\n\\r\\n".encode()),
    ask(3128, get("/", f"127.0.0.1:{allowed}")),
]
errors = [refusal(other), refusal(443, "192.0.2.1"), refusal(80, "169.254.169.254")]
print(json.dumps([answers, errors]))
""")
        assert outside.refused() == 6
    assert [answer.partition("\r\n")[0] for answer in answers] == ["HTTP/1.1 403 Forbidden"] * 6
    assert all("runtime.model_hosts" in answer for answer in answers)
    assert errors == ["ConnectionRefusedError", "OSError", "OSError"]
    assert server.heard == []


async def test_a_stream_arrives_as_it_is_made(built: Path, folder: Path) -> None:
    """The agent's own stream of tokens must not wait for its end."""

    async def speak(stream: trio.SocketStream) -> None:
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        for number in range(3):
            await stream.send_all(b"%d" % number)
            await read_until(stream, b"next")
        await stream.aclose()

    async with world(built, folder, speak) as outside:
        heard = await outside.run("""
heard = []
with socket.create_connection(("127.0.0.1", allowed), timeout=10) as way:
    way.sendall(get("/", "a"))
    while not heard or not heard[-1].endswith("2"):
        heard.append(way.recv(65536).decode())
        if heard[-1][-1].isdigit():
            way.sendall(b"next")
print(json.dumps("".join(heard)))
""")
    assert heard.endswith("\r\n\r\n012")


async def test_large_bodies_arrive_both_ways(built: Path, folder: Path) -> None:
    size = 8 * 1024 * 1024

    async def echo(stream: trio.SocketStream) -> None:
        body = (await read_all(stream)).partition(b"\r\n\r\n")[2]
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n" + body)
        await stream.aclose()

    async with world(built, folder, echo) as outside:
        got = await outside.run(f"""
body = b"a token\\n" * {size // 8}
answer = ask(allowed, get("/", "a") + body)
print(json.dumps(answer.partition("\\r\\n\\r\\n")[2].encode() == body))
""")
    assert got is True


async def test_the_ways_are_open_before_the_program_is_there_and_gone_with_it(built: Path, folder: Path) -> None:
    """Its very first step may be to ask its model: nothing may be refused because something is still loading."""
    async with world(built, folder) as outside:
        first = 'print(json.dumps(ask(allowed, get("/first", "a"))))'
        for _ in range(5):
            assert (await outside.run(first)).startswith("HTTP/1.1 200 OK")


async def test_as_process_1_it_passes_on_what_it_is_told(built: Path, folder: Path) -> None:
    """The kernel throws away what process 1 has no handler for."""
    script = (
        "import signal; signal.signal(signal.SIGTERM, lambda *a: sys.exit(9)); print(1, flush=True); signal.pause()"
    )
    reader, writer = os.pipe()
    async with world(built, folder) as outside:
        launcher = outside.command(script)
        command = [launcher[0], "--unshare-pid", "--as-pid-1", "--info-fd", str(writer), *launcher[1:]]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, pass_fds=[writer])
        os.close(writer)
        assert process.stdout is not None
        async with process.stdout, trio.lowlevel.FdStream(reader) as information:
            with trio.fail_after(3 * SECONDS):
                info = json.loads(await read_until(information, b"}\n"))
                assert await read_until(process.stdout, b"\n") == b"1\n"
                os.kill(info["child-pid"], signal.SIGTERM)
                assert await process.wait() == 9
