"""Control groups on a machine that is made up of files, and on this one where it lets us."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from oubliette.runtimes import cgroups
from oubliette.runtimes.cgroups import Groups, Limits, find_groups
from tests.helpers.waiting import until

LIMITS = Limits(memory=64 * 2**20, cpus=0.5, pids=32)
PREFIX = f"oubliette-test-{os.getpid()}-"
V1_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    "pids": ("pids.max",),
    "cpu": ("cpu.cfs_period_us", "cpu.cfs_quota_us"),
}
V2_FILES = {"memory": ("memory.max", "memory.swap.max"), "pids": ("pids.max",), "cpu": ("cpu.max",)}


class Machine:
    """A made-up /proc/self and /sys/fs/cgroup. What the kernel does, files in each new folder, is done here."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.proc = root / "proc"
        self.proc.mkdir()
        self.mounts: list[str] = []
        self.own: list[str] = []
        self.refuses: set[Path] = set()
        self.files: dict[Path, list[str]] = {}
        monkeypatch.setattr(cgroups, "_make_folder", self.make_folder)
        monkeypatch.setattr(cgroups, "_remove_folder", self.remove_folder)

    def make_folder(self, folder: Path) -> None:
        if folder.parent in self.refuses:
            raise PermissionError(13, "Permission denied")
        if not folder.exists():
            folder.mkdir()
            for name in ("cgroup.procs", *self.files[folder.parent]):
                (folder / name).write_text("")

    def remove_folder(self, folder: Path) -> None:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    def version_1(self, controller: str, path: str = "/", root: str = "/") -> Path:
        mount = self.root / controller
        mount.mkdir()
        self.files[mount] = [*V1_FILES[controller]]
        self.mounts.append(f"30 25 0:26 {root} {mount} rw,relatime - cgroup cgroup rw,{controller}")
        self.own.append(f"4:{controller}:{path}")
        self.write()
        return mount

    def version_2(self, path: str = "/", handed_on: str = "", procs: str = "") -> Path:
        mount = self.root / "unified"
        mount.mkdir()
        self.mounts.append(f"30 25 0:26 / {mount} rw,relatime shared:9 - cgroup2 cgroup2 rw")
        self.own.append(f"0::{path}")
        self.write()
        folder = mount / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        self.files[folder] = [file for files in V2_FILES.values() for file in files]
        (folder / "cgroup.subtree_control").write_text(handed_on)
        (folder / "cgroup.procs").write_text(procs)
        return folder

    def write(self) -> None:
        (self.proc / "mountinfo").write_text("\n".join(["24 1 8:1 / / rw - ext4 /dev/vda rw", *self.mounts, ""]))
        (self.proc / "cgroup").write_text("\n".join([*self.own, ""]))

    def find(self) -> Groups:
        return find_groups(PREFIX, self.proc)

    def groups_in(self, folder: Path) -> list[Path]:
        return [path for path in folder.iterdir() if path.name.startswith(PREFIX)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


async def test_version_1_has_a_folder_for_each_controller(machine: Machine) -> None:
    mounts = {name: machine.version_1(name) for name in V1_FILES}
    groups = machine.find()
    assert groups.missing == ()
    assert all(machine.groups_in(mount) == [] for mount in mounts.values()), "a trial leaves nothing"
    group = groups.make(LIMITS)
    found = {
        file.name: file.read_text()
        for mount in mounts.values()
        for folder in machine.groups_in(mount)
        for file in folder.iterdir()
    }
    assert found == {
        "cgroup.procs": "",
        "memory.limit_in_bytes": str(64 * 2**20),
        "memory.memsw.limit_in_bytes": str(64 * 2**20),
        "pids.max": "32",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "50000",
    }
    group.add(4711)
    folders = [folder for mount in mounts.values() for folder in machine.groups_in(mount)]
    assert [(folder / "cgroup.procs").read_text() for folder in folders] == ["4711"] * 3


def test_groups_lie_below_the_daemons_own(machine: Machine) -> None:
    """Also where only a part of the hierarchy is mounted, as in a container."""
    mount = machine.version_1("memory", path="/docker/abc/daemon", root="/docker/abc")
    (mount / "daemon").mkdir()
    machine.files[mount / "daemon"] = [*V1_FILES["memory"]]
    groups = machine.find()
    assert groups.missing == ("pids", "cpu")
    groups.make(LIMITS)
    assert len(machine.groups_in(mount / "daemon")) == 1


def test_version_2_has_one_folder_for_all(machine: Machine) -> None:
    folder = machine.version_2(handed_on="memory pids cpu", procs="1\n2\n3\n")
    groups = machine.find()
    assert groups.missing == ()
    groups.make(LIMITS)
    (made,) = machine.groups_in(folder)
    found = {file.name: file.read_text() for file in made.iterdir() if not file.name.startswith("cgroup.")}
    assert found == {
        "memory.max": str(64 * 2**20),
        "memory.swap.max": "0",
        "pids.max": "32",
        "cpu.max": "50000 100000",
    }


def test_a_daemon_moves_out_of_a_group_that_was_delegated_to_it(machine: Machine) -> None:
    """cgroups(7), "no internal processes"."""
    folder = machine.version_2(path="/user.slice/oubliette.service", procs=f"{os.getpid()}\n")
    machine.files[folder.parent] = []
    assert machine.find().missing == ()
    assert (folder / "daemon" / "cgroup.procs").read_text() == str(os.getpid())


def test_a_group_with_other_processes_is_left_as_it_is(machine: Machine) -> None:
    folder = machine.version_2(path="/user.slice/session", procs=f"1\n{os.getpid()}\n")
    machine.refuses |= {folder, folder.parent}
    assert machine.find().missing == ("memory", "pids", "cpu")
    assert not (folder / "daemon").exists()


def test_where_no_group_can_be_made_nothing_is_limited(machine: Machine) -> None:
    for name in V1_FILES:
        machine.refuses.add(machine.version_1(name))
    assert machine.find().missing == ("memory", "pids", "cpu")


async def test_groups_of_an_earlier_process_are_found_and_removed(machine: Machine) -> None:
    mounts = [machine.version_1(name) for name in V1_FILES]
    machine.find().make(LIMITS)
    groups = machine.find()
    groups.make(LIMITS)
    (mounts[0] / "somebody's").mkdir()
    (left,) = groups.left()
    await left.remove()
    assert [len(machine.groups_in(mount)) for mount in mounts] == [1, 1, 1]
    assert groups.left() == []
    assert (mounts[0] / "somebody's").exists()


@pytest.mark.parametrize(
    ("file", "text"), [("memory.oom_control", "under_oom 0\noom_kill 2"), ("memory.events", "oom 3\noom_kill 2")]
)
def test_what_ran_out_of_memory_is_counted(machine: Machine, file: str, text: str) -> None:
    mount = machine.version_1("memory")
    group = machine.find().make(LIMITS)
    assert group.oom_kills == 0
    (machine.groups_in(mount)[0] / file).write_text(text)
    assert group.oom_kills == 2


async def test_members_are_killed_with_their_group_on_this_machine() -> None:
    groups = find_groups(PREFIX)
    if groups.missing == cgroups.CONTROLLERS:
        pytest.skip("no control group can be made here by this user")
    group = groups.make(LIMITS)
    process = sleeper()
    group.add(process.pid)
    try:
        assert PREFIX in groups_of(process.pid)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cgroups, "_PATIENCE", 0.1)
            await group.remove()
        await until(lambda: process.poll() is not None)
        await group.remove()
        assert find_groups(PREFIX).left() == []
    finally:
        process.kill()
        process.wait()


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"])


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()
