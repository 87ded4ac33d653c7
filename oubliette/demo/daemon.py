"""A daemon process of the demo's own, on a data directory that goes with it."""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from oubliette.cli.places import TOKEN_FILE

# How long the daemon may take to be ready, and to stop before it is killed, in seconds.
START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 5.0
# Nobody's configuration but this one: agents run as processes, so that the demo needs no container engine.
CONFIG: Final = "runtime: {kind: process}\nserver: {shutdown_grace_seconds: 2}\n"
# A socket's path has at most 107 bytes, and about 45 of them are the daemon's and the demo's (WIRE section 1).
_LONGEST_FOLDER: Final = 60
_READY: Final = "listening on "
_LAST_LINES: Final = 20


class DaemonError(Exception):
    """The daemon did not start; with what it said."""


class RunningDaemon(NamedTuple):
    """A daemon that is ready."""

    url: str
    admin_token: str
    process: subprocess.Popen[str]
    log: Path

    def last_lines(self) -> str:
        """Returns the end of its log."""
        return _last_lines(self.log)


@contextmanager
def running_daemon() -> Iterator[RunningDaemon]:
    """Starts `oubliette serve` on a free port; leaving stops it and removes everything it wrote.

    Raises `DaemonError` where it does not start.
    """
    folder = "/tmp" if len(tempfile.gettempdir()) > _LONGEST_FOLDER else None  # noqa: S108  # the folder made in it is private
    with tempfile.TemporaryDirectory(prefix="oub-", dir=folder, ignore_cleanup_errors=True) as root:
        log, data_dir = Path(root) / "log", Path(root) / "data"
        with _start(Path(root), data_dir, log) as process:
            try:
                url = _wait_until_ready(process, log)
                yield RunningDaemon(url, (data_dir / TOKEN_FILE).read_text().strip(), process, log)
            finally:
                _stop(process)


def _start(root: Path, data_dir: Path, log: Path) -> subprocess.Popen[str]:
    config = root / "oubliette.yaml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "oubliette", "serve", "--config", str(config), "--data-dir", str(data_dir)]
    with log.open("wb") as stderr:
        return subprocess.Popen(  # noqa: S603  # our own program
            [*command, "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            # Out of the terminal's reach: on Ctrl-C it is the demo that stops the daemon, gracefully and once.
            start_new_session=True,
        )


def _wait_until_ready(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if ready else ""
    if not line.startswith(_READY):
        raise DaemonError(f"the daemon did not start within {START_SECONDS:g} s:\n{_last_lines(log)}")
    return line.removeprefix(_READY).strip()


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    finally:  # also when a second Ctrl-C ends the waiting
        process.kill()
        process.wait()


def _last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
