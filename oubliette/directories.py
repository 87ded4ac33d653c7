"""Directories by descriptor, one name at a time, and never through a symbolic link (HAZARDS T21).

An agent may replace what lies in its workspace, and the workspace itself, by a link to anywhere. A path is looked up
anew by every system call that gets it; a descriptor stays what it was when it was opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def data_directory(path: os.PathLike[str]) -> Iterator[int]:
    """Opens the data directory: its path is the operator's, who may have made a link of it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def directory(name: str, parent: int) -> Iterator[int]:
    """Opens the directory `name` in `parent`. Raises `OSError`, for a symbolic link too."""
    descriptor = os.open(name, _FLAGS, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def own_directory(name: str, parent: int) -> Iterator[int]:
    """Opens the directory `name` in `parent`, made for this user alone where it is missing."""
    make_directory(name, parent)
    with directory(name, parent) as descriptor:
        yield descriptor


def make_directory(name: str, parent: int) -> None:
    """Makes `name` in `parent`, durably, where nothing of that name is there. Raises `OSError`."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
    os.fsync(parent)
