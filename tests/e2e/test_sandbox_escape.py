"""From inside a sandbox, outwards: what an agent cannot see, reach, become, use up, or leave behind.

HAZARDS G18, T20, T21, T38, F20, F25: on the runtimes themselves, with real sandboxes.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from oubliette.agents.base import Program, Running, Sandbox
from oubliette.runtimes.base import Kind, Room, Runtime
from oubliette.runtimes.bubblewrap import BubblewrapRuntime
from oubliette.runtimes.cgroups import CONTROLLERS, find_groups
from oubliette.runtimes.engine import list_command
from oubliette.runtimes.folders import AGENT_UID
from oubliette.runtimes.instance import group_prefix
from tests.helpers.runtimes import (
    LIMIT,
    data_directory,
    image,
    make_room,
    make_runtime,
    run,
    run_python,
)
from tests.helpers.waiting import until, until_gone

# An exit code is known so long after what ended it, in seconds (HAZARDS F20).
AT_ONCE = 5


class Host:
    """This machine with one runtime, a session's room, and things of others that the session must not find."""

    def __init__(self, kind: Kind, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind: Kind = kind
        self.root = root
        self.data_dir = root / "data"
        self.data_dir.mkdir(mode=0o700)
        self.room = make_room(self.data_dir)
        self.other = make_room(self.data_dir, "other")
        self.canary = f"canary-{secrets.token_hex(8)}"
        self.monkeypatch = monkeypatch

    async def runtime(self, **values: object) -> Runtime:
        return await make_runtime(self.kind, self.data_dir, self.monkeypatch, **values)

    @asynccontextmanager
    async def sandbox(self, **values: object) -> AsyncIterator[Sandbox]:
        runtime = await self.runtime(**values)
        async with runtime.open(self.room) as sandbox:
            yield sandbox

    def plant(self) -> list[Path]:
        """Plants the canary wherever something lies that is not this session's."""
        rooms = (self.other.workspace, self.other.home, self.other.sockets)
        files = [folder / self.canary for folder in (self.root, self.data_dir, *rooms)]
        for file in files:
            file.write_text(self.canary)
            file.chmod(0o644)
        return files

    def leavings(self) -> list[str]:
        """What is left of sandboxes of this data directory: containers, control groups."""
        groups = find_groups(group_prefix(self.data_dir)).left()
        left = [str(group) for group in groups]
        if self.kind == "podman":
            listed = subprocess.run(list_command("podman", self.data_dir), capture_output=True, text=True, check=True)
            left += listed.stdout.split()
        return left


@pytest.fixture(params=["bubblewrap", "podman"])
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    with data_directory() as root:
        host = Host(request.param, root, monkeypatch)
        yield host
        assert host.leavings() == []


@asynccontextmanager
async def asleep(sandbox: Sandbox, *argv: str) -> AsyncIterator[tuple[Running, str]]:
    """A program that sleeps, and the mark that it has on its command line, by which the host finds it."""
    mark = new_mark()
    async with sandbox.start(Program(argv=(*(argv or ("sleep",)), mark))) as running:
        await until(lambda: pids_of(mark))
        yield running, mark


# It sleeps in a session of its own, and its parent is busy as well.
ESCAPED = ("sh", "-c", "setsid sleep $0 & exec sleep 1000000")


def new_mark() -> str:
    return str(secrets.randbelow(10**9) + 10**9)


def pids_of(mark: str) -> list[int]:
    """Returns the processes of this host that run `sleep MARK`, whatever sandbox they are in."""
    split = [(pid, line.split(b"\0")) for pid, line in command_lines()]
    return [pid for pid, line in split if line[0].endswith(b"sleep") and line[1:] == [mark.encode(), b""]]


def command_lines() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes()


# What it is


STATUS = """
import os
for line in open("/proc/self/status"):
    if line.startswith(("Uid", "Gid", "Groups", "Cap", "NoNewPrivs")):
        print(line.strip().replace("\\t", " "))
print(os.getpid() < 100, len([name for name in os.listdir("/proc") if name.isdigit()]) < 10)
"""


async def test_it_is_nobody_and_can_become_nobody(host: Host) -> None:
    async with host.sandbox() as sandbox:
        lines = (await run_python(sandbox, STATUS)).lines
    facts = dict(line.split(":", 1) for line in lines[:-1])
    assert "0" not in facts["Uid"].split() + facts["Gid"].split() + facts["Groups"].split()
    assert {int(value, 16) for name, value in facts.items() if name.startswith("Cap")} == {0}
    assert facts["NoNewPrivs"].strip() == "1"
    assert lines[-1] == "True True", "it sees other processes than its own"


async def test_it_is_nobody_on_the_host_either(host: Host) -> None:
    async with host.sandbox() as sandbox, asleep(sandbox) as (_, mark):
        (pid,) = pids_of(mark)
        assert os.stat(f"/proc/{pid}").st_uid == (os.geteuid() or AGENT_UID)
        for name in ("mnt", "pid", "ipc", "uts", "net"):
            assert os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"), name


async def test_it_makes_no_namespaces_of_its_own(host: Host) -> None:
    """Each would give it all capabilities within, and so a large part of the kernel to try."""
    if host.kind == "podman":
        pytest.skip("podman's own seccomp profile lets programs make user namespaces")
    async with host.sandbox() as sandbox:
        done = await run(sandbox, "unshare", "--user", "true")
    assert done.exit_code != 0


# What it sees


SEARCH = """
import os, sys
wanted = sys.argv[1]
for folder, folders, files in os.walk("/", onerror=lambda error: None):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/usr/share")]
    for name in files:
        if wanted in name:
            print(os.path.join(folder, name))
for path in sys.argv[2:]:
    try:
        print(open(path).read())
    except OSError as error:
        print(error.strerror, file=sys.stderr)
"""


async def test_it_sees_nothing_of_others(host: Host) -> None:
    planted = [*host.plant(), Path("/etc/shadow"), Path.home() / ".bashrc", Path(f"/proc/{os.getpid()}/environ")]
    async with host.sandbox() as sandbox:
        (Path(host.room.workspace) / host.canary).write_text("its own")
        done = await run_python(sandbox, SEARCH, host.canary, *map(str, planted))
    assert done.lines == [f"/workspace/{host.canary}"]
    assert len(done.complaint.splitlines()) == len(planted)


async def test_a_link_leads_nowhere(host: Host) -> None:
    """HAZARDS T21: what a link says is looked up inside."""
    planted = host.plant()[0]
    (host.room.workspace / "link").symlink_to(planted)
    async with host.sandbox() as sandbox:
        done = await run(sandbox, "cat", "/workspace/link", "/proc/1/root" + str(planted))
    assert (done.exit_code, done.lines) == (1, [])


async def test_an_argument_makes_nothing_visible(host: Host) -> None:
    """A message may stand in it: of a caller, or of an agent to its child session."""
    planted = host.plant()[0]
    async with host.sandbox() as sandbox:
        done = await run(sandbox, "cat", str(planted))
    assert (done.exit_code, done.lines) == (1, [])


async def test_what_is_mounted_is_read_only(host: Host) -> None:
    mounted = host.root / "tool"
    mounted.mkdir()
    (mounted / "file").write_text("the operator's")
    mounted.chmod(0o777)
    async with host.sandbox(mounts=(str(mounted),)) as sandbox:
        done = await run(sandbox, "sh", "-c", f"cat {mounted}/file; touch {mounted}/new")
    assert done.lines == ["the operator's"]
    assert "Read-only" in done.complaint
    assert [path.name for path in mounted.iterdir()] == ["file"]


async def test_a_program_is_visible_alone(host: Host) -> None:
    """bubblewrap shows what the operator's profile names; in a container it must be in the image."""
    program, beside = host.root / "agent", host.root / "beside"
    program.write_text(f"#!/bin/sh\necho started; cat {beside}\n")
    beside.write_text(host.canary)
    for file in (program, beside):
        file.chmod(0o755)
    async with host.sandbox() as sandbox:
        done = await run(sandbox, str(program))
    assert done.lines == (["started"] if host.kind == "bubblewrap" else [])
    assert done.exit_code in (1, 127)


@pytest.mark.parametrize("network", ["none", "model"])
async def test_what_is_missing_is_an_error_with_the_mend(host: Host, network: str) -> None:
    program = host.root / "agent"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    async with host.sandbox(network=network) as sandbox:
        done = await run(sandbox, str(program))
    assert done.exit_code != 0
    assert "runtime.mounts" in done.complaint


WRITE = """
import os
for folder in ("/", "/etc", "/usr", "/usr/bin", "/opt", "/opt/oubliette", "/mcp", "/home", "/dev", "/proc/sys/kernel",
               "/sys", "/workspace", "/home/agent", "/tmp"):
    try:
        open(folder + "/written", "w").close()
        print(folder)
    except OSError:
        pass
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/kcore", "/dev/mem", "/dev/kmsg"):
    try:
        with open(path, "w") as file:
            file.write("|/workspace/escape")
        print(path)
    except OSError:
        pass
"""


async def test_it_writes_to_its_own_folders_alone(host: Host) -> None:
    async with host.sandbox() as sandbox:
        done = await run_python(sandbox, WRITE)
    assert done.lines == ["/workspace", "/home/agent", "/tmp"]
    assert (host.room.workspace / "written").exists()
    assert (host.room.home / "written").exists()


async def test_what_it_plants_in_its_home_leads_the_daemon_nowhere(host: Host) -> None:
    """HAZARDS T21: the daemon writes an agent's configuration after the agent has been there."""
    target = host.plant()[0]
    script = f"cd; ln -s {target.parent} folder; ln -s {target} file; mkdir .config; mkfifo .config/mcp.json; id -u"
    async with host.sandbox() as sandbox:
        (uid,) = (await run(sandbox, "sh", "-c", script)).lines
        with pytest.raises(OSError, match=r"symbolic|directory"):
            await sandbox.write(f"folder/{target.name}", b"overwritten")
        assert await sandbox.write("file", b"new") == "/home/agent/file"
        assert await sandbox.write(".config/mcp.json", b"{}") == "/home/agent/.config/mcp.json"
        done = await run_python(sandbox, STAT, "/home/agent/file", "/home/agent/.config/mcp.json")
    assert done.lines == [f"{uid} 600 3", f"{uid} 600 2"]
    assert target.read_text() == host.canary


STAT = """
import os, sys
for path in sys.argv[1:]:
    found = os.lstat(path)
    print(found.st_uid, oct(found.st_mode & 0o777)[2:], found.st_size)
"""


async def test_secrets_stand_in_no_command_line_and_in_no_process_outside(host: Host) -> None:
    """Nor does what a project says reach the programs that run outside: LD_PRELOAD would run there."""
    secret = secrets.token_hex(16)
    environment = {"API_KEY": secret, "LD_PRELOAD": f"/workspace/{secret}.so"}
    async with host.sandbox() as sandbox:
        program = Program(argv=("sleep", "1000"), environment=environment)
        async with sandbox.start(program) as running:
            await until(lambda: has_variable(secret))
            assert not [line for _, line in command_lines() if secret.encode() in line]
            await until(lambda: "cannot be preloaded" in running.complaint)
            outside = [pid for pid in has_variable(secret) if same_namespace(pid)]
            assert outside == []


def has_variable(value: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and value.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def same_namespace(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")


# What it reaches


CONNECT = """
import socket, sys
print(sorted(name for _, name in socket.if_nameindex()))
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        print("reached", target)
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("network", ["none", "model"])
async def test_it_reaches_no_network(host: Host, network: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with host.sandbox(network=network) as sandbox:
            done = await run_python(sandbox, CONNECT, f"127.0.0.1:{port}", "192.0.2.1:80", "198.51.100.1:443")
    assert done.lines[0] == "['lo']"
    assert done.text.count("reached") == 0
    assert len(done.lines) == 4


async def test_with_network_host_it_reaches_the_host(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with host.sandbox(network="host") as sandbox:
            done = await run_python(sandbox, CONNECT, f"127.0.0.1:{port}")
    assert done.lines[1] == f"reached 127.0.0.1:{port}"


SPEAK = """
import socket, sys
for path in sys.argv[1:]:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
        print("connected")
    except OSError as error:
        print(type(error).__name__)
"""


async def test_it_speaks_to_its_own_socket_and_to_no_other(host: Host) -> None:
    with listening_at(host.room), listening_at(host.other):
        async with host.sandbox() as sandbox:
            others = (str(host.other.sockets / "relay.sock"), "/run/podman/podman.sock", "/var/run/docker.sock")
            done = await run_python(sandbox, SPEAK, sandbox.place.socket, *others)
    assert done.lines == ["connected", *["FileNotFoundError"] * 3]


async def test_the_model_is_reached_through_its_socket(host: Host) -> None:
    """The proxy variables lead there; what the daemon lets through is the daemon's affair."""
    script = "import os, urllib.request; print(urllib.request.urlopen('http://model.test/v1', timeout=10).read())"
    with listening_at(host.room, "model.sock") as model:
        async with host.sandbox(network="model") as sandbox, trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, answer_once, model)
            done = await run_python(sandbox, script)
    assert done.lines == ["b'GET http://model.test/v1 HTTP/1.1'"], done.complaint


def listening_at(room: Room, name: str = "relay.sock") -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(room.sockets / name))
    (room.sockets / name).chmod(0o600)
    listening.listen()
    return listening


def answer_once(model: socket.socket) -> None:
    """Answers one HTTP request with its own first line."""
    model.settimeout(LIMIT)
    connection, _ = model.accept()
    with connection:
        connection.settimeout(LIMIT)
        first = connection.recv(65536).split(b"\r\n")[0]
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(first), first)
        )


# What it uses up


FORK = """
import os, sys
forked = 0
try:
    while forked < 2000:
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        forked += 1
except OSError as error:
    print(type(error).__name__, forked)
"""


@pytest.mark.heavy
async def test_a_fork_bomb_is_stopped(host: Host) -> None:
    """HAZARDS F25."""
    runtime = await host.runtime()
    skip_without(runtime, "pids")
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(runtime.open(host.room))
        neighbour = await stack.enter_async_context(runtime.open(host.other))
        program = Program(argv=(sandbox.place.client[0], "-c", FORK))
        running = await stack.enter_async_context(sandbox.start(program))
        with trio.fail_after(LIMIT):
            line = (await running.stdout.receive_some(1000)).decode().split()
            assert line[0] == "BlockingIOError"
            assert int(line[1]) < 64
            assert (await run(neighbour, "echo", "well")).lines == ["well"]


@pytest.mark.heavy
async def test_a_memory_hog_is_stopped_and_it_is_said(host: Host) -> None:
    runtime = await host.runtime()
    skip_without(runtime, "memory")
    async with runtime.open(host.room) as sandbox, runtime.open(host.other) as neighbour:
        done = await run_python(sandbox, "hog = bytearray(2**30); print(len(hog))")
        assert done.exit_code in (137, -signal.SIGKILL)
        assert done.lines == []
        assert "runtime.memory" in done.complaint
        assert "192 MiB" in done.complaint
        assert (await run(neighbour, "echo", "well")).lines == ["well"]
        assert (await run(sandbox, "echo", "again")).lines == ["again"], "the next turn has its memory back"


@pytest.mark.heavy
async def test_what_lies_in_memory_is_bounded(host: Host) -> None:
    """/tmp is memory, and is the one place for files that is not on a disk."""
    script = (
        "import os; print(os.statvfs('/tmp').f_blocks * os.statvfs('/tmp').f_frsize, os.statvfs('/dev/shm').f_blocks)"
    )
    async with host.sandbox() as sandbox:
        (line,) = (await run_python(sandbox, script)).lines
    size, shared = map(int, line.split())
    assert 0 < size <= 96 * 2**20
    assert shared > 0


def skip_without(runtime: Runtime, controller: str) -> None:
    if isinstance(runtime, BubblewrapRuntime) and controller in runtime.groups.missing:
        pytest.skip(f"bubblewrap cannot limit {controller} here: no control group can be made")


# What it leaves behind


async def test_the_end_takes_everything_with_it(host: Host) -> None:
    async with host.sandbox() as sandbox:
        async with asleep(sandbox, *ESCAPED) as (_, mark):
            pids = pids_of(mark)
        assert pids_of(mark) == []
        for pid in pids:
            await until_gone(pid)


async def test_a_program_may_tidy_up_when_it_is_asked_to_end(host: Host) -> None:
    script = "trap 'echo tidy > tidied; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    async with host.sandbox() as sandbox, sandbox.start(Program(argv=("sh", "-c", script))) as running:
        with trio.fail_after(LIMIT):
            assert await running.stdout.receive_some(100) == b"ready\n"
    assert (host.room.workspace / "tidied").read_text() == "tidy\n"


async def test_a_program_that_does_not_listen_is_killed(host: Host) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    async with host.sandbox() as sandbox:
        with trio.fail_after(LIMIT):
            async with sandbox.start(Program(argv=("sh", "-c", script))) as running:
                assert await running.stdout.receive_some(100) == b"ready\n"


async def test_a_killed_agent_is_an_exit_code_in_words(host: Host) -> None:
    async with host.sandbox() as sandbox, asleep(sandbox) as (running, mark):
        os.kill(pids_of(mark)[0], signal.SIGKILL)
        with trio.fail_after(AT_ONCE):
            assert await running.wait() == 137
    assert running.complaint.startswith("it was ended by SIGKILL")


async def test_a_killed_sandbox_is_an_exit_code(host: Host) -> None:
    """What was started here is killed: bubblewrap itself, and podman's `run`."""
    async with host.sandbox() as sandbox, asleep(sandbox) as (running, mark):
        (pid,) = [pid for pid, line in command_lines() if mark.encode() in line and is_child(pid)]
        os.kill(pid, signal.SIGKILL)
        with trio.fail_after(AT_ONCE):
            assert await running.wait() == -signal.SIGKILL
    await until(lambda: not pids_of(mark), AT_ONCE)


def is_child(pid: int) -> bool:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()


async def test_a_container_that_was_removed_is_an_exit_code(host: Host) -> None:
    if host.kind != "podman":
        pytest.skip("bubblewrap makes no container that somebody else could remove")
    async with host.sandbox() as sandbox, asleep(sandbox) as (running, _):
        await trio.run_process(["podman", "rm", "--force", "--time=0", *host.leavings()], capture_stdout=True)
        with trio.fail_after(AT_ONCE):
            assert await running.wait() == 137


DAEMON = """
import sys, trio
from pathlib import Path
from oubliette.agents.base import Program
from oubliette.runtimes.base import Room
from oubliette.runtimes.trial import examine
from tests.helpers.runtimes import make_settings

async def main(kind, data_dir, image, workspace, sockets, home, mark, *argv):
    runtime = (await examine(kind, make_settings(Path(data_dir), image=image))).runtime
    places = {"workspace": Path(workspace), "sockets": Path(sockets), "home": Path(home)}
    room = Room(session_id="ses_one", project_id="prj_test", **places)
    async with runtime.open(room) as sandbox, sandbox.start(Program(argv=(*argv, mark))):
        await trio.sleep_forever()

trio.run(main, *sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["process", "bubblewrap", "podman"])
async def test_a_killed_daemon_leaves_nothing_that_is_not_found(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = new_mark()
    with data_directory() as root:
        host = Host(kind, root, monkeypatch)
        runtime = await host.runtime()
        room = host.room
        made = image() if kind == "podman" else ""
        arguments = [kind, host.data_dir, made, room.workspace, room.sockets, room.home, mark, *ESCAPED]
        daemon = popen([sys.executable, "-c", DAEMON, *map(str, arguments)])
        try:
            await until(lambda: pids_of(mark), LIMIT)
        finally:
            daemon.kill()
            daemon.wait()
        if kind == "bubblewrap":
            await until(lambda: not pids_of(mark), AT_ONCE)
        else:
            assert pids_of(mark), "it outlives its daemon, or there would be nothing to find"
        assert kind == "process" or skipped_groups(runtime) or host.leavings()
        with trio.fail_after(LIMIT):
            await runtime.clean()
        await until(lambda: not pids_of(mark), AT_ONCE)
        assert host.leavings() == []


def skipped_groups(runtime: Runtime) -> bool:
    return isinstance(runtime, BubblewrapRuntime) and runtime.groups.missing == CONTROLLERS


def popen(argv: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv)


async def test_cleaning_leaves_what_is_open(host: Host) -> None:
    runtime = await host.runtime()
    async with runtime.open(host.room) as sandbox, asleep(sandbox) as (_, mark):
        await runtime.clean()
        assert pids_of(mark)
