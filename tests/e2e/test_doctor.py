"""`oubliette doctor` as an operator runs it: what it says, and its exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = "#!/bin/sh\n[ $1 = run ] || exit 0\necho 'Error: localhost/agent:1: image not known' >&2\nexit 125\n"


class Doctor:
    """The command, with a home, a PATH and a configuration of the test's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        self.path = str(self.bin)
        self.code = -1
        self.said = ""

    def install(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run(self, config: str, *options: str) -> list[str]:
        file = self.root / "oubliette.yaml"
        file.write_text(config)
        command = [sys.executable, "-m", "oubliette", "doctor", "--config", str(file), *options]
        environ = {
            **os.environ,
            "PATH": self.path,
            "HOME": str(self.root),
            "OUBLIETTE_DATA_DIR": f"{self.root}/data",
        }
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
        self.code, self.said = done.returncode, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


def test_a_machine_with_nothing_runs_processes(doctor: Doctor) -> None:
    lines = doctor.run("runtime: {kind: auto, network: model}")
    assert doctor.code == 0
    assert "runtime.kind: auto, which takes process" in lines
    for kind, package in (("podman", "podman"), ("docker", "docker.io"), ("bubblewrap", "bubblewrap")):
        where = next(number for number, line in enumerate(lines) if line.startswith(f"  {kind}: does not work"))
        assert lines[where + 1] == f"    mend: apt install {package}"
    assert "  process: works" in lines
    assert any("but the runtime `process` cannot restrict the network" in line for line in lines)
    assert any("runtime.model_hosts is empty" in line for line in lines)
    assert not (doctor.root / "data").exists(), "it only looks"


def test_what_is_configured_and_does_not_work_is_its_exit_code(doctor: Doctor) -> None:
    lines = doctor.run("runtime: {kind: bubblewrap}")
    assert doctor.code == 1
    assert "runtime.kind: bubblewrap, which does not work here" in lines


def test_an_image_that_is_missing_is_said(doctor: Doctor) -> None:
    doctor.install("podman", ENGINE)
    lines = doctor.run("runtime: {kind: podman, image: 'localhost/agent:1'}")
    assert doctor.code == 1
    assert "  podman: does not work: Error: localhost/agent:1: image not known" in lines
    assert "    mend: podman pull localhost/agent:1, or build it" in lines


def test_agents_are_looked_for(doctor: Doctor) -> None:
    doctor.install("opencode", "#!/bin/sh\n")
    profiles = "{claude: {type: claude}, opencode: {type: opencode}}"
    lines = doctor.run(f"runtime: {{kind: process}}\nagents: {{default: claude, profiles: {profiles}}}")
    assert doctor.code == 0
    assert "  opencode: opencode is there" in lines
    where = lines.index("  claude: claude is not on PATH")
    assert lines[where + 1] == "    mend: npm install -g @anthropic-ai/claude-code"


def test_bubblewrap_works_where_it_is_installed(doctor: Doctor) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: apt install bubblewrap")
    doctor.path = os.environ["PATH"]
    lines = doctor.run("runtime: {kind: bubblewrap}")
    assert doctor.code == 0
    assert "runtime.kind: bubblewrap" in lines
    assert "  bubblewrap: works" in lines
    assert not [line for line in lines if line.startswith("  command:") and "is there" not in line]


def test_a_mount_that_cannot_be_is_said(doctor: Doctor) -> None:
    doctor.install("bwrap", "#!/bin/sh\n")
    doctor.path = f"{doctor.bin}:{os.environ['PATH']}"
    lines = doctor.run("runtime: {kind: bubblewrap, mounts: [/no/such/folder]}")
    assert doctor.code == 1
    assert "  bubblewrap: does not work: runtime.mounts: /no/such/folder does not exist" in lines


def test_a_configuration_that_cannot_be_read_is_an_error(doctor: Doctor) -> None:
    doctor.run("runtime: {kind: podmann}")
    assert doctor.code == 1
    assert "podmann" in doctor.said
    assert "Traceback" not in doctor.said
