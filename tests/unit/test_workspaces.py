"""The folders that agents work in, whatever an agent made of them (HAZARDS T21)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from oubliette.errors import Conflict, InternalError
from oubliette.records import WorkspaceRecord
from oubliette.workspaces import TRASH, WorkspaceFolders
from tests.helpers.waiting import until

PROJECT, OTHER = "prj_" + "a" * 32, "prj_" + "b" * 32
FIRST, SECOND = "wsp_" + "1" * 32, "wsp_" + "2" * 32


def record(workspace_id: str = FIRST, project_id: str = PROJECT) -> WorkspaceRecord:
    return WorkspaceRecord(
        workspace_id=workspace_id, project_id=project_id, name=workspace_id, created_at="2026-01-01T00:00:00Z"
    )


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def folders(data_dir: Path) -> WorkspaceFolders:
    return WorkspaceFolders(data_dir)


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A folder outside, with the names that the daemon looks for, that must be as it was."""
    outside = tmp_path / "outside"
    for folder in (outside / FIRST, outside / PROJECT / FIRST):
        folder.mkdir(parents=True)
        (folder / "canary").write_text("alive")
    yield outside
    assert (outside / FIRST / "canary").read_text() == "alive"
    assert (outside / PROJECT / FIRST / "canary").read_text() == "alive"
    assert len(list(outside.rglob("*"))) == 5


def there(data_dir: Path) -> list[str]:
    """The folders there are, but for the trash."""
    root = data_dir / "workspaces"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if TRASH not in path.parts)


def thrown_away(data_dir: Path) -> int:
    return len(list((data_dir / "workspaces" / TRASH).iterdir()))


def test_a_folder_is_for_the_daemons_user_alone(folders: WorkspaceFolders, data_dir: Path) -> None:
    folder = folders.make(record())
    assert folder == folders.make(record()) == data_dir / "workspaces" / PROJECT / FIRST
    for made in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_workspace_goes_and_its_neighbours_stay(folders: WorkspaceFolders, data_dir: Path) -> None:
    for workspace in (record(), record(SECOND), record(FIRST, OTHER)):
        (folders.make(workspace) / "file").write_text("x")
    folders.remove(record())
    folders.remove(record())
    kept = [f"{PROJECT}", f"{PROJECT}/{SECOND}", f"{PROJECT}/{SECOND}/file"]
    assert there(data_dir) == [*kept, f"{OTHER}", f"{OTHER}/{FIRST}", f"{OTHER}/{FIRST}/file"]
    folders.remove_project(OTHER)
    assert there(data_dir) == kept
    assert thrown_away(data_dir) == 2


# What an agent plants


def plant(link: Path, target: Path) -> None:
    """Moves away what is there, as whoever owns a folder can, and puts a link in its place."""
    link.rename(link.with_name("moved away"))
    link.symlink_to(target)


def test_a_link_in_the_place_of_a_workspace_is_not_followed(
    folders: WorkspaceFolders, data_dir: Path, canary: Path
) -> None:
    plant(folders.make(record()), canary / FIRST)
    with pytest.raises(Conflict, match="was replaced"):
        folders.make(record())
    folders.remove(record())
    assert thrown_away(data_dir) == 1
    assert folders.make(record()).is_dir()


def test_a_link_in_the_place_of_a_project_is_not_followed(
    folders: WorkspaceFolders, data_dir: Path, canary: Path
) -> None:
    plant(folders.make(record()).parent, canary / PROJECT)
    with pytest.raises(Conflict, match="was replaced"):
        folders.make(record())
    folders.remove(record())
    folders.reconcile([record()])
    folders.reconcile([record(SECOND)])
    folders.remove_project(PROJECT)
    assert not (data_dir / "workspaces" / PROJECT).is_symlink()
    assert thrown_away(data_dir) == 1


def test_a_link_in_the_place_of_all_workspaces_is_not_followed(
    folders: WorkspaceFolders, data_dir: Path, canary: Path
) -> None:
    plant(folders.make(record()).parent.parent, canary)
    with pytest.raises(Conflict, match="was replaced"):
        folders.make(record())
    folders.remove(record())
    folders.remove_project(PROJECT)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        folders.reconcile([])


def test_a_link_in_the_place_of_the_trash_is_not_followed(
    folders: WorkspaceFolders, data_dir: Path, canary: Path
) -> None:
    workspace = folders.make(record())
    (workspace.parent.parent / TRASH).symlink_to(canary)
    folders.remove(record())
    assert workspace.is_dir()


@pytest.mark.parametrize("place", ["workspace", "project"])
def test_a_file_in_the_place_of_a_folder_is_no_folder(folders: WorkspaceFolders, data_dir: Path, place: str) -> None:
    folder = folders.make(record())
    replaced = folder if place == "workspace" else folder.parent
    replaced.rename(data_dir / "moved away")
    replaced.write_text("x")
    with pytest.raises(Conflict):
        folders.make(record())
    folders.remove_project(PROJECT)
    assert folders.make(record()).is_dir()


def test_a_disk_that_fails_is_told_without_its_paths(
    folders: WorkspaceFolders, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device", str(data_dir))

    monkeypatch.setattr(os, "mkdir", fail)
    with pytest.raises(InternalError) as refused:
        folders.make(record())
    assert str(data_dir) not in refused.value.message


# The start


def test_at_the_start_folders_and_records_agree(folders: WorkspaceFolders, data_dir: Path) -> None:
    for workspace in (record(), record(SECOND), record(FIRST, OTHER)):
        (folders.make(workspace) / "file").write_text("x")
    folders.reconcile([record(), record(SECOND, "default")])
    assert there(data_dir) == [
        "default",
        f"default/{SECOND}",
        PROJECT,
        f"{PROJECT}/{FIRST}",
        f"{PROJECT}/{FIRST}/file",
    ]
    assert thrown_away(data_dir) == 2


def test_what_the_daemon_has_not_made_stays(folders: WorkspaceFolders, data_dir: Path) -> None:
    kept = [f"prj_{'A' * 32}", "prj_" + "a" * 31, "notes.txt", f"{PROJECT}/lost+found", f"{PROJECT}/wsp_x"]
    for name in kept:
        (data_dir / "workspaces" / name).mkdir(parents=True)
    folders.reconcile([record()])
    assert set(kept) <= set(there(data_dir))
    assert thrown_away(data_dir) == 0


# The trash


async def test_the_trash_is_emptied_whenever_something_is_thrown_away(
    folders: WorkspaceFolders, data_dir: Path, nursery: trio.Nursery
) -> None:
    (folders.make(record()) / "file").write_text("x")
    folders.remove(record())
    nursery.start_soon(folders.keep_trash_empty)
    await until(lambda: thrown_away(data_dir) == 0)
    folders.make(record(SECOND))
    folders.remove_project(PROJECT)
    folders.trash_was_filled()
    await until(lambda: thrown_away(data_dir) == 0)
    assert there(data_dir) == []
    nursery.cancel_scope.cancel()


async def test_a_trash_that_fails_does_not_end_the_daemon(
    folders: WorkspaceFolders, data_dir: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    folders.make(record())
    (data_dir / "workspaces" / TRASH).write_text("x")
    nursery.start_soon(folders.keep_trash_empty)
    await until(lambda: "the trash cannot be emptied" in caplog.text)
    nursery.cancel_scope.cancel()
