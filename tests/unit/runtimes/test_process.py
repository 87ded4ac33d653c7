"""The runtime `process`: what a session's agents find, and what is found of them when they are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from oubliette.agents.base import Program
from oubliette.agents.process import Process
from oubliette.runtimes.process import ProcessRuntime
from tests.helpers.runtimes import make_plain_settings as make_settings
from tests.helpers.runtimes import make_room, run
from tests.helpers.waiting import is_running, until_gone

# It is in a session of its own before it says who it is, and holds no pipe.
ESCAPE = """
import os, subprocess, sys
nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
print(subprocess.Popen(["sleep", "1000"], start_new_session=True, **nowhere).pid)
"""


FORK_ON = """
import os, time
for _ in range(100):
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.01)
time.sleep(1000)
"""


async def test_the_host_is_as_it_is(tmp_path: Path) -> None:
    room = make_room(tmp_path)
    async with ProcessRuntime(make_settings(tmp_path)).open(room) as sandbox:
        done = await run(sandbox, "sh", "-c", "pwd; echo $HOME; echo $OUBLIETTE_SESSION_ID; echo $OUBLIETTE_CLIENT")
        assert not sandbox.confined
        assert (sandbox.place.home, sandbox.place.workspace) == (str(room.home), str(room.workspace))
        assert sandbox.place.socket == str(room.sockets / "relay.sock")
    assert done.lines == [str(room.workspace), os.environ["HOME"], "ses_one", f"{sys.executable} -m oubliette_client"]


async def test_a_file_lies_in_the_agents_folder_not_in_home(tmp_path: Path) -> None:
    room = make_room(tmp_path)
    async with ProcessRuntime(make_settings(tmp_path)).open(room) as sandbox:
        path = await sandbox.write("conf/mcp.json", b"{}")
    assert path == str(room.home / "conf/mcp.json")
    assert (room.home / "conf/mcp.json").read_bytes() == b"{}"


async def test_it_says_what_it_cannot_do(tmp_path: Path) -> None:
    for network, count in (("none", 2), ("model", 2), ("host", 1)):
        assert len(ProcessRuntime(make_settings(tmp_path, network=network)).warnings) == count


async def test_the_end_finds_what_left_its_group(tmp_path: Path) -> None:
    runtime = ProcessRuntime(make_settings(tmp_path))
    async with runtime.open(make_room(tmp_path)) as sandbox, runtime.open(make_room(tmp_path, "other")) as other:
        kept = int((await run(other, sys.executable, "-c", ESCAPE)).text)
        async with runtime.open(make_room(tmp_path, "third")) as third:
            escaped = int((await run(third, sys.executable, "-c", ESCAPE)).text)
            assert is_running(escaped), "it may work on between turns"
        await until_gone(escaped)
        assert is_running(kept), "another session's is another's"
        assert (await run(sandbox, "echo", "well")).lines == ["well"]
    await until_gone(kept)


async def test_a_cancelled_end_finds_it_too(tmp_path: Path) -> None:
    runtime = ProcessRuntime(make_settings(tmp_path))
    with trio.CancelScope() as scope:
        async with runtime.open(make_room(tmp_path)) as sandbox:
            escaped = int((await run(sandbox, sys.executable, "-c", ESCAPE)).text)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    await until_gone(escaped)


async def test_one_that_forks_on_and_on_is_ended(tmp_path: Path) -> None:
    """Each look kills what is there, and looks again until none is left."""
    runtime = ProcessRuntime(make_settings(tmp_path))
    room = make_room(tmp_path)
    async with runtime.open(room) as sandbox:
        await run(sandbox, "sh", "-c", f'exec {sys.executable} -c "$0" >/dev/null 2>&1', FORK_ON)
    assert of_session(room.session_id, room.sockets) == []


def of_session(session_id: str, sockets: Path) -> list[int]:
    wanted = {b"OUBLIETTE_SESSION_ID=" + session_id.encode(), b"OUBLIETTE_SOCKET=" + bytes(sockets / "relay.sock")}
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def test_cleaning_ends_what_a_crash_left_and_nothing_else(tmp_path: Path) -> None:
    data_dir, elsewhere = tmp_path / "data", tmp_path / "other"
    runtime = ProcessRuntime(make_settings(data_dir))
    environments = [
        {"OUBLIETTE_SESSION_ID": "ses_old", "OUBLIETTE_SOCKET": str(data_dir / "run/x/relay.sock")},
        {"OUBLIETTE_SESSION_ID": "ses_old", "OUBLIETTE_SOCKET": str(elsewhere / "run/x/relay.sock")},
        {"OUBLIETTE_SOCKET": str(data_dir / "run/x/relay.sock")},
        {"OUBLIETTE_SESSION_ID": "ses_old"},
    ]
    left, *others = [start(environment) for environment in environments]
    try:
        asleep = Program(argv=("sleep", "1000"))
        async with runtime.open(make_room(data_dir)) as sandbox, sandbox.start(asleep) as running:
            await runtime.clean()
            await until_gone(left.pid)
            assert all(is_running(process.pid) for process in others)
            assert isinstance(running, Process)
            assert not running.has_exited
            assert is_running(running.pid)
    finally:
        for process in (left, *others):
            process.kill()
            process.wait()


def start(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"], env={**environment, "PATH": os.environ["PATH"]})


async def test_a_start_that_fails_leaves_no_descriptor(tmp_path: Path) -> None:
    async with ProcessRuntime(make_settings(tmp_path)).open(make_room(tmp_path)) as sandbox:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(FileNotFoundError):
            async with sandbox.start(Program(argv=("no-such-program",))):
                raise AssertionError("it cannot be started")
        assert os.listdir("/proc/self/fd") == before
