"""The options that bubblewrap is given, as far as they cannot be seen from inside (test_sandbox_escape.py)."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from oubliette.agents.base import Program
from oubliette.runtimes import bubblewrap
from oubliette.runtimes.bubblewrap import BubblewrapRuntime, BubblewrapSandbox
from oubliette.runtimes.cgroups import Group, Groups
from oubliette.runtimes.visible import Shown
from tests.helpers.runtimes import make_plain_settings, make_room


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is not root, on a machine without control groups."""
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(bubblewrap, "find_groups", lambda prefix: Groups({}, prefix))


def options(root: Path, variables: dict[str, str] | None = None, **values: Any) -> list[str]:
    runtime = BubblewrapRuntime(make_plain_settings(root, **values))
    sandbox = BubblewrapSandbox(runtime, make_room(root), Group({}))
    with ExitStack() as given:
        return sandbox._options(Shown("agent"), variables or {}, given)[0]


def test_what_confines_comes_before_what_is_shown(tmp_path: Path) -> None:
    """A daemon that dies while it says the options leaves a sandbox that shows too little, never one that is open."""
    made = options(tmp_path)
    first_shown = min(made.index(option) for option in ("--ro-bind", "--bind", "--symlink"))
    for option in ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--cap-drop"):
        assert made.index(option) < first_shown, option
    assert {"--die-with-parent", "--new-session", "--disable-userns", "--unshare-cgroup"} <= set(made[:first_shown])


@pytest.mark.parametrize(("network", "unshared"), [("none", True), ("model", True), ("host", False)])
def test_the_network_is_unshared_but_where_it_is_the_hosts(tmp_path: Path, network: str, unshared: bool) -> None:
    assert ("--unshare-net" in options(tmp_path, network=network)) is unshared


def test_a_value_with_a_nul_is_refused(tmp_path: Path) -> None:
    """It would end the value, and what follows would be options."""
    with pytest.raises(ValueError, match="NUL"):
        options(tmp_path, {"A": "b\0--bind\0/\0/"})


def test_variables_are_all_that_is_said(tmp_path: Path) -> None:
    made = options(tmp_path, {"A": "--bind", "B": "x\ny"})
    assert made[made.index("--clearenv") :] == ["--clearenv", "--setenv", "A", "--bind", "--setenv", "B", "x\ny"]


def test_folders_in_folders_come_after_them(tmp_path: Path) -> None:
    outer, inner = tmp_path / "tools", tmp_path / "tools/inner"
    inner.mkdir(parents=True)
    (tmp_path / "data").mkdir()
    made = options(tmp_path / "data", mounts=(str(inner), str(outer)))
    assert made.index(str(outer)) < made.index(str(inner))


async def test_it_says_what_it_cannot_limit(tmp_path: Path) -> None:
    runtime = BubblewrapRuntime(make_plain_settings(tmp_path))
    (warning,) = runtime.warnings
    assert all(word in warning for word in ("memory", "processes", "processors"))


async def test_a_program_that_is_nowhere_starts_nothing(tmp_path: Path) -> None:
    runtime = BubblewrapRuntime(make_plain_settings(tmp_path))
    sandbox = BubblewrapSandbox(runtime, make_room(tmp_path), Group({}))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError, match=r"runtime\.mounts"):
        async with sandbox.start(Program(argv=("no-such-program",))):
            raise AssertionError("it cannot be started")
    assert os.listdir("/proc/self/fd") == before
