"""The runtimes `podman` and `docker` with a script as their engine: what it is asked, what becomes of its answers.

Real containers are in tests/e2e/test_sandbox_escape.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from oubliette.agents.base import Program
from oubliette.runtimes import folders
from oubliette.runtimes.container import ContainerRuntime, remove_left
from oubliette.runtimes.engine import Name
from tests.helpers.runtimes import LIMIT, make_plain_settings, make_room, run

# It notes each call, and for `run` plays the container: its program is what comes after the launcher's `--`.
ENGINE = """#!/bin/bash
echo "$@" | tr '\\n' ' ' >> "$ENGINE_LOG"; echo >> "$ENGINE_LOG"
case $1 in
run)
    for option; do case $option in --env-file=*) cp "${option#*=}" "$ENGINE_LOG.env";; esac; done
    while [ "$1" != -- ]; do shift; done; shift
    env -u LD_PRELOAD "$@"; exit $?;;
ps) cat "$ENGINE_LOG.containers" 2>/dev/null;;
inspect) cat "$ENGINE_LOG.oom" 2>/dev/null || echo false;;
rm) [ ! -e "$ENGINE_LOG.stuck" ] || { echo "it is stuck" >&2; exit 1; };;
esac
"""


class Engine:
    """The script, in the place of podman and docker in PATH."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.log = root / "log"
        (root / "bin").mkdir()
        for name in ("podman", "docker"):
            (root / "bin" / name).write_text(ENGINE)
            (root / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("ENGINE_LOG", str(self.log))
        monkeypatch.setattr(folders, "AGENT_UID", os.getuid())

    def say(self, what: str, text: str) -> None:
        (self.root / f"log.{what}").write_text(text)

    def runtime(self, name: Name = "podman") -> ContainerRuntime:
        (self.root / "data").mkdir(exist_ok=True)
        return ContainerRuntime(name, make_plain_settings(self.root / "data", image="localhost/agent:1"))

    @property
    def calls(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["podman", "docker"])
async def test_a_program_runs_and_its_container_is_removed(engine: Engine, name: Name) -> None:
    runtime = engine.runtime(name)
    async with runtime.open(make_room(engine.root)) as sandbox:
        done = await run(sandbox, "cat", stdin=b"one\ntwo\n")
        assert sandbox.confined
        assert sandbox.place.socket == "/mcp/relay.sock"
        assert "PATH" not in sandbox.place.variables
    assert (done.exit_code, done.lines, done.complaint) == (0, ["one", "two"], "")
    started, removed = engine.calls
    assert started[0] == "run"
    name_given = next(option for option in started if option.startswith("--name="))
    assert removed[-1] == name_given.removeprefix("--name=")
    assert runtime.running == set()


async def test_variables_come_in_a_file_and_not_into_the_engine(engine: Engine) -> None:
    """LD_PRELOAD, GODEBUG, DOCKER_HOST of a project would be the engine's own."""
    async with engine.runtime().open(make_room(engine.root)) as sandbox:
        done = await run(sandbox, "env", environment={"API_KEY": "s3cret", "DOCKER_HOST": "tcp://evil.test"})
    assert "s3cret" not in done.text
    assert "DOCKER_HOST" not in done.text
    said = (engine.root / "log.env").read_text().splitlines()
    assert {"API_KEY=s3cret", "DOCKER_HOST=tcp://evil.test", "OUBLIETTE_SESSION_ID=ses_one"} <= set(said)
    assert "s3cret" not in engine.log.read_text()


@pytest.mark.parametrize(
    ("script", "oom", "words"),
    [
        ("echo bad >&2; exit 3", "", "bad"),
        ("exit 137", "true\n", "it ran out of memory: runtime.memory is 192 MiB"),
        ("exit 137", "", "it was ended by SIGKILL, as is what needs more than runtime.memory, 192 MiB"),
        ("exit 143", "", "it was ended by SIGTERM"),
        ("echo oubliette-launch: no such file >&2; exit 127", "", "in the image localhost/agent:1"),
        ("echo 'exec: \"python3\": not found' >&2; exit 127", "", "needs Python 3.11 or newer"),
        ("exit 255", "", ""),
    ],
)
async def test_how_it_ended_is_said_in_words(engine: Engine, script: str, oom: str, words: str) -> None:
    engine.say("oom", oom)
    async with engine.runtime().open(make_room(engine.root)) as sandbox:
        done = await run(sandbox, "sh", "-c", script)
    assert words in done.complaint
    assert done.exit_code == int(script.rpartition(" ")[2])


async def test_a_reason_that_cannot_be_found_is_none(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = engine.runtime()

    async def fail(name: str) -> bool:
        raise OSError("no engine any more")

    monkeypatch.setattr(runtime, "has_run_out_of_memory", fail)
    async with runtime.open(make_room(engine.root)) as sandbox:
        done = await run(sandbox, "sh", "-c", "echo bad >&2; exit 3")
    assert (done.exit_code, done.complaint) == (3, "bad")


async def test_a_cancelled_program_has_its_container_removed(engine: Engine) -> None:
    runtime = engine.runtime()
    async with runtime.open(make_room(engine.root)) as sandbox:
        with trio.fail_after(LIMIT):
            async with sandbox.start(Program(argv=("sh", "-c", "echo ready; exec sleep 1000"))) as running:
                assert await running.stdout.receive_some(100) == b"ready\n"
                assert len(runtime.running) == 1
    assert [call[0] for call in engine.calls] == ["run", "rm"]
    assert runtime.running == set()


async def test_a_container_that_cannot_be_removed_is_no_error(engine: Engine) -> None:
    engine.say("stuck", "")
    async with engine.runtime().open(make_room(engine.root)) as sandbox:
        assert (await run(sandbox, "echo", "well")).lines == ["well"]


async def test_what_an_earlier_daemon_left_is_removed(engine: Engine) -> None:
    engine.say("containers", "oubliette-a\noubliette-b\noubliette-c\n")
    runtime = engine.runtime()
    runtime.running.add("oubliette-b")
    await runtime.clean()
    listed, removed = engine.calls
    assert listed[:2] == ["ps", "--all"]
    assert removed[-2:] == ["oubliette-a", "oubliette-c"]


async def test_nothing_left_is_nothing_removed(engine: Engine) -> None:
    await engine.runtime().clean()
    assert [call[0] for call in engine.calls] == ["ps"]


async def test_an_engine_that_is_not_there_has_left_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    await remove_left("docker", tmp_path)


def test_an_image_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"runtime\.image"):
        ContainerRuntime("podman", make_plain_settings(tmp_path, image="--privileged"))
