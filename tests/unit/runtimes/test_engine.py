"""The command lines that podman and docker are given (HAZARDS T20, T38)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from oubliette.runtimes import engine
from oubliette.runtimes.base import Room
from oubliette.runtimes.folders import AGENT_UID
from tests.helpers.runtimes import make_plain_settings

ROOM = Room(
    session_id="ses_1",
    project_id="prj_1",
    workspace=Path("/data/workspaces/prj/wsp"),
    sockets=Path("/data/run/x"),
    home=Path("/data/agents/ses_1"),
)
HOSTILE = ["-x", "; touch pwned", "$(touch pwned)", "a\nb", "", " ", "x" * 4096, "é", "--privileged", "--"]


def command(*argv: str, name: engine.Name = "podman", room: Room = ROOM, **values: Any) -> list[str]:
    settings = make_plain_settings(Path("/data"), **{"image": "localhost/agent:1", **values})
    return engine.run_command(name, settings, room, "oubliette-1", 7, argv or ("agent",))


def options(made: list[str]) -> list[str]:
    """What comes before the image."""
    return made[: made.index("localhost/agent:1")]


@pytest.fixture(params=[0, 1234])
def uid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(os, "geteuid", lambda: request.param)
    return int(request.param)


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_a_container_has_nothing_that_it_does_not_need(name: engine.Name, uid: int) -> None:
    """HAZARDS T38: no privilege, no engine's socket, no capability, no root, limits set."""
    made = options(command(name=name))
    assert {"--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none"} <= set(made)
    assert {"--memory=201326592b", "--memory-swap=201326592b", "--pids-limit=64", "--cpus=1"} <= set(made)
    agent = uid or AGENT_UID
    assert f"--user={agent}:{agent}" in made
    assert "privileged" not in "".join(made).replace("no-new-privileges", "")
    assert ".sock" not in "".join(made)
    assert {"--pull=never", "--log-driver=none", "--interactive"} <= set(made)


def test_rootless_podman_keeps_the_daemons_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for uid, name, kept in ((0, "podman", 0), (1000, "podman", 1), (1000, "docker", 0)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert command(name=name).count("--userns=keep-id") == kept  # type: ignore[arg-type]  # the names of engines


def test_its_folders_are_mounted(uid: int) -> None:
    mounts = [option.removeprefix("--mount=") for option in command(mounts=("/opt/agent",)) if "--mount" in option]
    assert mounts == [
        "type=bind,source=/data/workspaces/prj/wsp,target=/workspace",
        "type=bind,source=/data/agents/ses_1,target=/home/agent",
        "type=bind,source=/data/run/x,target=/mcp,readonly",
        "type=bind,source=/nowhere,target=/opt/oubliette,readonly",
        "type=bind,source=/opt/agent,target=/opt/agent,readonly",
    ]


@pytest.mark.parametrize(("network", "wanted"), [("none", "none"), ("model", "none"), ("host", "host")])
def test_the_network_is_none_but_where_it_is_the_hosts(network: str, wanted: str) -> None:
    assert [option for option in command(network=network) if option.startswith("--network")] == [f"--network={wanted}"]


def test_the_launcher_starts_the_program() -> None:
    made = command("agent", "go", network="model", model_hosts=("a.test:443", "127.0.0.1:11434"))
    assert made[made.index("localhost/agent:1") + 1 :] == [
        *("-I", "-S", "/opt/oubliette/launch.py", "--model", "/mcp/model.sock"),
        *("--forward", "a.test:443", "--forward", "127.0.0.1:11434", "--", "agent", "go"),
    ]
    assert "--entrypoint=python3" in made


@pytest.mark.parametrize("argument", HOSTILE)
def test_an_argument_is_one_argument_behind_the_image(argument: str) -> None:
    made = command("agent", argument)
    assert made[-2:] == ["agent", argument]
    assert options(made) == options(command("agent"))


def test_what_cannot_be_an_argument_is_refused() -> None:
    for argv in (("agent", "a\0b"), ("",)):
        with pytest.raises(ValueError, match="NUL"):
            command(*argv)


def test_extra_arguments_come_last_before_the_image() -> None:
    made = options(command(extra_args=("--ulimit", "nofile=1024:4096")))
    assert made[-2:] == ["--ulimit", "nofile=1024:4096"]


@pytest.mark.parametrize("image", ["", "-x", "--privileged", "a b", "a\nb", "$(x)", "a;b", ".hidden", "a\0b", "é"])
def test_an_image_that_could_be_something_else_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match=r"runtime\.image"):
        command(image=image)


@pytest.mark.parametrize("image", ["agent", "localhost/agent:1", "registry.test:5000/a/b@sha256:0123"])
def test_an_image_may_have_a_registry_a_tag_and_a_digest(image: str) -> None:
    assert engine.checked_image(image) == image


@pytest.mark.parametrize("name", ["a,readonly=false", 'a"b', "a\nb"])
def test_a_path_that_could_be_more_than_one_is_refused(name: str) -> None:
    room = Room(
        session_id="ses_1", project_id="prj_1", workspace=Path("/data", name), sockets=ROOM.sockets, home=ROOM.home
    )
    with pytest.raises(ValueError, match="cannot be shown"):
        command(room=room)


def test_variables_are_lines_of_a_file_and_nothing_is_read_into_them() -> None:
    values = {"A": "b c", "QUOTED": '"x" #y', "EMPTY": "", "E": "é=ü", "SPACED": "  x  "}
    assert engine.variables_file(values).decode() == 'A=b c\nQUOTED="x" #y\nEMPTY=\nE=é=ü\nSPACED=  x  \n'


@pytest.mark.parametrize(
    ("name", "value"), [("A", "b\nC=d"), ("A", "b\rc"), ("A", "b\0c"), ("A B", "c"), ("#A", "b"), ("", "b")]
)
def test_a_variable_that_could_be_two_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="variable"):
        engine.variables_file({name: value})


def test_a_variable_that_is_too_long_is_refused_without_its_value() -> None:
    with pytest.raises(ValueError, match="too long") as caught:
        engine.variables_file({"KEY": "s3cret" * 20_000})
    assert "s3cret" not in str(caught.value)


def test_no_variable_stands_on_a_command_line() -> None:
    made = command()
    assert "--env-file=/proc/self/fd/7" in made
    assert not [option for option in made if option.startswith(("--env=", "-e"))]


def test_what_is_removed_is_removed_at_once() -> None:
    """podman would wait ten seconds for each, docker has no such option."""
    assert engine.remove_command("podman", ["a", "b"]) == ["podman", "rm", "--force", "--volumes", "--time=0", "a", "b"]
    assert engine.remove_command("docker", ["a"]) == ["docker", "rm", "--force", "--volumes", "a"]


def test_an_instance_has_its_own_label(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "data").mkdir()
    first, again, other = (engine.list_command("podman", tmp_path / name) for name in ("data", "link", "other"))
    assert first == again != other
