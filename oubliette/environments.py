"""The `env` values of projects and workspaces: secrets that are written, handed to agents, and never shown.

They lie apart from the records, a file each under `<data-dir>/env`, mode 0600, so that neither a copy of the database
nor a row that is logged holds one. In memory are the names alone: the values are read when an agent starts.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from oubliette.agents.environment import DAEMON_VARIABLES, Environment
from oubliette.directories import data_directory, own_directory
from oubliette.errors import InternalError, InvalidParams
from oubliette.log import get as get_logger

# An agent gets those of a project and of a workspace, and Linux gives all arguments and variables of a process 2 MiB
# (a quarter of its stack), each at most 128 KiB.
MAX_VARIABLES: Final = 128
MAX_NAME: Final = 128
MAX_VALUE_BYTES: Final = 32 * 1024
MAX_BYTES: Final = 256 * 1024
# Stands for the names of variables that cannot be read; no variable is called so.
UNREADABLE: Final = "(unreadable)"

_FOLDER: Final = "env"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
# Ours: an owner's values, and those of a write that a crash ended.
_FILE: Final = re.compile(r"((?:prj|wsp)_[0-9a-f]{32})\.json(\.[0-9a-f]{16})?\Z")

log = get_logger(__name__)


def check_environment(values: Mapping[str, str]) -> Environment:
    """Returns the variables. Raises `InvalidParams` that names the variable at fault, and never shows a value."""
    if len(values) > MAX_VARIABLES:
        raise InvalidParams(f"env has {len(values)} variables, and may have {MAX_VARIABLES}", field="env")
    for name, value in values.items():
        _check_name(name)
        _check_value(name, value)
    if sum(len(name) + _size(value) for name, value in values.items()) > MAX_BYTES:
        raise InvalidParams(f"env has more than {MAX_BYTES} bytes together", field="env")
    return Environment(values)


def _check_name(name: str) -> None:
    # A name that is none may be a value that somebody put in the wrong place: it is not repeated.
    if not _NAME.match(name) or len(name) > MAX_NAME:
        raise InvalidParams(
            f"a variable's name has letters, digits and _, does not begin with a digit, and has at most {MAX_NAME} "
            "characters",
            field="env",
        )
    if name in DAEMON_VARIABLES:
        raise InvalidParams(f"{name} is set by the daemon itself", field=f"env.{name}")


def _check_value(name: str, value: str) -> None:
    if "\0" in value or not _is_unicode(value):
        raise InvalidParams(f"the value of {name} holds a NUL or half a character", field=f"env.{name}")
    if _size(value) > MAX_VALUE_BYTES:
        raise InvalidParams(f"the value of {name} has more than {MAX_VALUE_BYTES} bytes", field=f"env.{name}")


def _is_unicode(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _size(value: str) -> int:
    return len(value.encode())


class Environments:
    """Every owner's variables; an owner is the id of a project or a workspace. Its methods block on the disk."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._names: dict[str, list[str]] = {}

    def names(self, owner: str) -> list[str]:
        """Returns the names of an owner's variables, sorted."""
        return self._names.get(owner, [])

    def save(self, owner: str, values: Environment) -> None:
        """Writes an owner's variables, all or none, durably. Raises `OSError`."""
        if not values:
            return
        name = _file_of(owner)
        fresh = f"{name}.{secrets.token_hex(8)}"
        with data_directory(self._data_dir) as data, own_directory(_FOLDER, data) as folder:
            try:
                _write_new(fresh, msgspec.json.encode(dict(values)), folder)
                os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            except BaseException:
                _unlink(fresh, folder)
                raise
        self._names[owner] = sorted(values)

    def read(self, owner: str) -> Environment:
        """Returns an owner's variables. Raises `InternalError` where they are damaged or gone."""
        try:
            with data_directory(self._data_dir) as data, own_directory(_FOLDER, data) as folder:
                return _read(_file_of(owner), folder)
        except (OSError, ValueError) as error:
            # The error's own words could hold a part of the file.
            log.error("an env cannot be read", owner=owner, error=type(error).__name__)
            raise InternalError(f"the env of {owner!r} cannot be read") from None

    def remove(self, owners: Collection[str]) -> None:
        """Removes the variables of these owners. Never raises: the next start tries again."""
        known = [owner for owner in owners if self._names.pop(owner, None) is not None]
        if not known:
            return
        try:
            with data_directory(self._data_dir) as data, own_directory(_FOLDER, data) as folder:
                for owner in known:
                    _unlink(_file_of(owner), folder)
                os.fsync(folder)
        except OSError as error:
            log.warning("an env cannot be removed", owners=known, reason=error.strerror)

    def reconcile(self, owners: Collection[str]) -> None:
        """Removes what belongs to nobody, which a crash may have left, and learns the names. Raises `OSError`."""
        with data_directory(self._data_dir) as data, own_directory(_FOLDER, data) as folder:
            for file in os.listdir(folder):
                match = _FILE.match(file)
                if match is None:
                    continue
                if match[2] or match[1] not in owners:
                    _unlink(file, folder)
                else:
                    self._learn(match[1], folder)

    def _learn(self, owner: str, folder: int) -> None:
        try:
            self._names[owner] = sorted(_read(_file_of(owner), folder))
        except (OSError, ValueError) as error:
            log.error("an env cannot be read", owner=owner, error=type(error).__name__)
            self._names[owner] = [UNREADABLE]


def _file_of(owner: str) -> str:
    return f"{owner}.json"


def _read(name: str, folder: int) -> Environment:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        values = msgspec.json.decode(file.read(), type=dict[str, str])
    # A file that was changed by hand gives an agent nothing that a request could not.
    return Environment({name: value for name, value in values.items() if name not in DAEMON_VARIABLES})


def _write_new(name: str, content: bytes, folder: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _unlink(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
