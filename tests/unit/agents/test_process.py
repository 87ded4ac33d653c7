"""Real programs of this host: what they are given, what is heard of them, and that none is left.

HAZARDS T20 (arguments), G9 (bounds), G10 (nothing leaks).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from oubliette.agents import base, process
from oubliette.agents.process import MAX_COMPLAINT, MAX_LINE, run_lines
from oubliette.runtimes.process import ProcessSandbox
from tests.helpers.runtimes import make_room
from tests.helpers.waiting import LIMIT, is_running, until_gone


class Program:
    """A program under way or done: its lines so far, and how it ended."""

    def __init__(self, sandbox: ProcessSandbox) -> None:
        self.sandbox = sandbox
        self.folder = Path(sandbox.place.workspace)
        self.lines: list[str] = []
        self.exit_code: int | None = None
        self.complaint = ""
        self.heard = trio.Event()

    async def hear(self, line: str) -> None:
        self.lines.append(line)
        self.heard.set()

    async def run(self, *argv: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> None:
        what = base.Program(argv=argv, environment=environment or {})
        with trio.fail_after(LIMIT):
            self.exit_code, self.complaint = await run_lines(self.sandbox, what, stdin, self.hear)

    async def sh(self, script: str, **more: Any) -> None:
        await self.run("sh", "-c", script, **more)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    before = open_files()
    yield Program(ProcessSandbox(make_room(tmp_path)))
    assert open_files() == before, "files were left open"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def assert_reaped(pid: int) -> None:
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@pytest.mark.parametrize("code", [0, 1, 3, 255])
async def test_the_exit_code_is_the_programs(program: Program, code: int) -> None:
    await program.sh(f"exit {code}")
    assert (program.exit_code, program.lines, program.complaint) == (code, [], "")


async def test_a_program_that_a_signal_ended_has_a_negative_code(program: Program) -> None:
    await program.sh("kill -KILL $$")
    assert program.exit_code == -signal.SIGKILL


async def test_each_line_is_heard_also_one_that_does_not_end(program: Program) -> None:
    await program.sh(r"printf 'one\ntwo\r\n\nthr\303\251\342\200\250e\nlast'")
    assert program.lines == ["one", "two", "", "thré\u2028e", "last"]


async def test_bytes_that_are_not_utf8_are_replaced(program: Program) -> None:
    await program.sh(r"printf 'a\377b\n\303\n'")
    assert program.lines == ["a\ufffdb", "\ufffd"]


async def test_a_line_that_is_too_long_is_left_out_with_a_note(program: Program) -> None:
    await program.sh(f"head -c {MAX_LINE} /dev/zero | tr '\\0' x; echo; head -c 3000000 /dev/zero; echo; echo after")
    assert program.lines[0] == "x" * MAX_LINE
    assert program.lines[1:] == [f"[a line of more than {MAX_LINE} bytes was left out]", "after"]


async def test_what_goes_in_comes_out_however_much_it_is(program: Program) -> None:
    """Both pipes are full at once: neither waits for the other."""
    text = b"".join(b"%d\n" % number for number in range(100_000))
    await program.run("cat", stdin=text)
    assert "\n".join(program.lines).encode() + b"\n" == text


async def test_a_program_need_not_read_what_it_is_given(program: Program) -> None:
    await program.run("true", stdin=b"x" * 3_000_000)
    assert program.exit_code == 0


async def test_the_input_ends(program: Program) -> None:
    await program.sh("cat > /dev/null; echo done")
    assert program.lines == ["done"]


async def test_the_end_of_stderr_is_the_complaint(program: Program) -> None:
    await program.sh("head -c 3000000 /dev/zero | tr '\\0' x >&2; printf '\\377end\\n' >&2; exit 1")
    assert program.complaint.endswith("x\ufffdend")
    assert MAX_COMPLAINT - 10 < len(program.complaint) <= MAX_COMPLAINT


async def test_it_runs_in_its_folder_and_in_a_group_of_its_own(program: Program) -> None:
    await program.sh("pwd; echo $$; ps -o pgid= -o sid= -p $$ 2>/dev/null || cut -d' ' -f5,6 /proc/$$/stat")
    pid = int(program.lines[1])
    assert program.lines[0] == str(program.folder.resolve())
    assert [int(number) for number in program.lines[2].split()] == [pid, pid]
    assert_reaped(pid)


async def test_its_environment_is_what_it_is_given(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """HAZARDS T18, T19: nothing of the daemon's own environment but what is named."""
    monkeypatch.setenv("OUBLIETTE_TOKEN", "oub_canary")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    await program.run("env", environment={"OUBLIETTE_PROJECT_ID": "nearer", "KEY": "a=b c"})
    found = dict(line.split("=", 1) for line in program.lines)
    wanted = {**program.sandbox.place.variables, "OUBLIETTE_PROJECT_ID": "nearer", "KEY": "a=b c"}
    assert "canary" not in "".join(found.values())
    assert found | {"PWD": "", "_": "", "SHLVL": ""} == wanted | {"PWD": "", "_": "", "SHLVL": ""}


async def test_an_argument_stays_one_argument(program: Program) -> None:
    """HAZARDS T20: no shell ever sees it."""
    hostile = ["-x", "; touch pwned", "$(touch pwned)", "a\nb", "", " ", "x" * 4096, "é"]
    script = "import sys; print(sys.argv[1:])"
    await program.run(sys.executable, "-c", script, *hostile, environment={"PYTHONUTF8": "1"})
    assert program.lines == [repr(hostile)]
    assert list(program.folder.iterdir()) == []


async def test_what_cannot_be_started_raises(program: Program) -> None:
    (program.folder / "plain").write_text("no program")
    for argv, error in (
        (("/nowhere/agent",), FileNotFoundError),
        ((str(program.folder / "plain"),), PermissionError),
        (("echo", "a\0b"), ValueError),
    ):
        with pytest.raises(error):
            await program.run(*argv)
    (program.folder / "plain").unlink()
    program.folder.rmdir()
    with pytest.raises(FileNotFoundError):
        await program.run("true")


async def test_a_program_that_cannot_be_watched_is_not_left_running(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def fail(pid: int) -> int:
        started.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", fail)
        with pytest.raises(OSError, match="Too many open files"):
            await program.run("sleep", "1000")
    assert_reaped(*started)


async def test_what_it_leaves_in_its_group_is_killed_at_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the pipes open: nobody waits for them."""
    monkeypatch.setattr(process, "DRAIN", 1000)
    await program.sh("sleep 1000 & echo $!; exit 0")
    assert program.exit_code == 0
    await until_gone(int(program.lines[0]))


async def test_what_left_its_group_does_not_hold_the_end(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that the agent started keeps the pipes open for as long as it likes."""
    monkeypatch.setattr(process, "DRAIN", 0.1)
    script = "import subprocess; print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)"
    await program.run(sys.executable, "-c", script)
    assert program.exit_code == 0
    escaped = int(program.lines[0])
    assert is_running(escaped), "it is out of reach, which a container mends"
    os.kill(escaped, signal.SIGKILL)


async def test_a_cancellation_ends_the_whole_group(program: Program) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(program.sh, "sleep 1000 & echo $$ $!; wait")
        await program.heard.wait()
        nursery.cancel_scope.cancel()
    parent, child = map(int, program.lines[0].split())
    assert_reaped(parent)
    await until_gone(child)
    assert program.exit_code is None


async def test_a_program_may_tidy_up_when_it_is_asked_to_end(program: Program) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            program.sh, "trap 'echo tidy > tidied; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
        )
        await program.heard.wait()
        nursery.cancel_scope.cancel()
    assert (program.folder / "tidied").read_text() == "tidy\n"


async def test_a_program_that_does_not_listen_is_killed(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "POLITE", 0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(program.sh, "trap '' TERM; (trap '' TERM; sleep 1000) & echo $$ $!; wait; sleep 1000")
        await program.heard.wait()
        nursery.cancel_scope.cancel()
    parent, child = map(int, program.lines[0].split())
    assert_reaped(parent)
    await until_gone(child)


async def test_a_cancellation_before_the_start_starts_nothing(program: Program) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await program.sh("touch started")
    assert scope.cancelled_caught
    assert list(program.folder.iterdir()) == []


async def test_a_listener_that_fails_ends_the_program(program: Program) -> None:
    async def fail(line: str) -> None:
        program.lines.append(line)
        raise RuntimeError("a bug")

    program.hear = fail  # type: ignore[method-assign]  # the fault that is injected
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug")):
        await program.sh("echo $$; sleep 1000")
    assert_reaped(int(program.lines[0]))


async def test_a_listener_that_is_slow_is_waited_for(program: Program) -> None:
    """The bound on what an agent may have said and nobody recorded is its own pipe."""
    gate, counted = trio.Event(), trio.Event()

    async def listen(line: str) -> None:
        program.lines.append(line)
        counted.set()
        await gate.wait()

    program.hear = listen  # type: ignore[method-assign]  # a listener of the test's own
    async with trio.open_nursery() as nursery:
        nursery.start_soon(program.sh, "i=0; while [ $i -lt 1000 ]; do echo $i; i=$((i+1)); done")
        await counted.wait()
        assert program.lines == ["0"]
        gate.set()
    assert program.lines == [str(number) for number in range(1000)]


async def test_many_at_once(program: Program) -> None:
    programs = [Program(program.sandbox) for _ in range(20)]
    async with trio.open_nursery() as nursery:
        for number, one in enumerate(programs):
            nursery.start_soon(one.sh, f"echo {number}; exit {number}")
    assert [(one.lines, one.exit_code) for one in programs] == [([str(number)], number) for number in range(20)]


async def test_it_is_started_by_the_main_thread(program: Program) -> None:
    """PR_SET_PDEATHSIG is sent when the thread ends that forked; one of trio's cache ends after 10 s of idleness."""
    script = "import os, time; os.write(1, b'%d' % os.getpid()); time.sleep(1000)"
    what = base.Program(argv=(sys.executable, "-c", script))
    async with program.sandbox.start(what) as running:
        with trio.fail_after(LIMIT):
            said = await running.stdout.receive_some(100)
        assert int(said) in children_of_main_thread()


def children_of_main_thread() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


async def test_what_a_block_raises_comes_out_as_it_is(program: Program) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with program.sandbox.start(base.Program(argv=("sleep", "1000"))):
            raise LookupError("mine")


async def test_two_may_wait_for_one_program(program: Program) -> None:
    codes: list[int] = []

    async def wait(running: base.Running) -> None:
        codes.append(await running.wait())

    async with program.sandbox.start(base.Program(argv=("sh", "-c", "echo bad >&2; exit 3"))) as running:
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, running)
                nursery.start_soon(wait, running)
        assert running.complaint == "bad"
    assert codes == [3, 3]


async def test_a_program_may_be_left_while_it_runs(program: Program) -> None:
    async with program.sandbox.start(base.Program(argv=("sh", "-c", "sleep 1000 & echo $$ $!; wait"))) as running:
        with trio.fail_after(LIMIT):
            parent, child = map(int, (await running.stdout.receive_some(100)).split())
    assert_reaped(parent)
    await until_gone(child)
