"""What of this host is visible in bubblewrap: the system, and what the operator's configuration names.

A program is more than its file. What belongs to it is found by rules for what agents are made of: Python, with its
virtual environment and the installation behind it; packages of node, which are whole trees of `node_modules`; a single
file. What no rule finds, `runtime.mounts` shows.

Only the operator's words make something visible: `runtime.mounts`, the profiles' commands as they stand in the
configuration, and the name of the program that a profile starts. A turn's arguments never do, as a message of a caller,
or of an agent to its child session, may stand in them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

import oubliette
from oubliette.runtimes import inside

# Shown as they are: programs and libraries, which everybody on this host may read.
SYSTEM: Final = tuple(Path("/", name) for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"))
# Of /etc what programs need, and nothing that may hold a secret.
ETC: Final = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
_INSIDE: Final = (inside.WORKSPACE, inside.HOME, inside.BUNDLE)
_NODE_MODULES: Final = "node_modules"


class Shown(Struct, frozen=True):
    """How an argument is spelled inside, and which paths of this host it needs there."""

    argument: str
    paths: tuple[Path, ...] = ()


class Visible:
    """What is visible in every sandbox, and what more a program needs.

    `mounts` and `commands` are the operator's; `data_dir` is never shown, nor what it lies in. Raises `ValueError` for
    a mount that would, and for one that is not there.
    """

    def __init__(self, mounts: Sequence[str], commands: Iterable[Sequence[str]], data_dir: Path) -> None:
        check_mounts(mounts, data_dir)
        self._unseen = (data_dir.resolve(), Path.home().resolve())
        self.paths: tuple[Path, ...] = tuple(map(Path, mounts))
        self._add(*_this_python())
        for command in commands:
            for argument in command:
                self._add(*self.argument(os.path.abspath(argument) if os.sep in argument else argument).paths)

    def program(self, name: str) -> Shown:
        """Returns what the program `name` of an argv needs. Raises `FileNotFoundError` where it cannot be seen."""
        path = shutil.which(name, path=_looked_through()) if os.sep not in name else name
        if path is not None and os.path.isabs(path) and os.access(path, os.X_OK):
            return self.argument(path)
        # A path in the agent's own folders is looked up there, by whoever starts it.
        if os.sep in name and (not os.path.isabs(name) or name.startswith(tuple(f"{folder}/" for folder in _INSIDE))):
            return Shown(name)
        raise FileNotFoundError(
            f"no program {name!r} can be seen in the sandbox: where it is installed, name its folder in runtime.mounts"
        )

    def argument(self, text: str) -> Shown:
        """Returns what an argument of a profile's command needs: nothing unless it is a file of this host."""
        path = Path(text)
        if not path.is_absolute() or not path.is_file():
            return Shown(text)
        real = path.resolve()
        if self._is_shown(path) and self._is_shown(real):
            return Shown(text)
        if pythons := tuple(_python_of(path)):
            return Shown(text, self._new(pythons))
        if _NODE_MODULES in real.parts:
            # A program looks for its own files beside the file, not beside the link that led there.
            return Shown(str(real), self._new((_outermost_modules(real), *_node())))
        return Shown(str(real), self._new((real,))) if self._is_shown(path) else Shown(text, self._new((path,)))

    def _new(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        return tuple(path for path in paths if not self._is_shown(path) and not self._is_too_wide(path))

    def _add(self, *paths: Path) -> None:
        self.paths = (*self.paths, *self._new(paths))

    def _is_shown(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in (*SYSTEM, *self.paths))

    def _is_too_wide(self, path: Path) -> bool:
        """Whether a rule would show more than what it is for: a home directory may be a virtual environment."""
        return any(unseen.is_relative_to(path.resolve()) for unseen in self._unseen)


def check_mounts(mounts: Sequence[str], data_dir: Path) -> None:
    """Raises `ValueError` for a mount that is not there, or that holds the data directory."""
    for mount in map(Path, mounts):
        if not mount.exists():
            raise ValueError(f"runtime.mounts: {mount} does not exist")
        if data_dir.resolve().is_relative_to(mount.resolve()):
            raise ValueError(f"runtime.mounts: {mount} holds the daemon's data directory, which no agent may see")


def search_path(paths: Iterable[Path]) -> str:
    """Returns the PATH inside: the system's, and where `paths` are programs."""
    return os.pathsep.join([*(str(path.parent) for path in paths if _is_program(path)), inside.PATH])


def _looked_through() -> str:
    """The PATH by which programs are found. The daemon's own interpreter goes first: `python` of a version manager is a
    script that needs the whole manager, which is not visible.
    """
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", inside.PATH)])


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _this_python() -> Iterator[Path]:
    """The daemon's own interpreter runs the client, the launcher and the agent of the default profile."""
    yield from (Path(sys.prefix), Path(sys.base_prefix))
    # Of an editable installation the package alone, not the repository around it.
    yield Path(oubliette.__file__).parent


def _python_of(path: Path) -> Iterator[Path]:
    """Yields the folders of the Python that `path` belongs to, where it is a program of one."""
    if path.parent.name != "bin":
        return
    prefix = path.parent.parent
    if (prefix / "pyvenv.cfg").is_file():
        yield prefix
        yield from _base_of(prefix / "pyvenv.cfg")
    elif any(prefix.glob("lib/python3*/os.py")):
        yield prefix


def _base_of(configuration: Path) -> Iterator[Path]:
    """Yields the installation that a virtual environment was made from: `home = /usr/bin` (PEP 405)."""
    for line in configuration.read_text().splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            yield Path(value.strip()).parent


def _outermost_modules(path: Path) -> Path:
    return Path(*path.parts[: path.parts.index(_NODE_MODULES) + 1])


def _node() -> Iterator[Path]:
    """What runs a package's program, where it lies outside of the system."""
    if found := shutil.which("node"):
        yield Path(found)
