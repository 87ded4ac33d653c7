"""How what a crash of a daemon left is told from another daemon's, and from what this one has open."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Final

# The variable of programs that run outside of their sandbox: bubblewrap, and an engine's `run`. It is in no sandbox.
MARK: Final = "OUBLIETTE_SANDBOX"
# This process, among all that ever served the same data directory.
_RUN: Final = secrets.token_hex(8)
# Enough that two data directories of one machine never share a name.
_LENGTH: Final = 16


def instance(data_dir: Path) -> str:
    """Returns the same name for the same data directory, whatever path leads to it."""
    return hashlib.sha256(bytes(data_dir.resolve())).hexdigest()[:_LENGTH]


def group_prefix(data_dir: Path) -> str:
    """Returns what the names of an instance's control groups begin with."""
    return f"oubliette-{instance(data_dir)}-"


def mark(data_dir: Path) -> dict[str, str]:
    """Returns the variable that says which daemon started a program."""
    return {MARK: f"{instance(data_dir)}.{_RUN}"}


def is_left(data_dir: Path, value: str) -> bool:
    """Whether a mark is that of an earlier daemon of the same data directory."""
    found, _, run = value.partition(".")
    return found == instance(data_dir) and run != _RUN
