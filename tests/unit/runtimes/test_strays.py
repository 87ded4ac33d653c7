"""What an earlier daemon ran outside of its sandboxes is found by its mark, and nothing else is touched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oubliette.runtimes import strays
from oubliette.runtimes.instance import MARK, instance, is_left, mark
from oubliette.runtimes.strays import end_left, end_strays
from tests.helpers.waiting import is_running, until_gone

Start = Callable[[dict[str, str]], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program with an environment; it is ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(environment: dict[str, str]) -> int:
        started.append(subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"], **environment}))
        return started[-1].pid

    yield begin
    for process in started:
        process.kill()
        process.wait()


async def test_what_an_earlier_daemon_left_is_ended(tmp_path: Path, start: Start) -> None:
    left = start({MARK: f"{instance(tmp_path)}.earlier"})
    others = [
        start(mark(tmp_path)),
        start({MARK: f"{instance(tmp_path / 'other')}.earlier"}),
        start({MARK: ""}),
        start({f"NOT_{MARK}": f"{instance(tmp_path)}.earlier"}),
    ]
    assert await end_left(tmp_path) == 1
    await until_gone(left)
    assert all(map(is_running, others))
    assert await end_left(tmp_path) == 0


def test_a_mark_is_of_one_daemon(tmp_path: Path) -> None:
    assert not is_left(tmp_path, mark(tmp_path)[MARK])
    assert is_left(tmp_path, f"{instance(tmp_path)}.earlier")
    assert not is_left(tmp_path, f"{instance(tmp_path / 'other')}.earlier")


async def test_what_does_not_die_is_given_up(monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    """A process that waits for a disk cannot be killed; nobody waits for it."""
    pid = start({"STRAY": "yes"})
    monkeypatch.setattr(strays, "PATIENCE", 0.05)
    monkeypatch.setattr("signal.pidfd_send_signal", lambda descriptor, number: None)
    assert await end_strays(lambda environ: environ.get(b"STRAY") == b"yes") == 1
    assert is_running(pid)


def own_variable() -> tuple[bytes, bytes]:
    name, _, value = Path("/proc/self/environ").read_bytes().split(b"\0")[0].partition(b"=")
    return name, value


async def test_the_daemon_itself_is_no_stray(monkeypatch: pytest.MonkeyPatch) -> None:
    name, value = own_variable()
    killed: list[int] = []
    monkeypatch.setattr(strays, "_kill", lambda pid, is_stray: killed.append(pid))
    await end_strays(lambda environ: environ.get(name) == value)
    assert os.getpid() not in killed
    assert len(killed) > 1
