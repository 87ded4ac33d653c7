"""The environment that an agent finds (WIRE section 8)."""

from __future__ import annotations

import os
import shlex
import sys
from collections import UserDict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# The daemon's environment may hold secrets of its own: programs that it starts get these variables of it and no others.
PASSED_ON: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
)

DAEMON_VARIABLES: Final = frozenset(
    f"OUBLIETTE_{name}" for name in ("SOCKET", "SESSION_ID", "PROJECT_ID", "WORKSPACE", "CLIENT")
)


class Environment(UserDict[str, str]):
    """Environment variables whose values are secrets: its repr, and so a log, shows their names alone."""

    def __repr__(self) -> str:
        return f"<Environment {' '.join(self)}>"


def agent_environment(
    *, session_id: str, project_id: str, folder: Path, socket: Path, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Returns the variables of a session's agent on this host."""
    return {
        **{name: environ[name] for name in PASSED_ON if name in environ},
        "OUBLIETTE_SOCKET": str(socket),
        "OUBLIETTE_SESSION_ID": session_id,
        "OUBLIETTE_PROJECT_ID": project_id,
        "OUBLIETTE_WORKSPACE": str(folder),
        "OUBLIETTE_CLIENT": shlex.join([sys.executable, "-m", "oubliette_client"]),
    }
