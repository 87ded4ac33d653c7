"""A daemon process of the demo's own, on a data directory that goes with it."""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from oubliette.cli.places import TOKEN_FILE

# How long the daemon may take to be ready, and to stop before it is killed, in seconds.
START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 5.0
# Nobody's configuration but this one: agents run as processes, so that the demo needs no container engine.
CONFIG: Final = "runtime: {kind: process}\nserver: {shutdown_grace_seconds: 2}\n"
# A unix socket's path has at most 107 bytes, and the demo's and the daemon's folders take some 45 of them.
_LONGEST_FOLDER: Final = 60
_READY: Final = "listening on "
_LAST_LINES: Final = 20


class DaemonError(Exception):
    """The daemon did not start; with what it said."""


class DemoDaemon:
    """A daemon process on the folder `root`. Its address is known once it is ready."""

    def __init__(self, root: Path) -> None:
        self._log = root / "log"
        self._data_dir = root / "data"
        self._config = root / "oubliette.yaml"
        self._config.write_text(CONFIG)
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def admin_token(self) -> str:
        return (self._data_dir / TOKEN_FILE).read_text().strip()

    def wait_until_ready(self) -> str:
        """Returns its address. Raises `DaemonError`."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        line = self._process.stdout.readline() if ready else ""
        if not line.startswith(_READY):
            raise DaemonError(f"the daemon did not start: {self.last_lines()}")
        return line.removeprefix(_READY).strip()

    def stop(self) -> None:
        """Ends the process, politely then by force."""
        with self._process as process:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            process.kill()

    def last_lines(self) -> str:
        """Returns the end of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:])

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "oubliette", "serve", "--port", "0"]
        with self._log.open("wb") as stderr:
            return subprocess.Popen(  # noqa: S603  # our own program
                [*command, "--config", str(self._config), "--data-dir", str(self._data_dir)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                # Out of the terminal's reach: on Ctrl-C it is the demo that stops the daemon, gracefully and once.
                start_new_session=True,
            )


@contextmanager
def demo_daemon() -> Iterator[DemoDaemon]:
    """Starts a daemon on a free port; leaving stops it and removes everything that it wrote."""
    is_long = len(tempfile.gettempdir()) > _LONGEST_FOLDER
    folder = "/tmp" if is_long else None  # noqa: S108  # what is made in it is private
    with tempfile.TemporaryDirectory(prefix="oub-demo-", dir=folder, ignore_cleanup_errors=True) as root:
        daemon = DemoDaemon(Path(root))
        try:
            yield daemon
        finally:
            daemon.stop()
