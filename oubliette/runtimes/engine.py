"""The command lines of podman and docker (HAZARDS T20, T38). Pure: nothing is run here.

Whatever comes from elsewhere is one argument, after the option it belongs to or after the image, and what could be read
as something else is refused: an image that looks like an option, a path with a comma, a variable with a line break.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from oubliette.runtimes import inside
from oubliette.runtimes.base import Room, Settings
from oubliette.runtimes.folders import agent_uid
from oubliette.runtimes.instance import instance

Name = Literal["podman", "docker"]

INSTANCE_LABEL: Final = "oubliette.instance"
SESSION_LABEL: Final = "oubliette.session"
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Go's bufio.Scanner, with which both read a file of variables, takes no longer line.
_MAX_VARIABLE: Final = 64 * 1024 - 1
# In a container always: everything below is about what it must not have.
_FENCES: Final = (
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--hostname=oubliette",
    # A start that waits for a registry would be no start; `doctor` says how to get the image.
    "--pull=never",
    # The agent's output is read here. An engine would keep it too, on disk and without a bound.
    "--log-driver=none",
    # stdin is the agent's.
    "--interactive",
)
_PODMAN_FENCES: Final = (
    # The proxies of the daemon's environment, with their passwords, are not the agent's.
    "--http-proxy=false",
    # /tmp is bounded below; without this podman would add an unbounded /run and /var/tmp.
    "--read-only-tmpfs=false",
)


def run_command(
    engine: Name, settings: Settings, room: Room, name: str, variables: int, argv: Sequence[str]
) -> list[str]:
    """Returns what starts `argv` in a container `name`, with the variables of the file that is open as `variables`.

    Raises `ValueError` for what cannot be said to the engine.
    """
    uid = agent_uid()
    return [
        engine,
        "run",
        *_FENCES,
        *(_PODMAN_FENCES if engine == "podman" else ()),
        f"--name={name}",
        f"--label={INSTANCE_LABEL}={instance(settings.data_dir)}",
        f"--label={SESSION_LABEL}={room.session_id}",
        f"--user={uid}:{uid}",
        # Without root, podman makes the daemon's user root inside unless it is told to keep it.
        *(("--userns=keep-id",) if engine == "podman" and os.geteuid() != 0 else ()),
        f"--network={'host' if settings.network == 'host' else 'none'}",
        *_limits(settings),
        *_mounts(settings, room),
        f"--workdir={inside.WORKSPACE}",
        f"--env-file=/proc/self/fd/{variables}",
        "--entrypoint=python3",
        *settings.extra_args,
        checked_image(settings.image),
        *inside.launcher(settings),
        *inside.plain(argv),
    ]


def variables_file(variables: Mapping[str, str]) -> bytes:
    """Returns a file of variables as both engines read it: a line each, and nothing is quoted.

    Not as variables of the engine's own process (`--env NAME`): it runs outside, where LD_PRELOAD, GODEBUG or
    DOCKER_HOST of a project would be no agent's. Raises `ValueError` for a value with a line break.
    """
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a variable")
        if "\n" in value or "\r" in value or "\0" in value:
            raise ValueError(f"the variable {name} has a line break, which no container can be given")
        if len(os.fsencode(value)) + len(name) >= _MAX_VARIABLE:
            raise ValueError(f"the variable {name} is too long for a container: {_MAX_VARIABLE} bytes are the most")
    return b"".join(os.fsencode(f"{name}={value}\n") for name, value in variables.items())


def remove_command(engine: Name, names: Sequence[str]) -> list[str]:
    """Returns what kills and removes containers, with the volumes that their image made. Unknown ones are no matter."""
    at_once = ["--time=0"] if engine == "podman" else []
    return [engine, "rm", "--force", "--volumes", *at_once, *names]


def list_command(engine: Name, data_dir: Path) -> list[str]:
    """Returns what prints the names of all containers of a daemon's instance."""
    label = f"label={INSTANCE_LABEL}={instance(data_dir)}"
    return [engine, "ps", "--all", "--filter", label, "--format", "{{.Names}}"]


def oom_command(engine: Name, name: str) -> list[str]:
    """Returns what prints `true` for a container in which the kernel killed something for lack of memory."""
    return [engine, "inspect", "--type=container", "--format", "{{.State.OOMKilled}}", name]


def version_command(engine: Name) -> list[str]:
    """Returns what prints with which program, in which version, an engine makes containers."""
    if engine == "podman":
        return [engine, "info", "--format", "{{.Host.OCIRuntime.Version}}"]
    return [engine, "version", "--format", "{{range .Server.Components}}{{.Name}} {{.Version}}{{println}}{{end}}"]


def checked_image(image: str) -> str:
    """Returns an image's name. Raises `ValueError` for what an engine could read as something else."""
    if not _IMAGE.fullmatch(image):
        raise ValueError(f"runtime.image: {image!r} is no name of an image, such as localhost/agent:latest")
    return image


def _limits(settings: Settings) -> list[str]:
    memory = settings.memory
    return [
        f"--memory={memory}b",
        # As much with swap as without: no swap.
        f"--memory-swap={memory}b",
        f"--cpus={settings.cpus:g}",
        f"--pids-limit={settings.pids}",
        f"--tmpfs=/tmp:rw,exec,nosuid,nodev,size={memory // 2},mode=1777",
    ]


def _mounts(settings: Settings, room: Room) -> list[str]:
    return [
        _mount(room.workspace, inside.WORKSPACE),
        _mount(room.home, inside.HOME),
        _mount(room.sockets, inside.SOCKETS, read_only=True),
        _mount(settings.bundle, inside.BUNDLE, read_only=True),
        *(_mount(Path(path), path, read_only=True) for path in settings.mounts),
    ]


def _mount(source: Path, target: str, *, read_only: bool = False) -> str:
    # The value is a line of CSV: a comma or a quote would begin something else.
    if re.search(r'[,"\n\r\0]', f"{source}{target}"):
        raise ValueError(f"{source} cannot be shown in a container: its path holds a comma, a quote or a line break")
    return f"--mount=type=bind,source={source},target={target}" + (",readonly" if read_only else "")
