"""What an agent leaves behind is removed, and nothing else (HAZARDS T21)."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from oubliette.directories import data_directory
from oubliette.trash import remove_some, throw_away

NOBODY = 65534


@pytest.fixture
def trash(tmp_path: Path) -> Path:
    (tmp_path / "trash").mkdir()
    return tmp_path / "trash"


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A folder outside that must be as it was."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "canary").write_text("alive")
    yield outside
    assert (outside / "canary").read_text() == "alive"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o750


def empty(trash: Path, most: int = 1000) -> None:
    """Empties the trash."""
    with data_directory(trash) as descriptor:
        drain(descriptor, most)


def drain(descriptor: int, most: int = 1000) -> None:
    while remove_some(descriptor, most):
        pass


def test_a_tree_is_removed(trash: Path) -> None:
    for folder in ("a/b/c", "a/d", "e"):
        (trash / folder).mkdir(parents=True)
        for number in range(3):
            (trash / folder / f"file{number}").write_text("x")
    os.mkfifo(trash / "a" / "fifo")
    empty(trash)
    assert list(trash.iterdir()) == []


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_a_step_removes_no_more_than_it_may(trash: Path, most: int) -> None:
    folder = trash / "a"
    folder.mkdir()
    for number in range(20):
        (folder / f"file{number}").write_text("x")
    left = 20
    with data_directory(trash) as descriptor:
        while remove_some(descriptor, most):
            before, left = left, len(list(folder.iterdir())) if folder.exists() else 0
            assert before - left <= most
    assert list(trash.iterdir()) == []


def test_links_are_removed_and_not_what_they_point_to(trash: Path, canary: Path) -> None:
    (trash / "a").mkdir()
    (trash / "to_folder").symlink_to(canary)
    (trash / "a" / "to_folder").symlink_to(canary, target_is_directory=True)
    (trash / "a" / "to_file").symlink_to(canary / "canary")
    (trash / "a" / "to_itself").symlink_to(trash / "a")
    (trash / "a" / "dangling").symlink_to("/nowhere")
    os.link(canary / "canary", trash / "a" / "hard")
    empty(trash)
    assert list(trash.iterdir()) == []


def test_a_tree_deeper_than_there_are_descriptors_is_removed(trash: Path) -> None:
    descriptors = [os.open(trash, os.O_RDONLY)]
    for _ in range(200):
        os.mkdir("d", dir_fd=descriptors[-1])
        descriptors.append(os.open("d", os.O_RDONLY, dir_fd=descriptors[-1]))
        os.close(descriptors.pop(0))
    os.close(descriptors.pop())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, hard))
    try:
        empty(trash)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(trash.iterdir()) == []


def test_folders_that_an_agent_closed_are_removed(trash: Path) -> None:
    """Run as a user without privileges where that is possible: the superuser is asked for no permission."""
    for mode in (0o000, 0o111, 0o444, 0o500, 0o555):
        inner = trash / f"m{mode:o}" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").write_text("x")
        inner.chmod(mode)
        inner.parent.chmod(mode)
    _empty_as_nobody(trash)
    assert list(trash.iterdir()) == []


def _empty_as_nobody(trash: Path) -> None:
    """Empties the trash in a process of the user that owns what is in it, and is not the superuser."""
    if os.geteuid() != 0:
        return empty(trash)
    for folder, _, files in os.walk(trash):
        for name in (".", *files):
            os.chown(os.path.join(folder, name), NOBODY, NOBODY)
    # Opened before: the folders above are closed to others.
    with data_directory(trash) as descriptor:
        child = os.fork()
        if child == 0:
            try:
                os.setuid(NOBODY)
                drain(descriptor)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


def test_what_cannot_be_removed_does_not_hold_up_the_rest(
    trash: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An immutable file, a mount."""
    for name in ("a", "b", "c"):
        (trash / name).write_text("x")
    unlink = os.unlink

    def refuse(path: str, *, dir_fd: int) -> None:
        if path == "b":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    empty(trash)
    assert [path.name for path in trash.iterdir()] == ["b"]
    assert "cannot be removed" in caplog.text


def test_what_is_thrown_away_is_moved_whatever_it_is(trash: Path, canary: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(canary)
    with data_directory(tmp_path) as parent, data_directory(trash) as descriptor:
        for name in ("folder", "file", "link", "missing"):
            throw_away(name, parent, descriptor)
    assert len(list(trash.iterdir())) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "trash"]
    empty(trash)
