"""Agents' homes: private, gone with their sessions, whatever their agents put there (HAZARDS T21)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from oubliette.errors import InternalError
from oubliette.homes import TRASH, Homes

SESSION = "ses_" + "1" * 32
OTHER = "ses_" + "2" * 32
LIMIT = 20


@asynccontextmanager
async def open_homes(folder: Path) -> AsyncIterator[Homes]:
    homes = Homes(folder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(homes.keep_empty)
        yield homes
        nursery.cancel_scope.cancel()


def left_in(folder: Path) -> list[str]:
    """What lies in the directory of homes, the trash included."""
    root = folder / "agents"
    return sorted(os.listdir(root / TRASH) + [name for name in os.listdir(root) if name != TRASH])


async def emptied(homes: Homes) -> None:
    with trio.fail_after(LIMIT):
        await homes.emptied()


async def test_a_home_is_private_and_gone_with_its_session(tmp_path: Path) -> None:
    async with open_homes(tmp_path) as homes:
        with homes.home(SESSION) as home, homes.home(OTHER) as other:
            assert home == tmp_path / "agents" / SESSION
            assert [path.stat().st_mode & 0o777 for path in (home, other, home.parent)] == [0o700] * 3
            (home / "config.json").write_text("{}")
        assert not home.exists()
        await emptied(homes)
        assert left_in(tmp_path) == []


async def test_a_home_goes_also_where_its_session_breaks(tmp_path: Path) -> None:
    async with open_homes(tmp_path) as homes:
        with pytest.raises(RuntimeError), homes.home(SESSION):
            raise RuntimeError("a bug")
        await emptied(homes)
        assert left_in(tmp_path) == []


async def test_nothing_outside_a_home_is_touched(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("kept")
    async with open_homes(tmp_path) as homes:
        with homes.home(SESSION) as home:
            (home / "link").symlink_to(outside)
            (home / "hard").hardlink_to(outside / "keep")
            (home / "deep").mkdir()
            (home / "deep" / "link").symlink_to("/")
        await emptied(homes)
    assert (outside / "keep").read_text() == "kept"
    assert left_in(tmp_path) == []


async def test_a_home_that_was_replaced_by_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("kept")
    async with open_homes(tmp_path) as homes:
        with homes.home(SESSION) as home:
            home.rmdir()
            home.symlink_to(outside)
        await emptied(homes)
    assert (outside / "keep").read_text() == "kept"
    assert left_in(tmp_path) == []


async def test_a_home_that_its_agent_has_removed_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_homes(tmp_path) as homes:
        with homes.home(SESSION) as home:
            home.rmdir()
        await emptied(homes)
    assert left_in(tmp_path) == []
    assert not caplog.records


async def test_what_is_locked_deep_or_plenty_goes_all_the_same(tmp_path: Path) -> None:
    async with open_homes(tmp_path) as homes:
        with homes.home(SESSION) as home:
            deep = os.open(home, os.O_RDONLY)
            for _ in range(500):
                os.mkdir("d" * 100, dir_fd=deep)
                below = os.open("d" * 100, os.O_RDONLY, dir_fd=deep)
                os.close(deep)
                deep = below
            os.close(deep)
            for number in range(1000):
                (home / f"{number}").touch()
            (home / "locked").mkdir()
            (home / "locked" / "file").touch()
            (home / "locked").chmod(0)
            home.chmod(0)
        await emptied(homes)
        assert left_in(tmp_path) == []


async def test_what_a_crash_left_goes_at_the_next_start_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "agents"
    (root / SESSION / "full").mkdir(parents=True)
    (root / TRASH / "half removed").mkdir(parents=True)
    (root / "of the operator").mkdir()
    homes = Homes(tmp_path)
    homes.reconcile()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(homes.keep_empty)
        await emptied(homes)
        nursery.cancel_scope.cancel()
    assert left_in(tmp_path) == ["of the operator"]


def test_a_directory_that_is_a_link_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "agents").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InternalError, match="'agents' in the data directory cannot be used"):
        Homes(tmp_path).reconcile()


async def test_a_home_that_cannot_be_made_is_said_without_details(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / SESSION).mkdir()
    homes = Homes(tmp_path)
    with pytest.raises(InternalError) as refused, homes.home(SESSION):
        pass
    assert str(tmp_path) not in str(refused.value)
    assert (tmp_path / "agents" / SESSION).is_dir(), "it is somebody else's"
