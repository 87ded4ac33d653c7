"""One folder with all that runs inside a sandbox: the client, the launcher and what they load, run by any Python 3.11
or newer that is there.

    client.py   `oubliette-client`
    launch.py   the first program of a sandbox (`oubliette_client.launch`)
    lib/        the packages, as compiled files too
    licences/   of each package

A folder and not a zip, since compiled files in one are never used. They are unchecked: a read-only mount may show other
times than the files were compiled at, and what lies here is never changed, but made anew under another name.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from oubliette.errors import InternalError

# Where sandboxes and containers have it.
INSIDE: Final = "/opt/oubliette"
CLIENT: Final = "client.py"
LAUNCHER: Final = "launch.py"
# The options that a Python is to start these with: neither the image's own packages nor its variables are looked at,
# which spares more than half of the time until the first line of ours.
PYTHON_OPTIONS: Final = ("-I", "-S")
# What the client loads: a test holds its imports against this. Pure Python, all of it.
DISTRIBUTIONS: Final = {
    "trio": ("trio",),
    "attrs": ("attr", "attrs"),
    "sortedcontainers": ("sortedcontainers",),
    "idna": ("idna",),
    "outcome": ("outcome",),
    "sniffio": ("sniffio",),
}
# The part of oubliette.protocol that needs the standard library alone.
PROTOCOL: Final = ("__init__", "lines", "members", "names", "nesting", "results", "revisions", "sse")
_LEFT_OUT: Final = frozenset({"__pycache__", "_tests", "_tools", "tests"})
_LICENCE: Final = re.compile(r"(licen[cs]e|copying|notice|authors)", re.IGNORECASE)
# To compile is a second or two; this is for a machine that is out of breath.
_COMPILE_SECONDS: Final = 120.0
# A build that was begun so long ago is nobody's any more.
_ABANDONED_SECONDS: Final = 3600.0
_BUILDING: Final = ".building-"

_PROGRAM: Final = '''"""{what}, with the packages beside this file: none of the image's own is used."""

import os
import sys

if sys.version_info < (3, 11):
    sys.exit("oubliette needs Python 3.11 or newer, and this is " + sys.version.split()[0])
here = os.path.dirname(os.path.realpath(__file__))
foreign = [here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
sys.path[:] = [
    os.path.join(here, "lib"),
    *(path for path in sys.path if path not in foreign and not path.endswith(("site-packages", "dist-packages"))),
]

from {module} import main

sys.exit(main())
'''
# Run by the Python that it compiles for. The folder's own name is not for the compiled files to keep.
_COMPILE: Final = f"""
import sys
if sys.version_info < (3, 11):
    sys.exit("Python 3.11 or newer is needed, and this is " + sys.version.split()[0])
import compileall, py_compile
folder, mode = sys.argv[1], py_compile.PycInvalidationMode.UNCHECKED_HASH
if not compileall.compile_dir(folder + "/lib", quiet=1, invalidation_mode=mode, stripdir=folder, prependdir={INSIDE!r}):
    sys.exit("some of it does not compile")
sys.path.insert(0, folder + "/lib")
import oubliette_client.launch, oubliette_client.run
"""


def ensure(folder: Path, interpreters: Sequence[str] = (sys.executable,)) -> Path:
    """Returns the bundle of this installation, a folder in `folder`, made where it is missing.

    `interpreters`: the Pythons that it is compiled for, paths or names in PATH; any other one runs it too, only slower.
    The folder's name is made of its contents, and it is there whole or not at all, whatever else makes it at the same
    time. Blocks: for milliseconds where it is there, for seconds where not. Raises `InternalError`.
    """
    files = dict(_programs())
    target = folder / _fingerprint(files, interpreters)
    if target.is_dir():
        return target
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_abandoned(folder)
        built = _build(files, interpreters, folder)
        try:
            built.rename(target)
        except OSError:
            shutil.rmtree(built)
            if not target.is_dir():
                raise
    except OSError as error:
        raise InternalError(f"the client's bundle cannot be made in {folder}: {error}") from error
    return target


def write(output: Path, interpreters: Sequence[str] = (sys.executable,)) -> Path:
    """Makes the bundle as the folder `output`, in the place of a bundle that is there. Returns its absolute path.

    Blocks for seconds. Raises `InternalError`, also where something else is there.
    """
    output = output.absolute()
    try:
        if os.path.lexists(output) and not _may_be_replaced(output):
            raise InternalError(f"{output} is there, and it is no bundle")
        output.parent.mkdir(parents=True, exist_ok=True)
        built = _build(dict(_programs()), interpreters, output.parent)
        with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=output.parent) as aside:
            if output.exists():
                output.rename(Path(aside) / "old")
            built.rename(output)
    except OSError as error:
        raise InternalError(f"the client's bundle cannot be written to {output}: {error}") from error
    return output


def _may_be_replaced(output: Path) -> bool:
    if output.is_symlink() or not output.is_dir():
        return False
    return not any(output.iterdir()) or all((output / name).exists() for name in (CLIENT, LAUNCHER, "lib"))


def _programs() -> Iterator[tuple[str, bytes]]:
    """Yields each source file of the bundle: its path in the folder and its bytes."""
    yield CLIENT, _program("`oubliette-client`", "oubliette_client.__main__")
    yield LAUNCHER, _program("The first program of a sandbox", "oubliette_client.launch")
    for package in ("oubliette_client", *(name for names in DISTRIBUTIONS.values() for name in names)):
        root = _source(package)
        for path in sorted(root.rglob("*.py")):
            if not _LEFT_OUT.intersection(path.relative_to(root).parts):
                yield f"lib/{package}/{path.relative_to(root)}", path.read_bytes()
    own = _source("oubliette")
    yield "lib/oubliette/__init__.py", (own / "__init__.py").read_bytes()
    for name in PROTOCOL:
        yield f"lib/oubliette/protocol/{name}.py", (own / "protocol" / f"{name}.py").read_bytes()


def _program(what: str, module: str) -> bytes:
    return _PROGRAM.format(what=what, module=module).encode()


def _source(package: str) -> Path:
    """Where a package of this installation lies. It is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InternalError(f"{package} is not installed here as a folder, so no bundle can be made of it")
    return Path(spec.submodule_search_locations[0])


def _licences(name: str) -> Iterator[tuple[str, bytes]]:
    """A package without one, as some systems' own are, still says in its metadata what it is under."""
    try:
        files = [file for file in distribution(name).files or [] if file.parts[0].endswith((".dist-info", ".egg-info"))]
    except PackageNotFoundError:
        return
    found = [file for file in files if _LICENCE.match(file.name)]
    for file in found or [file for file in files if file.name in ("METADATA", "PKG-INFO")]:
        yield f"licences/{name}/{file.name}", Path(file.locate()).read_bytes()


def _fingerprint(files: dict[str, bytes], interpreters: Sequence[str]) -> str:
    digest = hashlib.sha256(repr(_COMPILE).encode())
    for name, data in files.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    for interpreter in interpreters:
        # An interpreter that was replaced may have another format of compiled files.
        path = shutil.which(interpreter) or interpreter
        status = os.stat(path) if os.path.exists(path) else None
        digest.update(f"{path}\0{status and (status.st_size, status.st_mtime_ns)}\0".encode())
    return digest.hexdigest()[:32]


def _build(files: dict[str, bytes], interpreters: Sequence[str], parent: Path) -> Path:
    """Returns a new folder in `parent` with the whole bundle. Raises `OSError` and `InternalError`, and leaves none."""
    folder = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=parent))
    try:
        licences = (licence for name in ("oubliette", *DISTRIBUTIONS) for licence in _licences(name))
        for name, data in (*files.items(), *licences):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for interpreter in interpreters:
            _compile(folder, interpreter)
        _settle(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    return folder


def _compile(folder: Path, interpreter: str) -> None:
    """Compiles the folder for an interpreter, and has it load the client, so that what is missing shows here."""
    command = [interpreter, *PYTHON_OPTIONS, "-c", _COMPILE, str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)  # noqa: S603  # no shell, and the operator's own Python
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InternalError(f"the client cannot be compiled by {interpreter}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise InternalError(f"the client cannot be compiled by {interpreter}: {last}")


def _settle(folder: Path) -> None:
    """Whatever this process's umask is, any user may read the bundle: it runs as the user of a container.

    What has its name is on the disk: a power failure must not leave a folder with empty files under it.
    """
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(os.path.join(root, name), 0o644)
        _sync(root, 0o755)


def _sync(path: str, mode: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(f"{_BUILDING}*"):
        if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
