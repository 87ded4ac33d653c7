"""The folder for containers: what is in it, and that it is there whole or not at all."""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from click.testing import CliRunner

from oubliette import bundle
from oubliette.cli.client_bundle import client_group
from oubliette.errors import InternalError
from tests.unit.client.test_process import TRIO
from tests.unit.protocol.test_imports import STANDARD_LIBRARY_PART


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A whole bundle, made by a process whose files are its user's alone, as the daemon is."""
    before = os.umask(0o077)
    try:
        yield bundle.ensure(tmp_path_factory.mktemp("bundles"))
    finally:
        os.umask(before)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not about compiled files, which take most of the time."""
    monkeypatch.setattr(bundle, "_compile", lambda folder, interpreter: None)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# What is in it


def test_it_holds_what_the_client_loads() -> None:
    packages = {name for names in bundle.DISTRIBUTIONS.values() for name in names}
    assert packages == TRIO
    needed = {re.split(r"[^a-z]", requirement)[0] for requirement in requires("trio") or [] if ";" not in requirement}
    assert needed | {"trio"} == set(bundle.DISTRIBUTIONS)
    assert set(bundle.PROTOCOL) == {"__init__", *STANDARD_LIBRARY_PART}


def test_it_holds_nothing_else(built: Path) -> None:
    assert {path.name for path in built.iterdir()} == {"client.py", "launch.py", "lib", "licences"}
    packages = {name for names in bundle.DISTRIBUTIONS.values() for name in names}
    assert {path.name for path in (built / "lib").iterdir()} == {"oubliette", "oubliette_client", *packages}
    assert {path.suffix for path in (built / "lib").rglob("*") if path.is_file()} == {".py", ".pyc"}
    assert not [path for path in built.rglob("*") if path.name in ("tests", "_tests", "_tools")]


def test_each_package_has_its_licence(built: Path) -> None:
    for name in ("oubliette", *bundle.DISTRIBUTIONS):
        texts = [path.read_text() for path in (built / "licences" / name).iterdir()]
        assert re.search(r"permission is hereby granted|apache license|redistribution", "".join(texts), re.IGNORECASE)


def test_a_package_without_licence_says_in_its_metadata_what_it_is_under(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_LICENCE", re.compile("no such file"))
    [(name, text)] = bundle._licences("sniffio")
    assert name == "licences/sniffio/METADATA"
    assert b"License" in text
    assert list(bundle._licences("no-such-distribution")) == []


def test_every_source_is_compiled_and_never_checked(built: Path) -> None:
    """PEP 552: the second word is 1 for a hash that nobody compares. A mount may show any time of change."""
    tag = sys.implementation.cache_tag
    for source in (built / "lib").rglob("*.py"):
        compiled = source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc"
        assert compiled.read_bytes()[4:8] == b"\x01\0\0\0"


def test_the_compiled_files_know_nothing_of_this_machine(built: Path) -> None:
    compiled = (built / "lib" / "oubliette_client" / "__pycache__").glob("*.pyc")
    contents = [path.read_bytes() for path in compiled]
    assert contents
    assert all(b"/opt/oubliette/lib/oubliette_client/" in content for content in contents)
    assert not [content for content in contents if os.fsencode(built.parent) in content]


def test_every_user_may_read_it_and_none_but_its_own_may_write(built: Path) -> None:
    """It runs as the user of a container, and the daemon makes its files for its user alone."""
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [built, *built.rglob("*")]}
    assert modes == {(True, 0o755), (False, 0o644)}


# Where it is


def test_it_is_made_once(built: Path) -> None:
    before = built.stat().st_ino
    assert bundle.ensure(built.parent) == built
    assert built.stat().st_ino == before
    assert list(built.parent.iterdir()) == [built]


@pytest.mark.usefixtures("quick")
def test_another_content_is_another_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bundle.ensure(tmp_path)
    assert bundle.ensure(tmp_path, [sys.executable, "another-python"]) != first
    monkeypatch.setattr(bundle, "PROTOCOL", bundle.PROTOCOL[:-1])
    assert bundle.ensure(tmp_path) != first
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.usefixtures("quick")
def test_a_python_that_was_replaced_is_another_one(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    first = bundle.ensure(tmp_path / "bundles", [str(python)])
    os.utime(python, (1, 1))
    assert bundle.ensure(tmp_path / "bundles", [str(python)]) != first


@pytest.mark.usefixtures("quick")
def test_whoever_makes_it_at_the_same_time_gets_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(4, timeout=20)
    monkeypatch.setattr(bundle, "_compile", lambda folder, interpreter: together.wait())
    made: list[Path] = []
    threads = [threading.Thread(target=lambda: made.append(bundle.ensure(tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert list(tmp_path.iterdir()) == [made[0]]
    assert "client.py" in files(made[0])


# What fails


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("no space left")])
def test_what_is_half_built_is_never_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | type[BaseException]
) -> None:
    def fail(folder: Path) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(bundle, "_compile", lambda folder, interpreter: None)
        patch.setattr(bundle, "_settle", fail)
        with pytest.raises((KeyboardInterrupt, InternalError)):
            bundle.ensure(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_what_a_crash_left_is_removed_and_what_is_under_way_is_not(tmp_path: Path) -> None:
    abandoned, under_way = tmp_path / ".building-1", tmp_path / ".building-2"
    for folder in (abandoned, under_way):
        folder.mkdir()
        (folder / "client.py").touch()
    os.utime(abandoned, (1, 1))
    made = bundle.ensure(tmp_path)
    assert set(tmp_path.iterdir()) == {made, under_way}


@pytest.mark.parametrize(
    ("script", "why"),
    [("echo 'Python 3.11 or newer is needed' >&2; exit 1", "3.11 or newer"), ("exit 3", "compiled by"), ("", "")],
)
def test_a_python_that_cannot_is_said_in_words(tmp_path: Path, script: str, why: str) -> None:
    python = tmp_path / "python"
    if script:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    with pytest.raises(InternalError, match=why or "No such file"):
        bundle.ensure(tmp_path / "bundles", [str(python)])
    assert list((tmp_path / "bundles").iterdir()) == []


def test_a_package_that_is_missing_shows_when_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: packages for name, packages in bundle.DISTRIBUTIONS.items() if name != "outcome"}
    monkeypatch.setattr(bundle, "DISTRIBUTIONS", some)
    with pytest.raises(InternalError, match="No module named 'outcome'"):
        bundle.ensure(tmp_path)


def test_an_installation_that_is_no_folder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "find_spec", lambda package: None)
    with pytest.raises(InternalError, match="is not installed here as a folder"):
        bundle.ensure(tmp_path)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InternalError, match="cannot be made in"):
        bundle.ensure(tmp_path / "file" / "bundles")


# The command


@pytest.mark.usefixtures("quick")
def test_the_command_makes_it_where_it_is_told(tmp_path: Path) -> None:
    for _ in range(2):  # the second takes the place of the first
        done = CliRunner().invoke(client_group, ["bundle", "--output", str(tmp_path / "new" / "out")])
        assert (done.exit_code, done.output) == (0, f"{tmp_path}/new/out\n")
        assert "lib/trio/__init__.py" in files(tmp_path / "new" / "out")
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


@pytest.mark.usefixtures("quick")
def test_without_a_place_it_is_the_daemons(tmp_path: Path) -> None:
    done = CliRunner().invoke(client_group, ["bundle", "--data-dir", str(tmp_path)])
    assert done.output == f"{bundle.ensure(tmp_path / 'client')}\n"


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_no_bundle_is_not_replaced(tmp_path: Path, kind: str) -> None:
    output, canary = tmp_path / "out", tmp_path / "canary"
    canary.touch()
    if kind == "folder":
        output.mkdir()
        (output / "mine").touch()
    elif kind == "file":
        output.touch()
    else:
        output.symlink_to(tmp_path)
    done = CliRunner().invoke(client_group, ["bundle", "--output", str(output)])
    assert done.exit_code in (1, 2)
    if kind != "file":  # click itself says so of a file
        assert "is no bundle" in done.output
    assert canary.exists()


def test_the_command_compiles_for_those_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(bundle, "_compile", lambda folder, interpreter: asked.append(interpreter))
    command = ["bundle", "--output", str(tmp_path / "out"), "--python", "python3.12", "--python", "/usr/bin/python3"]
    assert CliRunner().invoke(client_group, command).exit_code == 0
    assert asked == ["python3.12", "/usr/bin/python3"]
