"""What an agent left behind, removed bit by bit: however many files, however deep, whatever it planted there.

A folder to be removed is moved into the trash, which is one step, and the trash is emptied from the top: a file is
unlinked, and a directory within a directory is moved up into the trash itself. So nothing recurses (an agent can nest
directories deeper than any stack and any table of descriptors), no path is ever followed, and there is no state: what
lies in the trash is rubbish, after a crash as before it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from oubliette.directories import directory
from oubliette.log import get as get_logger

log = get_logger(__name__)


def throw_away(name: str, parent: int, trash: int) -> None:
    """Moves `name`, whatever it is, from `parent` into the trash, durably. Does nothing where it is not there."""
    try:
        _move(name, parent, trash)
    except FileNotFoundError:
        return
    os.fsync(parent)


def remove_some(trash: int, most: int) -> int:
    """Removes or moves up at most `most` entries of the trash. Returns how many; 0 where nothing more can be done."""
    done = 0
    with os.scandir(trash) as entries:
        for entry in islice(entries, most):
            try:
                done += _remove(entry.name, trash, most - done)
            except OSError as error:
                # Somebody else's file, an immutable one, a mount: left for the operator and the next start.
                log.warning("something of a removed workspace cannot be removed", reason=error.strerror)
            if done >= most:
                break
    return done


def _remove(name: str, trash: int, most: int) -> int:
    if _unlink(name, trash):
        return 1
    done = 0
    with _opened(name, trash) as folder, os.scandir(folder) as entries:
        for entry in islice(entries, most):
            if not _unlink(entry.name, folder):
                _move(entry.name, folder, trash)
            done += 1
    if done < most:
        os.rmdir(name, dir_fd=trash)
    return done + 1


def _unlink(name: str, parent: int) -> bool:
    """Removes `name` unless it is a directory; a link is removed, not what it points to."""
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        return False
    return True


def _move(name: str, parent: int, trash: int) -> None:
    target = secrets.token_hex(16)
    try:
        os.rename(name, target, src_dir_fd=parent, dst_dir_fd=trash)
    except PermissionError:
        # A directory without write permission cannot be moved: its ".." would have to change.
        _unlock(name, parent)
        os.rename(name, target, src_dir_fd=parent, dst_dir_fd=trash)


@contextmanager
def _opened(name: str, parent: int) -> Iterator[int]:
    """Opens a directory in which entries can be removed, although an agent may have forbidden it."""
    if not os.access(name, os.R_OK | os.W_OK | os.X_OK, dir_fd=parent, follow_symlinks=False):
        _unlock(name, parent)
    with directory(name, parent) as descriptor:
        yield descriptor


def _unlock(name: str, parent: int) -> None:
    """Gives the user every right on a directory. Not by its name: `chmod` would follow a link that took its place."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)
