"""What tests of sockets share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a socket's has 107 bytes, and pytest's own use half of them."""
    with tempfile.TemporaryDirectory(prefix="oub-") as name:
        yield Path(name)
