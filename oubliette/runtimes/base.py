"""What a runtime is: it opens a sandbox for each session, and clears away what a crashed daemon left."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, Literal, Protocol

from msgspec import Struct

from oubliette.agents.base import Sandbox

Network = Literal["none", "model", "host"]
Kind = Literal["process", "bubblewrap", "podman", "docker"]

# The sockets in a room's folder `sockets`, and so in `/mcp` inside.
RELAY_SOCKET: Final = "relay.sock"
MODEL_SOCKET: Final = "model.sock"


class Room(Struct, frozen=True, kw_only=True):
    """One session's folders on this host. All three exist before its sandbox is opened, made by whoever opens it.

    `sockets` is the folder with `relay.sock` and, where the network is `model`, `model.sock`. `home` is the agent's
    own, outside its workspace; it is removed by whoever made it.
    """

    session_id: str
    project_id: str
    workspace: Path
    sockets: Path
    home: Path


class Settings(Struct, frozen=True, kw_only=True):
    """What runtimes are told, once: the operator's `runtime:` section, and where the daemon keeps its things.

    `data_dir` names the daemon's instance: what a crash left is told from another daemon's by it. `bundle` is the
    folder that `oubliette.bundle.ensure` made. `memory` is in bytes, `cpus` a number of them over 0, `pids` 1 or more.
    `extra_args` go before the image. `mounts` are absolute paths of this host, without ':' and ','.
    `commands` are the commands of the configured profiles: the files that they name are visible in bubblewrap. A
    turn's own arguments never make anything visible, as they may hold a message.
    """

    data_dir: Path
    bundle: Path
    network: Network = "model"
    model_hosts: tuple[str, ...] = ()
    image: str = ""
    memory: int = 2 * 2**30
    cpus: float = 2
    pids: int = 256
    extra_args: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()


class Runtime(Protocol):
    """One way to run agents."""

    @property
    def name(self) -> str: ...
    @property
    def warnings(self) -> tuple[str, ...]:
        """What it cannot enforce on this machine, in words for the caller of a session."""
        ...

    def open(self, room: Room) -> AbstractAsyncContextManager[Sandbox]:
        """Opens a session's sandbox. Leaving the block ends whatever still runs in it, in bounded time.

        Raises `OSError`, or `ValueError` for a folder that cannot be shown in the sandbox.
        """
        ...

    async def clean(self) -> None:
        """Removes what a crashed daemon of the same data directory left: containers, processes, control groups.

        What this runtime has open stays. Never raises for what cannot be removed; that is logged.
        """
        ...
