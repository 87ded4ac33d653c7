"""The runtime `bubblewrap`: namespaces of an agent's own, and of this host's files what is needed to run it.

    namespaces      user, pid, ipc, uts, cgroup, and network unless it is `host`; no capability, no_new_privs
    read-only       the system's programs and libraries, some files of /etc, what `visible` finds, bundle and sockets
    its own         /workspace and /home/agent; /tmp and /dev/shm in memory, with a bound
    limits          a control group for each sandbox, where one can be made

bubblewrap reads its options from a pipe. So no variable's value stands on a command line, and it begins only once it
is in its control group. Of its own environment it has a mark alone: it runs outside, where a project's LD_PRELOAD would
be no agent's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from oubliette.agents.base import Program, Running
from oubliette.agents.process import Process, pipe_from_child, pipe_to_child, started
from oubliette.log import get as get_logger
from oubliette.runtimes import inside
from oubliette.runtimes.base import Room, Settings
from oubliette.runtimes.cgroups import Group, Limits, find_groups
from oubliette.runtimes.folders import give_to_agent
from oubliette.runtimes.instance import group_prefix, mark
from oubliette.runtimes.namespace import UID_INSIDE, agents_namespace, as_agent
from oubliette.runtimes.strays import end_left
from oubliette.runtimes.visible import ETC, SYSTEM, Shown, Visible, search_path

# As much as podman gives a container.
_SHARED_MEMORY: Final = 64 * 2**20
_PYTHON: Final = sys.executable
_ETC_FILES: Final = {
    "passwd": f"root:x:0:0::/nonexistent:/bin/false\n{inside.USER}:x:{UID_INSIDE}:{UID_INSIDE}::{inside.HOME}:/bin/sh\n"
    "nobody:x:65534:65534::/nonexistent:/bin/false\n",
    "group": f"root:x:0:\n{inside.USER}:x:{UID_INSIDE}:\nnogroup:x:65534:\n",
    "hosts": f"127.0.0.1 localhost {inside.HOSTNAME}\n::1 localhost\n",
    "hostname": f"{inside.HOSTNAME}\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
}
# What `--info-fd` says first.
_CHILD: Final = re.compile(rb'"child-pid": ([0-9]+)')
_FENCES: Final = ("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", inside.HOSTNAME)
_NAMESPACES: Final = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup")

log = get_logger(__name__)


class BubblewrapRuntime:
    """Runs agents in bubblewrap, as the daemon's own user, or as `AGENT_UID` where that is root.

    Making it takes some ms and blocks. `fence`: whether agents are kept from making user namespaces of their own, which
    bubblewrap can since version 0.8. Raises `OSError`, and `ValueError` for mounts that cannot be.
    """

    name: Final = "bubblewrap"

    def __init__(self, settings: Settings, *, fence: bool = True) -> None:
        self.settings = settings
        self.visible = Visible(settings.mounts, settings.commands, settings.data_dir)
        self.groups = find_groups(group_prefix(settings.data_dir))
        self.namespace = agents_namespace() if os.geteuid() == 0 else None
        self.fence = fence

    @property
    def warnings(self) -> tuple[str, ...]:
        missing = {"memory": "memory", "pids": "the number of processes", "cpu": "processors"}
        unlimited = [missing[controller] for controller in self.groups.missing]
        return (f"bubblewrap cannot limit {', '.join(unlimited)} here: no control group can be made",) * bool(unlimited)

    @asynccontextmanager
    async def open(self, room: Room) -> AsyncIterator[BubblewrapSandbox]:
        await trio.to_thread.run_sync(give_to_agent, room)
        limits = Limits(memory=self.settings.memory, cpus=self.settings.cpus, pids=self.settings.pids)
        group = await trio.to_thread.run_sync(self.groups.make, limits)
        try:
            yield BubblewrapSandbox(self, room, group)
        finally:
            await group.remove()

    async def clean(self) -> None:
        """Sandboxes die with their daemon, but for those of the millisecond before they are told to."""
        await end_left(self.settings.data_dir)
        for group in self.groups.left():
            await group.remove()

    @property
    def identity(self) -> list[str]:
        """The options of who an agent is, inside and on this host."""
        if self.namespace is None:
            own = ["--unshare-user", "--uid", str(UID_INSIDE), "--gid", str(UID_INSIDE)]
            return [*own, "--disable-userns"] if self.fence else own
        given = str(self.namespace)
        # What is read here cannot be read; but it is closed before the agent starts, which nothing else does.
        return ["--userns", given, "--uid", str(UID_INSIDE), "--gid", str(UID_INSIDE), "--block-fd", given]


async def remove_left_groups(data_dir: Path) -> None:
    """Removes the control groups of a daemon's instance that is no more, and sandboxes that it died too early for."""
    await end_left(data_dir)
    for group in find_groups(group_prefix(data_dir)).left():
        await group.remove()


class BubblewrapSandbox:
    """One session's programs; each has namespaces of its own, all are in the session's control group."""

    confined: Final = True

    def __init__(self, runtime: BubblewrapRuntime, room: Room, group: Group) -> None:
        self._runtime = runtime
        self._room = room
        self._group = group
        self.place = inside.place(room, runtime.settings, _PYTHON, search_path(runtime.visible.paths))

    async def write(self, name: str, data: bytes) -> str:
        return await inside.write(self._room, name, data)

    @asynccontextmanager
    async def start(self, program: Program) -> AsyncIterator[Running]:
        await trio.lowlevel.checkpoint_if_cancelled()
        argv = inside.plain(program.argv)
        shown = self._runtime.visible.program(argv[0])
        argv[0] = shown.argument
        if self._runtime.settings.network == "model":
            argv = [_PYTHON, *inside.launcher(self._runtime.settings), *argv]
        with ExitStack() as given:
            options, descriptors = self._options(shown, {**self.place.variables, **program.environment}, given)
            process = _Wrapped(argv, descriptors, self._runtime, self._group)
        async with started(process):
            # In a thread: the kernel may take 20 ms to move a process.
            await trio.to_thread.run_sync(self._group.add, process.pid)
            await process.begin(options)
            yield process

    def _options(self, shown: Shown, variables: Mapping[str, str], given: ExitStack) -> tuple[list[str], list[int]]:
        """Returns bubblewrap's options, and the descriptors that they name, which `given` closes."""
        files = {name: inside.memory_file(text.encode(), given) for name, text in _ETC_FILES.items()}
        settings, visible = self._runtime.settings, self._runtime.visible
        return [
            *self._runtime.identity,
            *_NAMESPACES,
            *(() if settings.network == "host" else ("--unshare-net",)),
            *_FENCES,
            *_system(),
            *_etc(files, settings.network == "host"),
            *_memory(settings.memory),
            *_binds(self._room, settings.bundle, [*visible.paths, *shown.paths]),
            *("--remount-ro", "/", "--chdir", inside.WORKSPACE),
            *_environment(variables),
        ], list(files.values())


class _Wrapped(Process):
    """bubblewrap itself, which stays outside, and its child: the first process of the sandbox, whose end is that of all
    others in it.
    """

    def __init__(
        self, argv: Sequence[str], descriptors: Sequence[int], runtime: BubblewrapRuntime, group: Group
    ) -> None:
        self._group = group
        self._oom_kills = group.oom_kills
        self._memory = runtime.settings.memory
        self._first: _First | None = None
        with ExitStack() as theirs, ExitStack() as ours:
            options, self._options = pipe_to_child(theirs, ours)
            self._info, info = pipe_from_child(theirs, ours)
            namespace = () if runtime.namespace is None else (runtime.namespace,)
            super().__init__(
                [*(as_agent() if namespace else ()), *_bwrap(options, info), "--", *argv],
                environment=mark(runtime.settings.data_dir),
                pass_fds=[options, info, *descriptors, *namespace],
            )
            ours.pop_all()

    async def begin(self, options: Sequence[str]) -> None:
        """Says what sandbox it is to make, which it waits for, and hears who is the first process in it."""
        # Where it has ended already, its exit code and stderr say why.
        with suppress(trio.BrokenResourceError):
            async with self._options:
                await self._options.send_all(b"".join(os.fsencode(option) + b"\0" for option in options))
        said = b"".join([chunk async for chunk in self._info])
        if found := _CHILD.search(said):
            # It may have ended already, with all of its own.
            with suppress(ProcessLookupError):
                self._first = _First(int(found[1]))

    def close(self) -> None:
        for stream in (self._options, self._info, self._first):
            if stream is not None:
                stream.close()
        super().close()

    def ask_to_end(self) -> None:
        """Asks what runs inside: the signal would end bubblewrap itself, and with it all the rest at once."""
        if self._first is None:
            super().ask_to_end()
        else:
            self._first.ask_its_group()

    async def force_to_end(self) -> None:
        """Ends the sandbox, also where bubblewrap has exited: it does so while the last of its processes die."""
        try:
            if self._first is not None:
                await self._first.kill()
        finally:
            await super().force_to_end()

    async def post_mortem(self, exit_code: int) -> str:
        if exit_code == 0:
            return ""
        if self._group.oom_kills > self._oom_kills:
            return f"it ran out of memory: runtime.memory is {inside.readable_size(self._memory)}"
        if exit_code == 127 or "bwrap: execvp" in self._complaint.text:
            return "what is not visible in the sandbox can be shown there: name its folder in runtime.mounts"
        return inside.how_it_ended(exit_code)


class _First:
    """The first process of a sandbox, which is not ours to reap. Raises `ProcessLookupError` where it is gone."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor = os.pidfd_open(pid)

    def ask_its_group(self) -> None:
        """Asks its group to end, which it leads (`--new-session`), but not itself: it heeds no signal but SIGKILL."""
        # The number is nobody else's as long as the process is there, which signal 0 asks.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, 0)
            os.killpg(self._pid, signal.SIGTERM)

    async def kill(self) -> None:
        """Kills it. Returns when it, and so all that ran in its namespace, is gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        await trio.lowlevel.wait_readable(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _bwrap(options: int, info: int) -> Iterator[str]:
    yield from (shutil.which("bwrap") or "bwrap", "--args", str(options), "--info-fd", str(info))


def _system() -> Iterator[str]:
    for path in SYSTEM:
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


def _etc(files: Mapping[str, int], has_network: bool) -> Iterator[str]:
    for name in ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name, descriptor in files.items():
        yield from ("--perms", "0444", "--file", str(descriptor), f"/etc/{name}")
    if has_network:
        yield from ("--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf")


def _memory(size: int) -> Iterator[str]:
    """What lies in memory, each with a bound: half of the session's for temporary files."""
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from ("--perms", "1777", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")  # noqa: S108  # the sandbox's own
    yield from ("--perms", "1777", "--size", str(size // 2), "--tmpfs", "/tmp")  # noqa: S108  # the sandbox's own
    yield from ("--dir", "/run", "--dir", "/var", "--symlink", "/tmp", "/var/tmp")  # noqa: S108  # the sandbox's own


def _binds(room: Room, bundle: Path, shown: Sequence[Path]) -> Iterator[str]:
    binds = [("--ro-bind", path, str(path)) for path in shown]
    binds += [("--bind", room.workspace, inside.WORKSPACE), ("--bind", room.home, inside.HOME)]
    binds += [("--ro-bind", room.sockets, inside.SOCKETS), ("--ro-bind", bundle, inside.BUNDLE)]
    # What lies in another comes after it, or that would hide it.
    for option, source, target in sorted(binds, key=lambda bind: bind[2].count(os.sep)):
        yield from (option, str(source), target)


def _environment(variables: Mapping[str, str]) -> Iterator[str]:
    yield "--clearenv"
    for name, value in variables.items():
        # It would end there, and what follows would be read as an option.
        if "\0" in name + value:
            raise ValueError("a variable of the environment holds a NUL")
        yield from ("--setenv", name, value)
