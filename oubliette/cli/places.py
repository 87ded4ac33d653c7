"""Where the daemon keeps its data, and where the command line finds the daemon."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

# Where a running daemon writes its address, so that the command line finds it also on a free port.
URL_FILE: Final = "daemon.url"
TOKEN_FILE: Final = "admin.token"  # noqa: S105  # the name of a file, not a secret
DEFAULT_URL: Final = "http://127.0.0.1:8080"
_TOKEN: Final = re.compile(r"[!-~]+")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class AddressError(Exception):
    """What is missing to speak to a daemon, in words for the operator."""


class Address(NamedTuple):
    """Where the daemon is, and the token to speak to it with."""

    url: str
    token: str


def default_data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns `$OUBLIETTE_DATA_DIR`, else `oubliette` in the user's data directory."""
    if given := environ.get("OUBLIETTE_DATA_DIR"):
        return Path(given)
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "oubliette"


def find_daemon(data_dir: Path, environ: Mapping[str, str] = os.environ) -> Address:
    """Returns `$OUBLIETTE_URL` and `$OUBLIETTE_TOKEN`, and for what is not set what the daemon wrote to `data_dir`.

    Raises `AddressError`.
    """
    given = environ.get("OUBLIETTE_URL")
    url = given or _read(data_dir / URL_FILE) or DEFAULT_URL
    parts = _checked(url)
    token = environ.get("OUBLIETTE_TOKEN")
    if not token:
        # The local admin token is for the daemon of this machine: no other host is ever sent it.
        if given and parts.hostname not in _LOOPBACK:
            raise AddressError(f"OUBLIETTE_TOKEN is not set, and {given} needs a token of its own")
        token = _read(data_dir / TOKEN_FILE)
    if not token:
        raise AddressError(
            f"there is no token: set OUBLIETTE_TOKEN, or name the daemon's data directory "
            f"(--data-dir; there is no {TOKEN_FILE} in {data_dir})"
        )
    if not _TOKEN.fullmatch(token):
        raise AddressError("the token holds characters that no token has; tokens begin with oub_")
    return Address(url, token)


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise AddressError(f"{url!r} is not the address of a daemon; one looks like {DEFAULT_URL}")
    return parts


def _read(path: Path) -> str:
    """Returns the line in a file of the daemon's, an empty one where there is no such file."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise AddressError(f"cannot read {path}: {error}") from None
