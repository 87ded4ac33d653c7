"""The store's files: a data directory that one daemon uses at a time, and files that only its user can read.

HAZARDS T11 (permissions, planted links) and F34 (two daemons, what a crash leaves behind).
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from oubliette.errors import InternalError

LOCK: Final = "lock"


class StoreError(InternalError):
    """Records cannot be read or written. At start it is for the operator's eyes and says what to do about it."""


def take_lock(data_dir: Path) -> int:
    """Makes the data directory where it is missing and takes it for this process.

    Returns the lock's file descriptor: the lock lasts until it is closed, so it never outlives the process.
    Raises StoreError where another daemon has it, or where others could change what is in the directory.
    """
    if not data_dir.exists():
        data_dir.mkdir(parents=True)
        data_dir.chmod(0o700)
    _refuse_foreign_directory(data_dir)
    descriptor = open_private(data_dir / LOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreError(
            f"another daemon (pid {holder}) uses {data_dir}: stop it, or choose another --data-dir"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def _refuse_foreign_directory(path: Path) -> None:
    info = path.stat()
    if not stat.S_ISDIR(info.st_mode):
        raise StoreError(f"{path} is not a directory: choose another --data-dir")
    if info.st_uid != os.geteuid():
        raise StoreError(f"{path} belongs to user {info.st_uid}: choose a --data-dir of your own")
    if info.st_mode & 0o022:
        raise StoreError(f"{path} may be written by others: chmod 700 {path}")


def open_private(path: Path) -> int:
    """Opens a file of ours, made where it is missing, with mode 0600 whatever the umask (HAZARDS T11).

    Raises StoreError for a symbolic link, for anything but a regular file of our own, and for one that is read-only.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened for writing ({error.strerror}): mend or move it") from error
    try:
        _refuse_foreign_file(path, os.fstat(descriptor))
        os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_foreign_file(path: Path, info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
        raise StoreError(f"{path} is not a regular file of this user: move it away")
    # The superuser could write to it all the same; somebody who took the permission away meant it.
    if not info.st_mode & stat.S_IWUSR and info.st_size:
        raise StoreError(f"{path} is read-only: chmod 600 {path}")


def guard_files(path: Path) -> None:
    """Creates the database's file before SQLite does (with the umask's mode), and looks at those that lie beside it."""
    os.close(open_private(path))
    for beside in (path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        if os.path.lexists(beside):
            os.close(open_private(beside))
