"""A room's folders: whose they are, and what is written below an agent's home (HAZARDS T21).

An agent may plant a symbolic link, a FIFO or a device wherever it may write. So nothing here is looked up through
anything that an agent can replace, and no existing file of its is opened: what is written is a new file that takes the
place of whatever was there.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from oubliette.directories import directory, own_directory
from oubliette.runtimes.base import MODEL_SOCKET, RELAY_SOCKET, Room

# Who confined agents are on this host where the daemon is root: somebody to whom nothing else belongs.
AGENT_UID: Final = 10001


def agent_uid() -> int:
    """Returns the user, and group, of this host that confined agents are: this one, but never root."""
    return os.geteuid() or AGENT_UID


def give_to_agent(room: Room) -> None:
    """Makes a room's folders and sockets the agent's, where the daemon is root. What lies in them stays whose it is.

    Raises `OSError`, also where one of them is a symbolic link.
    """
    if os.geteuid() != 0:
        return
    for path in (room.workspace, room.home, room.sockets):
        with _folder(path) as descriptor:
            os.fchown(descriptor, AGENT_UID, AGENT_UID)
    with _folder(room.sockets) as sockets:
        for name in (RELAY_SOCKET, MODEL_SOCKET):
            # Without a model nobody listens there.
            with suppress(FileNotFoundError):
                os.chown(name, AGENT_UID, AGENT_UID, dir_fd=sockets, follow_symlinks=False)


def write_below(home: Path, name: str, data: bytes, uid: int) -> None:
    """Writes the file `name`, a path below `home`, for the user `uid` alone, in the place of what was there.

    Raises `ValueError` for a name that leads out of `home`, and `OSError`, also where a folder is a symbolic link.
    """
    *folders, last = _parts(name)
    with _folder(home) as top, ExitStack() as opened:
        parent = top
        for folder in folders:
            parent = opened.enter_context(own_directory(folder, parent))
            _own(parent, uid)
        # A name that nobody knows beforehand: an agent that runs already could plant something there.
        draft = f".{secrets.token_hex(8)}"
        try:
            _write(draft, data, parent, uid)
            os.rename(draft, last, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=parent)
            raise


def _write(name: str, data: bytes, parent: int, uid: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=parent), "wb") as file:
        file.write(data)
        _own(file.fileno(), uid)


def _own(descriptor: int, uid: int) -> None:
    if os.fstat(descriptor).st_uid != uid:
        os.fchown(descriptor, uid, uid)


def _parts(name: str) -> list[str]:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"{name!r} is no path below the agent's home")
    return list(path.parts)


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Opens one of a room's folders: its parents are the daemon's, itself an agent of this user could replace."""
    parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with directory(path.name, parent) as descriptor:
            yield descriptor
    finally:
        os.close(parent)
