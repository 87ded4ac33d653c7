"""A real daemon process, started and stopped by a test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

READY = "listening on "
START_SECONDS = 20
# Agents of tests are processes of this host, unless a test is about sandboxes: none is tried out at each start.
RUNTIME = "runtime: {kind: process}\n"
TOKEN = re.compile(rb"oub_[a-z0-9]{1,32}_[0-9a-f]{64}")


class DaemonProcess:
    """`python -m oubliette serve` on a data directory of its own, with `config` as its YAML file.

    `module` is what runs in the place of `oubliette`. Used as a context manager: leaving it kills what is left of the
    process and removes the directory.
    """

    def __init__(self, config: str = "", *, environ: dict[str, str] | None = None, module: str = "oubliette") -> None:
        # Short: a socket's path has 107 bytes, and pytest's own folders use half of them.
        self.root = Path(tempfile.mkdtemp(prefix="oub-"))
        self.data_dir = self.root / "data"
        self.config = self.root / "oubliette.yaml"
        self.config.write_text(config if "runtime:" in config else f"{config.rstrip()}\n{RUNTIME}")
        self.log = self.root / "log"
        self.environ = environ or {}
        self.module = module
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            shutil.rmtree(self.root)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        leaks = self.files_with_a_token()
        shutil.rmtree(self.root)
        # HAZARDS G17, of every token that any test makes or presents: 0 hits in logs, records, audit lines and sockets.
        assert kind is not None or not leaks, f"a whole token stands in {leaks}"

    def files_with_a_token(self) -> list[str]:
        """Returns the files that hold a token, but for those that are there to hold one."""
        env = self.data_dir / "env"
        files = [path for path in self.root.rglob("*") if path.is_file() and env not in path.parents]
        found = [path for path in files if path.name != "admin.token" and TOKEN.search(path.read_bytes())]
        return [str(path.relative_to(self.root)) for path in found]

    def start(self, *options: str) -> None:
        """Starts the process and returns when it is ready."""
        command = [sys.executable, "-m", self.module, "serve", "--config", str(self.config)]
        command += ["--data-dir", str(self.data_dir), *(options or ("--port", "0"))]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONWARNINGS": "error", **self.environ},
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(READY):
            self.kill()
            raise RuntimeError(f"the daemon did not start: {self.log.read_text()}")
        self.url = line.removeprefix(READY).strip()

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def admin_token(self) -> str:
        return (self.data_dir / "admin.token").read_text().strip()

    @property
    def log_text(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        """Kills the process where it still runs, as `kill -9` does."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        self.kill()
        return code
