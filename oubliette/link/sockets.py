"""Unix sockets that listen."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

_BACKLOG: Final = 64


def listening_socket(path: Path) -> socket.socket:
    """Returns a socket that listens at `path`, for this user alone. Raises `OSError`."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(os.fspath(path))
        path.chmod(0o600)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
