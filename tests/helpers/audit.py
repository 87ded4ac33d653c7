"""The audit log in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oubliette.audit import Audit, AuditFile


class NoFile(AuditFile):
    """A file that keeps nothing: who notes is what the test is about."""

    def __init__(self) -> None:
        pass

    def append(self, lines: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class Unwritten(Audit):
    """An audit log whose lines stay in memory, in `noted`."""

    def __init__(self) -> None:
        super().__init__(NoFile())

    @property
    def noted(self) -> list[Any]:
        return [json.loads(line) for line in self._lines]


def lines_of(path: Path) -> list[Any]:
    """Returns what an audit log's file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()]
