"""The inside of a confined sandbox, the same for bubblewrap, podman and docker (WIRE section 1: `/mcp/relay.sock`)."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec
import trio

from oubliette import bundle
from oubliette.agents.base import Place
from oubliette.runtimes.base import MODEL_SOCKET, RELAY_SOCKET, Room, Settings
from oubliette.runtimes.folders import agent_uid, write_below

WORKSPACE: Final = "/workspace"
HOME: Final = "/home/agent"
SOCKETS: Final = "/mcp"
BUNDLE: Final = bundle.INSIDE
HOSTNAME: Final = "oubliette"
USER: Final = "agent"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The HTTP proxy that the launcher opens where the network is `model`.
_PROXY: Final = "http://127.0.0.1:3128"
_NOT_PROXIED: Final = "127.0.0.1,localhost"
_UNITS: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def place(room: Room, settings: Settings, python: str, path: str = PATH) -> Place:
    """Returns a session's place, where `python` is the interpreter and `path` the PATH inside."""
    socket = f"{SOCKETS}/{RELAY_SOCKET}"
    client = (python, *bundle.PYTHON_OPTIONS, f"{BUNDLE}/{bundle.CLIENT}")
    variables = {
        "PATH": path,
        "HOME": HOME,
        "USER": USER,
        "LOGNAME": USER,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108  # the sandbox's own
        "OUBLIETTE_SOCKET": socket,
        "OUBLIETTE_SESSION_ID": room.session_id,
        "OUBLIETTE_PROJECT_ID": room.project_id,
        "OUBLIETTE_WORKSPACE": WORKSPACE,
        "OUBLIETTE_CLIENT": shlex.join(client),
        **(_proxy_variables() if settings.network == "model" else {}),
    }
    return Place(workspace=WORKSPACE, home=HOME, socket=socket, client=client, variables=variables)


def _proxy_variables() -> dict[str, str]:
    """Each in both spellings: curl reads `http_proxy` in lower case alone, others the upper one."""
    said = {"HTTP_PROXY": _PROXY, "HTTPS_PROXY": _PROXY, "NO_PROXY": _NOT_PROXIED}
    return said | {name.lower(): value for name, value in said.items()}


def launcher(settings: Settings) -> list[str]:
    """Returns the arguments of Python that start the launcher; the program's own come behind them."""
    options: list[str] = []
    if settings.network == "model":
        options += ["--model", f"{SOCKETS}/{MODEL_SOCKET}"]
        for host in settings.model_hosts:
            options += ["--forward", host]
    return [*bundle.PYTHON_OPTIONS, f"{BUNDLE}/{bundle.LAUNCHER}", *options, "--"]


def without(place: Place, variable: str) -> Place:
    """Returns a place that does not say a variable."""
    variables = {name: value for name, value in place.variables.items() if name != variable}
    return msgspec.structs.replace(place, variables=variables)


def memory_file(data: bytes, given: ExitStack) -> int:
    """Returns the descriptor, which `given` closes, of a file that is in memory alone."""
    descriptor = os.memfd_create("oubliette")
    given.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def write(room: Room, name: str, data: bytes) -> str:
    """Writes a file below the agent's home, as `Sandbox.write` says."""
    await trio.to_thread.run_sync(partial(write_below, room.home, name, data, agent_uid()))
    return f"{HOME}/{name}"


def plain(argv: Sequence[str]) -> list[str]:
    """Returns `argv` where it can be one. Raises `ValueError`: no argument may be cut short where a NUL is."""
    if not argv or not argv[0] or any("\0" in argument for argument in argv):
        raise ValueError("a program needs a name, and no argument may hold a NUL")
    return list(argv)


def how_it_ended(exit_code: int) -> str:
    """Returns in words what an exit code says of a signal: 128 and its number, as shells have it."""
    try:
        return f"it was ended by {signal.Signals(exit_code - 128).name}" if exit_code > 128 else ""
    except ValueError:
        return ""


def readable_size(size: int) -> str:
    """Returns a number of bytes in words, rounded down."""
    return next((f"{size // unit} {name}" for name, unit in _UNITS if size >= unit), f"{size} bytes")
