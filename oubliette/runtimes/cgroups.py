"""Memory, processors and processes of a sandbox limited by control groups, where this process may make some.

cgroups(7): in version 2 there is one hierarchy, and a group that hands controllers on holds no processes of its own; in
version 1 each controller has a hierarchy, and any group may have groups below it. A machine may have both; where a
controller is in version 1, it is not in version 2. Nothing is mounted here, and no group is touched but those that were
made here, and that of the daemon where it was delegated to it (systemd: `Delegate=yes`).
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import trio
from msgspec import Struct

from oubliette.log import get as get_logger
from oubliette.runtimes.priority import SHARES, WEIGHT

Controller = Literal["memory", "pids", "cpu"]
CONTROLLERS: Final[tuple[Controller, ...]] = ("memory", "pids", "cpu")
# How long the members of a group may take to be gone once they were killed, in seconds.
_PATIENCE: Final = 2.0
_PAUSE: Final = 0.002
_PERIOD: Final = 100_000  # µs; what a processor's share is counted over
_LEAST_QUOTA: Final = 1_000  # µs; the kernel takes no less
# The daemon's own group, where it had to move out of the one that was delegated to it.
_LEAF: Final = "daemon"

log = get_logger(__name__)


class Limits(Struct, frozen=True, kw_only=True):
    """What one group may take: memory in bytes, processors, processes and threads."""

    memory: int
    cpus: float
    pids: int


class Group:
    """The control groups of one sandbox: a folder for each controller, all the same one in version 2."""

    def __init__(self, folders: Mapping[Controller, Path]) -> None:
        self._folders = folders
        self._each = sorted(set(folders.values()))

    def add(self, pid: int) -> None:
        """Moves a process into the group, and with it all that it starts. Raises `OSError`."""
        for folder in self._each:
            (folder / "cgroup.procs").write_text(str(pid))

    @property
    def oom_kills(self) -> int:
        """How many members the kernel has killed because of the limit of memory."""
        folder = self._folders.get("memory")
        for path in (folder / "memory.oom_control", folder / "memory.events") if folder else ():
            with suppress(OSError):
                counts = dict(line.split() for line in path.read_text().splitlines())
                return int(counts.get("oom_kill", 0))
        return 0

    async def remove(self) -> None:
        """Kills the members and removes the group, within `_PATIENCE`."""
        with trio.move_on_after(_PATIENCE, shield=True):
            while not await trio.to_thread.run_sync(self._is_removed):  # noqa: ASYNC110  # a member's end sets no event
                await trio.sleep(_PAUSE)
            return
        log.warning("a control group cannot be removed", folders=[str(folder) for folder in self._each])

    def _is_removed(self) -> bool:
        for folder in self._each:
            _kill(folder)
            with suppress(FileNotFoundError):
                try:
                    _remove_folder(folder)
                except OSError:
                    return False
        return True


class Groups:
    """Where groups can be made: below which folder, for each controller there is."""

    def __init__(self, parents: Mapping[Controller, Path], prefix: str) -> None:
        self._parents = parents
        self._prefix = prefix
        self._ours: set[str] = set()

    @property
    def missing(self) -> tuple[Controller, ...]:
        """What cannot be limited here."""
        return tuple(controller for controller in CONTROLLERS if controller not in self._parents)

    def make(self, limits: Limits) -> Group:
        """Makes a group. Raises `OSError`."""
        name = f"{self._prefix}{secrets.token_hex(6)}"
        self._ours.add(name)
        folders = {controller: parent / name for controller, parent in self._parents.items()}
        try:
            for controller, folder in folders.items():
                _make_folder(folder)
                for file, value in _values(controller, limits, folder):
                    (folder / file).write_text(value)
        except OSError:
            for folder in folders.values():
                with suppress(OSError):
                    _remove_folder(folder)
            raise
        return Group(folders)

    def left(self) -> list[Group]:
        """Returns the groups that an earlier process made under the same prefix."""
        found: dict[str, dict[Controller, Path]] = {}
        for controller, parent in self._parents.items():
            for folder in parent.glob(f"{self._prefix}*"):
                if folder.name not in self._ours:
                    found.setdefault(folder.name, {})[controller] = folder
        return [Group(folders) for folders in found.values()]


def find_groups(prefix: str, proc: Path = Path("/proc/self")) -> Groups:
    """Returns where groups, whose names begin with `prefix`, can be made by this process; perhaps nowhere."""
    parents: dict[Controller, Path] = {}
    for controller, candidates in _candidates(proc).items():
        for candidate in candidates:
            if _can_make(controller, candidate, prefix):
                parents[controller] = candidate
                break
    return Groups(parents, prefix)


def _candidates(proc: Path) -> dict[Controller, list[Path]]:
    """Returns the folders below which a group with a controller might be made, the best first."""
    own = dict(_own_paths((proc / "cgroup").read_text()))
    found: dict[Controller, list[Path]] = {}
    for controllers, root, mount in _mounts((proc / "mountinfo").read_text()):
        for controller in CONTROLLERS:
            if controllers is not None and controller in controllers and controller in own:
                found[controller] = [_below(mount, root, own[controller])]
            elif controllers is None and "" in own and controller not in own:
                here = _below(mount, root, own[""])
                found.setdefault(controller, [here, *([here.parent] if here != mount else [])])
    return found


def _own_paths(text: str) -> Iterator[tuple[str, str]]:
    """Reads /proc/self/cgroup: `4:memory:/user`, and of version 2 `0::/user`."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _mounts(text: str) -> Iterator[tuple[set[str] | None, str, Path]]:
    """Reads /proc/self/mountinfo: the controllers (None: version 2), the root within the hierarchy, the mount point."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, mount = before.split(" ")[3:5]
            yield (set(options.split(",")) if kind == "cgroup" else None), root, Path(mount)


def _below(mount: Path, root: str, path: str) -> Path:
    """Returns where a group lies in a hierarchy of which only what is below `root` is mounted."""
    return mount / os.path.relpath(path, root) if Path(path).is_relative_to(root) else mount


def _can_make(controller: Controller, parent: Path, prefix: str) -> bool:
    probe = parent / f"{prefix}{secrets.token_hex(6)}"
    try:
        _hand_on(controller, parent)
        _make_folder(probe)
    except OSError:
        return False
    try:
        return any(probe.glob(f"{controller}.*"))
    finally:
        with suppress(OSError):
            _remove_folder(probe)


def _hand_on(controller: Controller, parent: Path) -> None:
    """Lets the groups below a group of version 2 have a controller. Raises `OSError`."""
    handed_on = parent / "cgroup.subtree_control"
    if not handed_on.exists() or controller in handed_on.read_text().split():
        return
    if (parent / "cgroup.procs").read_text().split() == [str(os.getpid())]:
        # "No internal processes" (cgroups(7)): a daemon to which this group was delegated moves out of the way.
        _make_folder(parent / _LEAF)
        (parent / _LEAF / "cgroup.procs").write_text(str(os.getpid()))
    handed_on.write_text(f"+{controller}")


def _values(controller: Controller, limits: Limits, folder: Path) -> Iterator[tuple[str, str]]:
    """Yields what is to be written where, in the version that the folder is of."""
    quota = max(int(limits.cpus * _PERIOD), _LEAST_QUOTA)
    wanted: dict[Controller, tuple[tuple[str, object], ...]] = {
        # Swap is counted with memory in version 1 and apart in version 2; neither is there on every machine.
        "memory": (
            ("memory.limit_in_bytes", limits.memory),
            ("memory.memsw.limit_in_bytes", limits.memory),
            ("memory.max", limits.memory),
            ("memory.swap.max", 0),
        ),
        "pids": (("pids.max", limits.pids),),
        "cpu": (
            ("cpu.cfs_period_us", _PERIOD),
            ("cpu.cfs_quota_us", quota),
            ("cpu.max", f"{quota} {_PERIOD}"),
            ("cpu.shares", SHARES),
            ("cpu.weight", WEIGHT),
        ),
    }
    for file, value in wanted[controller]:
        if (folder / file).exists():
            yield file, str(value)


def _make_folder(folder: Path) -> None:
    folder.mkdir(exist_ok=True)


def _remove_folder(folder: Path) -> None:
    folder.rmdir()


def _kill(folder: Path) -> None:
    """Kills the members of a group that it has now."""
    with suppress(OSError, ValueError):
        for pid in map(int, (folder / "cgroup.procs").read_text().split()):
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                try:
                    # Still a member, now that nobody else can get the number.
                    if str(pid) in (folder / "cgroup.procs").read_text().split():
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                finally:
                    os.close(descriptor)
