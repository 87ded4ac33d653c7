"""Where the daemon keeps its data when nobody says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Where a running daemon writes its address, so that the command line finds it also on a free port.
URL_FILE: Final = "daemon.url"


def default_data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns `$OUBLIETTE_DATA_DIR`, else `oubliette` in the user's data directory."""
    if given := environ.get("OUBLIETTE_DATA_DIR"):
        return Path(given)
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "oubliette"
