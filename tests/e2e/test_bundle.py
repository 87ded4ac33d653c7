"""The bundle as containers have it: read-only, in their own Python, with nothing of their own packages."""

from __future__ import annotations

import json
import os
import shutil
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

SECONDS = 30
VERSIONS = ("3.11", "3.12", "3.13")


def find(version: str) -> str | None:
    """Returns a Python of that version, where this machine has one."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(pyenv[-1]) if pyenv else shutil.which(f"python{version}")


PYTHONS = {version: python for version in VERSIONS if (python := find(version))}


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    """A bundle for every Python of this machine, with other times of change, as on a mount of another machine."""
    with tempfile.TemporaryDirectory(prefix="oub-") as folder:
        made = bundle.ensure(Path(folder), list(PYTHONS.values()) or [sys.executable])
        for number, path in enumerate(sorted(made.rglob("*"))):
            os.utime(path, (number, 1_000_000_000 + number))
        yield made


@asynccontextmanager
async def daemon_socket() -> AsyncIterator[str]:
    """A socket that tells every client of one caller tool."""

    async def serve(stream: trio.SocketStream) -> None:
        tools = {"caller_id": "app", "tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
        for kind, params in (("caller_tools_config", tools), ("pack_tools_config", {"tools": []})):
            await stream.send_all(json.dumps({"jsonrpc": "2.0", "type": kind, "params": params}).encode() + b"\n")
        async for _ in stream:
            pass

    with tempfile.TemporaryDirectory(prefix="oub-") as folder:
        path = f"{folder}/relay.sock"
        listening = trio.socket.socket(trio.socket.AF_UNIX)
        await listening.bind(path)
        listening.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listening)])
            yield path
            nursery.cancel_scope.cancel()


async def converse(command: list[str], **variables: str) -> tuple[dict[Any, Any], str]:
    """Returns the answers of a client to `initialize` and `tools/list` by id, and what it said on stderr."""
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    said = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    environment = {"PATH": os.environ["PATH"], **variables}
    with trio.fail_after(SECONDS):
        async with daemon_socket() as path:
            done = await trio.run_process(
                [*command, "--socket", path],
                stdin="".join(json.dumps(message) + "\n" for message in said).encode(),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=environment,
                cwd="/",
            )
    assert done.returncode == 0, done.stderr.decode()
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {answer.get("id"): answer for answer in answers}, done.stderr.decode()


def assert_served(answers: dict[Any, Any]) -> None:
    assert answers[1]["result"]["serverInfo"]["name"] == "oubliette-client"
    assert "app_echo" in {tool["name"] for tool in answers[2]["result"]["tools"]}


@pytest.mark.parametrize("version", VERSIONS)
async def test_any_python_runs_the_client(built: Path, version: str) -> None:
    if version not in PYTHONS:
        pytest.skip(f"there is no Python {version} here")
    answers, said = await converse([PYTHONS[version], "-v", *bundle.PYTHON_OPTIONS, str(built / "client.py")])
    assert_served(answers)
    # "-v": where each module came from. None of ours was compiled again, whatever the times of change say.
    ours = [line for line in said.splitlines() if str(built / "lib") in line and line.startswith("# code object from")]
    assert len(ours) > 50
    assert not [line for line in ours if not line.endswith(".pyc'")]
    assert "site-packages" not in said


@pytest.mark.parametrize("version", VERSIONS)
def test_any_python_runs_the_launcher(built: Path, version: str) -> None:
    if version not in PYTHONS:
        pytest.skip(f"there is no Python {version} here")
    command = [
        PYTHONS[version],
        *bundle.PYTHON_OPTIONS,
        str(built / "launch.py"),
        "--",
        "sh",
        "-c",
        "echo here; exit 5",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env={})
    assert (done.returncode, done.stdout, done.stderr) == (5, "here\n", "")


async def test_what_an_image_has_installed_is_not_used(built: Path, tmp_path: Path) -> None:
    """Started without options too: neither another trio nor a module that shadows one of the standard library."""
    for name in ("trio", "attr", "outcome", "oubliette", "oubliette_client", "selectors"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    answers, said = await converse([sys.executable, str(built / "client.py")], PYTHONPATH=str(tmp_path))
    assert_served(answers)
    assert said == ""


async def test_a_python_that_it_was_not_compiled_for_runs_it_too(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "bundle", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-B", *bundle.PYTHON_OPTIONS, str(tmp_path / "bundle" / "client.py")]
    answers, _ = await converse(command)
    assert_served(answers)


@pytest.mark.parametrize("program", ["client.py", "launch.py"])
def test_a_python_that_is_too_old_is_told_so(built: Path, program: str) -> None:
    python = find("3.10") or find("3.9")
    if python is None:
        pytest.skip("every Python here is new enough")
    done = subprocess.run([python, str(built / program)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer, and this is 3." in done.stderr
