"""What a test need not start a whole conversation for: imports, descriptors, arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from oubliette_client import stdio
from oubliette_client.__main__ import MAX_SOCKET_PATH_BYTES

# trio 0.35 and what it imports: its requirements and theirs (attrs is `attr` and `attrs`).
TRIO = {"trio", "attr", "attrs", "sortedcontainers", "idna", "outcome", "sniffio"}
LIST_MODULES = """
import pkgutil, importlib, json, sys
before = set(sys.modules)
import oubliette_client
for module in pkgutil.iter_modules(oubliette_client.__path__, "oubliette_client."):
    importlib.import_module(module.name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""
# What takes long to load, or tells that something of the daemon came along.
HEAVY = {"asyncio", "email", "http", "urllib.request", "concurrent", "multiprocessing", "sqlite3", "xml"}


def _run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OUBLIETTE", "COVERAGE"))}
    return subprocess.run(
        [sys.executable, *arguments],
        input="",
        capture_output=True,
        text=True,
        timeout=60,
        env=environment | options,
        check=False,
    )


def test_the_client_loads_the_standard_library_trio_and_the_pure_protocol_alone() -> None:
    loaded = json.loads(_run("-c", LIST_MODULES).stdout)
    foreign = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names | TRIO}
    ours = {name for name in foreign if name.partition(".")[0] == "oubliette_client"}
    assert {"oubliette_client.__main__", "oubliette_client.server"} <= ours
    assert {name for name in foreign - ours if not name.startswith("oubliette.protocol.")} == {
        "oubliette",
        "oubliette.protocol",
    }
    assert not HEAVY & set(loaded)


def test_nothing_heavy_is_loaded_before_the_arguments_are_known() -> None:
    script = "import sys, oubliette_client.__main__; print('trio' in sys.modules)"
    assert _run("-c", script).stdout.strip() == "False"


def test_a_path_that_no_socket_can_have_is_refused_at_once() -> None:
    path = "/" + "x" * MAX_SOCKET_PATH_BYTES
    done = _run("-m", "oubliette_client", "--socket", path)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert path in line
    assert "107 bytes" in line


@pytest.mark.parametrize("arguments", [["--sock", "x"], ["--socket"], ["x"]])
def test_a_wrong_argument_is_refused(arguments: list[str]) -> None:
    done = _run("-m", "oubliette_client", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: oubliette-client" in done.stderr


def test_help_names_the_environment_variable() -> None:
    done = _run("-m", "oubliette_client", "--help")
    assert done.returncode == 0
    assert "OUBLIETTE_SOCKET" in done.stdout


@pytest.mark.parametrize(
    ("option", "variable", "path"),
    [("/of/option", "/of/variable", "/of/option"), ("", "/of/variable", "/of/variable"), ("", "", "/mcp/relay.sock")],
)
def test_the_socket_is_that_of_the_option_else_of_the_environment(option: str, variable: str, path: str) -> None:
    script = "import oubliette_client.__main__ as main; print(main._socket_path())"
    arguments = ["--socket", option] if option else []
    assert _run("-c", script, *arguments, OUBLIETTE_SOCKET=variable).stdout.strip() == path


def test_without_stdin_the_client_says_so() -> None:
    script = "import os; os.close(0); from oubliette_client.__main__ import main; raise SystemExit(main())"
    done = _run("-c", script)
    assert (done.returncode, done.stdout) == (2, "")
    assert "must be open" in done.stderr


def test_without_stderr_stray_prints_vanish() -> None:
    script = """
import os
from oubliette_client import stdio
os.close(2)
_, stdout = stdio.take_over()
print("stray", flush=True)
stdio.note("nobody hears this")
os.write(stdout, b"protocol")
"""
    assert _run("-c", script).stdout == "protocol"


def test_a_note_is_one_printable_line_of_bounded_length(capfd: pytest.CaptureFixture[str]) -> None:
    stdio.note("a\nb\x1b[31m\u202e" + "ü" * 10_000)
    written = capfd.readouterr().err
    assert written.count("\n") == 1
    assert written.startswith("oubliette-client: a\ufffdb\ufffd[31m\ufffdü")
    assert len(written.encode(errors="replace")) <= 5000


def test_a_note_that_would_block_is_dropped() -> None:
    script = """
import os
from oubliette_client import stdio
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while True:
        os.write(writer, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(writer, True)
os.dup2(writer, 2)
stdio.note("this would wait for ever")
print("went on")
"""
    assert _run("-c", script).stdout.strip() == "went on"
