"""`oubliette demo` as a user runs it: its outcomes, its exit codes, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

PATIENCE = 60
DEMO = (sys.executable, "-m", "oubliette", "demo")
OUTCOMES = (
    'agent              myapp_send_notification answered: {"status":"sent"}',
    "agent              myapp_send_notification failed: recipient not found",
    "agent              myapp_slow_tool failed: caller tool 'slow_tool' timed out after 1 s; the tool may",
    "agent              myapp_send_notification failed: caller disconnected; the tool may already have run",
)


class Place:
    """A directory for temporary files, which a demo is to leave empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = {**os.environ, "TMPDIR": str(path)}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=PATIENCE)

    def run_changed(self, change: str) -> subprocess.CompletedProcess[str]:
        """Runs the demo after a statement that changes it; `scenes`, `daemon` and `run` are its modules."""
        code = f"import sys\nfrom oubliette.demo import daemon, run, scenes\n{change}\nsys.exit(run.run())"
        return self.run(sys.executable, "-c", code)

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            DEMO, env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def assert_empty(self) -> None:
        """No file is left, and no process that was given a path in here."""
        assert list(self.path.iterdir()) == []
        assert [pid for pid in os.listdir("/proc") if pid.isdigit() and self._knows(int(pid))] == []

    def _knows(self, pid: int) -> bool:
        try:
            return str(self.path).encode() in Path(f"/proc/{pid}/environ").read_bytes() and not _is_zombie(pid)
        except OSError:  # it has ended, or is another user's
            return False


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("t"))


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if text in line:
            return read
    raise AssertionError(f"{text!r} never came: {read}")


def test_the_demo_shows_the_four_outcomes_and_exits_0(place: Place) -> None:
    done = place.run(*DEMO)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.sub(r"('?\{\"status\":) ", r"\1", done.stdout)  # white space of a payload may change
    positions = [shown.find(outcome) for outcome in OUTCOMES]
    assert -1 not in positions, shown
    assert positions == sorted(positions)
    assert re.search(r"^ +\d+ ms  daemon → caller    caller_tool_request [0-9a-f]{8}…: send_notification", shown, re.M)
    assert re.search(r"^All \d+ checks are as the specification says", shown, re.M)
    assert "DIFFERS" not in shown
    assert "\x1b" not in shown
    assert done.stderr == ""
    place.assert_empty()


def test_an_outcome_that_differs_exits_1_and_says_which(place: Place) -> None:
    done = place.run_changed("scenes.SLOW_TOOL['timeout_seconds'] = 0.2; run.SCENES = (scenes.timeout,)")
    assert done.returncode == 1
    assert "DIFFERS the deadline is the tool's own: 0.2 instead of 1\n" in done.stdout
    assert "DIFFERS it ended after 1 s: False instead of True\n" in done.stdout
    assert "ok  the request ended by its timeout\n" in done.stdout
    assert "Not as the specification says: 3" in done.stdout
    assert '"level": "info"' in done.stderr  # the daemon's log
    place.assert_empty()


def test_an_event_that_never_comes_exits_1(place: Place) -> None:
    done = place.run_changed("scenes.CALL_SEND = 'call nothing'; run.SCENES = (scenes.success,)")
    assert done.returncode == 1
    assert "DIFFERS the stream ended without a caller_tool_request event" in done.stdout
    assert "there is no tool 'nothing'" in done.stdout.replace('"', "'")
    place.assert_empty()


def test_a_demo_that_takes_too_long_exits_1(place: Place) -> None:
    done = place.run_changed("scenes.SLOW_TOOL['timeout_seconds'] = 60; run.LIMIT_SECONDS = 3")
    assert done.returncode == 1
    assert "the demo did not end within 3 s" in done.stdout
    place.assert_empty()


def test_a_daemon_that_does_not_start_exits_1_and_says_why(place: Place) -> None:
    done = place.run_changed("daemon.CONFIG = 'nonsense: 1'")
    assert done.returncode == 1
    assert "the daemon did not start" in done.stdout
    assert "nonsense" in done.stdout
    place.assert_empty()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_demo_that_is_interrupted_cleans_up(place: Place, number: signal.Signals, code: int) -> None:
    with place.started() as process:
        read_until(process, "daemon → caller    caller_tool_request")
        process.send_signal(number)
        _, complaint = process.communicate(timeout=PATIENCE)
        assert (process.returncode, complaint) == (code, "")
    place.assert_empty()


async def test_a_demo_that_is_interrupted_before_its_daemon_is_ready_cleans_up(place: Place) -> None:
    with place.started() as process:
        with trio.fail_after(PATIENCE):
            while not any(place.path.iterdir()):  # noqa: ASYNC110  # a file system has no event to wait for
                await trio.sleep(0.001)
        process.send_signal(signal.SIGINT)
        shown, complaint = process.communicate(timeout=PATIENCE)
        assert (process.returncode, shown, complaint) == (130, "", "")
    place.assert_empty()


def test_a_temporary_directory_with_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 20)
    deep.mkdir()
    done = Place(deep).run_changed("run.SCENES = (scenes.tool_error,)")
    assert done.returncode == 0, done.stdout
    Place(deep).assert_empty()
