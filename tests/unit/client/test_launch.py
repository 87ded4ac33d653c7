"""The first program of a sandbox: its command line, its child, its signals and its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from oubliette_client.launch import Order, UsageError, parse

SECONDS = 20  # ends a test that hangs
LAUNCH = [sys.executable, "-m", "oubliette_client.launch"]
# A program that says when it is ready, and which signal it got.
TELLER = """
import signal, sys, time
def tell(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(3)
for name in ("SIGTERM", "SIGINT", "SIGHUP"):
    signal.signal(getattr(signal, name), tell)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def launch(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCH, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=os.environ | variables,
    )


@contextmanager
def launched(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the launcher for the length of the block; its stdin and stdout are pipes."""
    process = subprocess.Popen([*LAUNCH, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# The command line


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        (["true"], Order(["true"])),
        (["--", "--model"], Order(["--model"])),
        (["sh", "-c", "--", "--model"], Order(["sh", "-c", "--", "--model"])),
        (["--model", "/m", "--", "a"], Order(["a"], "/m")),
        (
            ["--forward", "localhost:1", "--model", "/m", "--forward", "[::1]:65535", "a", "b"],
            Order(["a", "b"], "/m", (("localhost", 1), ("[::1]", 65535))),
        ),
    ],
)
def test_the_command_line_is_read(arguments: list[str], order: Order) -> None:
    assert vars(parse(arguments)) == vars(order)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--"], ["--model"], ["--model", "/m"], ["--modl", "/m", "a"], ["--model=/m", "a"], ["--forward", "a", "b"]],
)
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(arguments)


@pytest.mark.parametrize("address", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "a:\u0661", "a:9999999999"])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse(["--forward", address, "true"])


def test_a_wrong_command_line_is_said_on_stderr() -> None:
    done = launch("--model")
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: launch.py" in done.stderr


# The child


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_the_programs(script: str, code: int) -> None:
    done = launch("--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = launch("no-such-program-here")
    assert (done.returncode, done.stderr) == (
        127,
        "oubliette-launch: no-such-program-here: No such file or directory\n",
    )
    plain = tmp_path / "plain"
    plain.write_text("no program")
    done = launch(str(plain))
    assert (done.returncode, done.stderr) == (126, f"oubliette-launch: {plain}: Permission denied\n")


def test_the_program_gets_arguments_environment_folder_and_pipes_as_they_are(tmp_path: Path) -> None:
    script = 'printf "%s|" "$@" "$CANARY" "$PWD"; cat; echo complaint >&2'
    arguments = ["a b", "", "$(x)", "-n", "\u00fc"]
    done = subprocess.run(
        [*LAUNCH, "sh", "-c", script, "sh", *arguments],
        input="given",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"CANARY": "a=b\nc"},
    )
    assert done.stdout == "|".join([*arguments, "a=b\nc", str(tmp_path), "given"])
    assert done.stderr == "complaint\n"


def test_the_program_has_the_descriptors_and_signals_that_it_would_have_alone() -> None:
    program = ["sh", "-c", "ls /proc/self/fd; grep Sig[BIC] /proc/self/status"]
    alone = subprocess.run(program, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert _own_signals(launch("--", *program).stdout) == _own_signals(alone.stdout)


def _own_signals(text: str) -> str:
    """Without the two that the C library keeps for itself: its posix_spawn may or may not say that they are ignored."""
    return re.sub(r"(?<=\t)[0-9a-f]{16}", lambda match: f"{int(match[0], 16) & ~0x180000000:016x}", text)


def test_the_program_has_a_group_of_its_own() -> None:
    """A signal to the launcher's group would reach the program twice."""
    with launched(sys.executable, "-c", "import os; print(os.getpid(), os.getpgid(0), flush=True); input()") as process:
        pid, group = line(process).split()
        assert pid == group != str(os.getpgid(process.pid))


def test_a_program_that_closes_its_pipes_is_seen_to() -> None:
    script = "import os, time; os.close(0); os.close(1); time.sleep(60)"
    with launched(sys.executable, "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert process.poll() is None
        assert process.stdin is not None
        with pytest.raises(BrokenPipeError):
            os.write(process.stdin.fileno(), b"x")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_it_may_be_started_without_one_of_the_three(closed: tuple[int, ...]) -> None:
    script = f"""
import os, sys
for number in {closed}:
    os.close(number)
os.execv(sys.executable, [sys.executable, "-m", "oubliette_client.launch", *sys.argv[1:]])
"""
    program = [sys.executable, "-c", "import sys; sys.exit(5)"]
    process = subprocess.Popen([sys.executable, "-c", script, *program], stdin=subprocess.PIPE)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 5


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_signals_are_passed_on(number: signal.Signals) -> None:
    with launched(sys.executable, "-c", TELLER) as process:
        assert line(process) == "ready"
        process.send_signal(number)
        assert line(process) == number.name
        if number != signal.SIGTERM:
            process.terminate()
        assert process.wait(SECONDS) == 3


def test_a_signal_that_comes_before_the_program_is_there_reaches_it(tmp_path: Path) -> None:
    """From the first handler on nothing is lost: here it comes while the ports are opened."""
    script = f"""
import os, signal, sys
from oubliette_client import launch
launch._open_ways = lambda carrier, order: os.kill(os.getpid(), signal.SIGTERM)
sys.argv[1:] = ["--model", "{tmp_path}/none", "sleep", "60"]
sys.exit(launch.main())
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=SECONDS, check=False)
    assert done.returncode == 128 + signal.SIGTERM


def test_orphans_are_reaped_and_end_nothing() -> None:
    """As process 1 of a sandbox it gets them; here a subreaper stands for that (prctl(2))."""
    script = """
import ctypes, sys
assert ctypes.CDLL(None).prctl(36, 1) == 0
from oubliette_client.launch import main
sys.exit(main())
"""
    orphan = "import os\nif os.fork() == 0:\n os.setsid()\n if os.fork(): os._exit(5)\n os._exit(6)\n"
    program = f"{orphan * 20}\nprint(os.getppid(), flush=True)\ninput()\nraise SystemExit(4)"
    command = [sys.executable, "-c", script, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        launcher = int(line(process))
        deadline = time.monotonic() + SECONDS
        while _zombies(launcher):
            assert time.monotonic() < deadline
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(SECONDS) == 4


def _zombies(parent: int) -> list[str]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in children if _state(pid) == "Z" and pid]


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


# What it costs


def test_nothing_heavy_is_loaded() -> None:
    """An agent waits for its start: no trio, and of the standard library only what is needed."""
    script = "import sys, oubliette_client.launch; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(_client())!r}); {script}"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    ).stdout.split()
    assert not {"trio", "typing", "dataclasses", "inspect", "argparse", "subprocess", "asyncio", "threading"} & set(
        loaded
    )
    ours = {name for name in loaded if name.startswith("oubliette")}
    assert ours == {"oubliette_client", "oubliette_client.launch", "oubliette_client.carry"}


def _client() -> Path:
    import oubliette_client

    return Path(oubliette_client.__path__[0]).parent
