"""What is written below an agent's home, whatever the agent has planted there (HAZARDS T21)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oubliette.runtimes.folders import AGENT_UID, agent_uid, give_to_agent, write_below
from tests.helpers.runtimes import make_room

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    canary = tmp_path / "canary"
    canary.write_text("untouched")
    return canary


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777


def test_a_file_is_for_the_agent_alone_and_its_folders_are_made(home: Path) -> None:
    write_below(home, ".config/agent/mcp.json", b"{}", os.geteuid())
    assert (home / ".config/agent/mcp.json").read_bytes() == b"{}"
    assert mode(home / ".config/agent/mcp.json") == 0o600
    assert mode(home / ".config") == mode(home / ".config/agent") == 0o700


def test_a_file_takes_the_place_of_what_was_there(home: Path, canary: Path) -> None:
    os.mkfifo(home / "fifo")
    (home / "link").symlink_to(canary)
    os.link(canary, home / "hard")
    (home / "file").write_text("longer than what comes")
    for name in ("fifo", "link", "hard", "file"):
        write_below(home, name, b"new", os.geteuid())
        assert (home / name).read_bytes() == b"new"
        assert not (home / name).is_symlink()
    assert canary.read_text() == "untouched"
    assert sorted(path.name for path in home.iterdir()) == ["fifo", "file", "hard", "link"]


def test_no_folder_is_looked_up_through_a_link(home: Path, canary: Path) -> None:
    (home / "folder").symlink_to(canary.parent)
    with pytest.raises(OSError, match=r"directory|symbolic links"):
        write_below(home, "folder/canary", b"new", os.geteuid())
    assert canary.read_text() == "untouched"


def test_a_home_that_was_replaced_by_a_link_is_not_followed(home: Path, canary: Path) -> None:
    home.rmdir()
    home.symlink_to(canary.parent)
    with pytest.raises(OSError, match=r"directory|symbolic links"):
        write_below(home, "canary", b"new", os.geteuid())
    assert canary.read_text() == "untouched"


@pytest.mark.parametrize("name", ["", ".", "..", "../canary", "a/../../canary", "/canary", "a\0b"])
def test_a_name_that_leads_out_is_refused(home: Path, canary: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no path below"):
        write_below(home, name, b"new", os.geteuid())
    assert list(home.iterdir()) == []
    assert canary.read_text() == "untouched"


def test_what_cannot_be_written_leaves_no_draft(home: Path) -> None:
    (home / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_below(home, "folder", b"new", os.geteuid())
    assert [path.name for path in home.iterdir()] == ["folder"]


@ROOT_ONLY
def test_what_root_writes_is_the_agents(home: Path) -> None:
    write_below(home, "a/b", b"", agent_uid())
    for path in (home / "a", home / "a/b"):
        assert (path.stat().st_uid, path.stat().st_gid) == (AGENT_UID, AGENT_UID)


@ROOT_ONLY
def test_root_gives_a_room_away_but_not_what_lies_in_it(tmp_path: Path, canary: Path) -> None:
    room = make_room(tmp_path)
    (room.workspace / "link").symlink_to(canary)
    (room.workspace / "file").write_text("root's")
    (room.sockets / "relay.sock").write_text("")
    (room.sockets / "model.sock").symlink_to(canary)
    give_to_agent(room)
    for path in (room.workspace, room.home, room.sockets, room.sockets / "relay.sock", room.sockets / "model.sock"):
        assert path.lstat().st_uid == AGENT_UID, path
    for path in (canary, room.workspace / "file", room.workspace / "link"):
        assert path.lstat().st_uid == 0, path


@ROOT_ONLY
def test_a_workspace_that_is_a_link_is_not_given_away(tmp_path: Path, canary: Path) -> None:
    room = make_room(tmp_path)
    room.workspace.rmdir()
    room.workspace.symlink_to(canary.parent)
    with pytest.raises(OSError, match=r"directory|symbolic links"):
        give_to_agent(room)
    assert canary.parent.stat().st_uid == 0


def test_an_agent_is_never_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert agent_uid() == AGENT_UID
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert agent_uid() == 1234
