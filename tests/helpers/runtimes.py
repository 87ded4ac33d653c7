"""Sandboxes for tests: rooms, what is run in them, and an image that is made of this host's own files.

No registry is needed, nor a network: the image holds Debian's Python, a shell and the usual tools, with the libraries
that they load. It is made once for as long as those files stay the same.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio

from oubliette import bundle
from oubliette.agents.base import Program, Sandbox
from oubliette.agents.process import run_lines
from oubliette.runtimes.base import Kind, Room, Runtime, Settings
from oubliette.runtimes.bubblewrap import BubblewrapRuntime
from oubliette.runtimes.container import ContainerRuntime
from oubliette.runtimes.process import ProcessRuntime
from oubliette.runtimes.trial import examine

LIMIT = 60  # seconds; a container takes half of one, and more on a machine that is busy
# What a machine without systemd and without CAP_SYS_RESOURCE needs; podman's own file for it is the operator's.
PLAIN_CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""
TOOLS = [
    "sh",
    "bash",
    "cat",
    "dd",
    "echo",
    "env",
    "grep",
    "head",
    "id",
    "ln",
    "ls",
    "mkdir",
    "mkfifo",
    "ps",
    "rm",
    "setsid",
]
TOOLS += ["sleep", "tail", "touch", "tr", "true", "unshare", "wc"]
_SYSTEM_PYTHON = Path("/usr/bin/python3")
_LIBRARY = re.compile(r"(/\S+) \(0x")
_USUAL = ["libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "libresolv.so.2", "librt.so.1"]
_USUAL += ["libstdc++.so.6", "libutil.so.1"]
_LEFT_OUT = frozenset(("__pycache__", "ensurepip", "idlelib", "lib2to3", "test", "tests", "turtledemo"))
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
# Of what this module makes of the same files.
_VERSION = 2
_FOLDERS = ("dev", "etc", "home/agent", "mcp", "opt/oubliette", "proc", "run", "sys", "tmp", "var", "workspace")

_PROVEN: dict[Kind, Runtime] = {}


# Rooms, and what runs in them


def make_room(root: Path, name: str = "one") -> Room:
    """Makes a session's folders below `root`."""
    workspace, sockets, home = (root / folder / name for folder in ("workspaces", "run", "agents"))
    for folder in (workspace, sockets, home):
        folder.mkdir(mode=0o700, parents=True)
    return Room(session_id=f"ses_{name}", project_id="prj_test", workspace=workspace, sockets=sockets, home=home)


@contextmanager
def data_directory() -> Iterator[Path]:
    """A data directory with a short path, which sockets need, in a place that no sandbox shows."""
    folder = Path(tempfile.mkdtemp(prefix="oub-", dir=Path.home() if os.access(Path.home(), os.W_OK) else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Run:
    """How a program ended, and the lines that it said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.exit_code: int | None = None
        self.complaint = ""

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


async def run(sandbox: Sandbox, *argv: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> Run:
    """Runs a program in a sandbox to its end."""
    done = Run()

    async def hear(line: str) -> None:
        done.lines.append(line)

    with trio.fail_after(LIMIT):
        program = Program(argv=argv, environment=environment or {})
        done.exit_code, done.complaint = await run_lines(sandbox, program, stdin, hear)
    return done


async def run_python(sandbox: Sandbox, script: str, *argv: str) -> Run:
    """Runs a script in the Python of the sandbox, which the client is started with too."""
    return await run(sandbox, sandbox.place.client[0], "-c", script, *argv)


# Which runtimes there are


@cache
def made_bundle() -> Path:
    """The bundle, made once for all tests, where everybody may read it."""
    folder = Path(tempfile.gettempdir(), f"oubliette-test-bundle-{os.getuid()}")
    folder.mkdir(mode=0o755, exist_ok=True)
    return bundle.ensure(folder)


def make_settings(data_dir: Path, **values: Any) -> Settings:
    """Returns settings for tests: no network, and limits that a test can reach."""
    return make_plain_settings(data_dir, **{"bundle": made_bundle(), **values})


def make_plain_settings(data_dir: Path, **values: Any) -> Settings:
    """Returns settings for tests in which no bundle is used."""
    limits: dict[str, Any] = {"memory": 192 * 2**20, "cpus": 1, "pids": 64}
    return Settings(**{"data_dir": data_dir, "bundle": Path("/nowhere"), "network": "none", **limits, **values})


@cache
def podman_environment() -> Mapping[str, str]:
    """What podman needs in its environment here. Skips the test where it does not work."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed: apt install podman")
    made = Path(tempfile.gettempdir(), f"oubliette-test-containers-{os.getuid()}.conf")
    made.write_text(PLAIN_CONTAINERS_CONF)
    for environment in ({}, {"CONTAINERS_CONF": str(made)}):
        command = ["podman", "run", "--rm", "--pull=never", "--network=none", image(), "true"]
        tried = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
        if tried.returncode == 0:
            return environment
    pytest.skip(f"podman runs no container here: {tried.stderr.strip()}")


async def make_runtime(kind: Kind, data_dir: Path, monkeypatch: pytest.MonkeyPatch, **values: Any) -> Runtime:
    """Returns a runtime that works. Skips the test where there is none, with the reason and the mend."""
    if kind == "podman":
        for name, value in podman_environment().items():
            monkeypatch.setenv(name, value)
        values = {"image": image(), **values}
    settings = make_settings(data_dir, **values)
    if kind not in _PROVEN:
        found = await examine(kind, settings)
        if found.runtime is None:
            pytest.skip(f"{kind}: {found.lacks}")
        _PROVEN[kind] = found.runtime
    return _like(_PROVEN[kind], settings)


def _like(proven: Runtime, settings: Settings) -> Runtime:
    """Returns a runtime as one that works here, without trying that again."""
    match proven:
        case BubblewrapRuntime():
            return BubblewrapRuntime(settings, fence=proven.fence)
        case ContainerRuntime():
            return ContainerRuntime(proven.name, settings)
        case _:
            return ProcessRuntime(settings)


# The image


@cache
def image(*programs: Path) -> str:
    """Returns the name of an image with Python, the tools, and `programs` of this host at the same paths.

    Made where podman has none of the same files. Skips the test where it cannot be made.
    """
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed: apt install podman")
    if not _SYSTEM_PYTHON.exists():
        pytest.skip("there is no /usr/bin/python3 to make an image of: apt install python3")
    files = _image_files(programs)
    name = f"localhost/oubliette-test:{_digest(files)}"
    if subprocess.run(["podman", "image", "exists", name]).returncode != 0:
        _import_image(name, files)
    return name


def _image_files(programs: Sequence[Path]) -> dict[str, Path]:
    """Returns what is in the image: paths within it, and where on this host each comes from."""
    tools = [Path(found) for found in map(_in_system, TOOLS) if found]
    python = _SYSTEM_PYTHON.resolve()
    library = Path("/usr/lib", python.name)
    modules = [path for path in library.rglob("*") if path.is_file() and not _LEFT_OUT & set(path.parts)]
    binaries = [*tools, python, *programs, *(path for path in modules if path.suffix == ".so")]
    libraries = {*_libraries(binaries), *_usual_libraries()}
    wanted = {path: path.resolve() for path in [*tools, python, *programs, *modules, *libraries]}
    return {_inside(path): source for path, source in {**wanted, _SYSTEM_PYTHON: python}.items()}


def _in_system(tool: str) -> str | None:
    return shutil.which(tool, path="/usr/bin:/bin:/usr/sbin:/sbin")


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    listed = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True)
    return set(map(Path, _LIBRARY.findall(listed.stdout)))


def _usual_libraries() -> Iterator[Path]:
    """What a program that is built for any Debian counts on, such as an agent in one file."""
    for name in _USUAL:
        yield from sorted(Path("/lib").glob(f"*-linux-gnu/{name}"))[:1]


def _inside(path: Path) -> str:
    """The path within the image, whose /lib is a link to /usr/lib as Debian's is."""
    name = str(path).lstrip("/")
    return f"usr/{name}" if name.split("/")[0] in _LINKS else name


def _digest(files: Mapping[str, Path]) -> str:
    facts = [(name, source.stat().st_size, source.stat().st_mtime_ns) for name, source in sorted(files.items())]
    return hashlib.sha256(repr((_VERSION, _LINKS, _FOLDERS, facts)).encode()).hexdigest()[:16]


def _import_image(name: str, files: Mapping[str, Path]) -> None:
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for link, target in _LINKS.items():
                tar.addfile(_entry(link, tarfile.SYMTYPE, target))
            for folder in _FOLDERS:
                tar.addfile(_entry(folder, tarfile.DIRTYPE))
            for path, source in sorted(files.items()):
                tar.add(source, arcname=path)
        archive.flush()
        subprocess.run(["podman", "import", "--quiet", archive.name, name], check=True, capture_output=True)


def _entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, target, 0o1777 if name == "tmp" else 0o755
    return entry
