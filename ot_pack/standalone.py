"""The state of the configuration alone: what there is where no daemon binds one.

Nobody connects to a server from here, so each is `disconnected` and shows no tools, and `${NAME}` is left as it is.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

import ot_pack
from ot_pack.config import PackConfig, find, read
from ot_pack.document import Document
from ot_pack.local import entry_of
from ot_pack.state import DISCONNECTED, LOCAL, PROXY, Entry, State


class _Reach:
    """The configuration file that was asked for, None for the usual places, and the state read from it."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.state: State | None = None


_reach: Final = _Reach()


def use(path: Path | None) -> None:
    """Makes `path` the configuration in reach, None for the usual places. It is read when it is needed."""
    _reach.path, _reach.state = path, None


def state() -> State:
    """Returns what the configuration in reach says, as it was when it was first read or last reloaded.

    Raises `ConfigError` where it is bad.
    """
    if _reach.state is None:
        reload()
    assert _reach.state is not None
    return _reach.state


def reload() -> None:
    """Reads the configuration in reach again. Raises `ConfigError` where it is bad; then the old one stays."""
    _reach.state = load(_reach.path, os.environ)


def load(path: Path | None, environ: Mapping[str, str]) -> State:
    """Returns the state of a configuration file: `path`, else the one that `find` finds, else of none.

    `environ` says where to look. Raises `ConfigError`.
    """
    source = find(path, environ)
    config = read(Document(source).read(), source.parent, None) if source else PackConfig()
    return State(
        version=version("oubliette"),
        cwd=os.getcwd(),
        entries=(*_own(), *(tool.entry for pack in config.local.values() for tool in pack.tools.values())),
        servers=dict.fromkeys(config.servers, DISCONNECTED),
        aliases=config.aliases,
        snippets=config.snippets,
        instructions=config.instructions,
        topics=config.topics,
        topics_folder=_data_dir(environ) / "topics",
        problems=config.problems,
        packs={**dict.fromkeys(config.local, LOCAL), **dict.fromkeys(config.servers, PROXY)},
    )


def _own() -> Iterator[Entry]:
    functions = {name: getattr(ot_pack, name) for name in ot_pack.__all__}
    return (
        entry_of(f"{ot_pack.pack}.{name}", function)
        for name, function in functions.items()
        if inspect.isfunction(function)
    )


def _data_dir(environ: Mapping[str, str]) -> Path:
    """The daemon's data directory: its topics are these."""
    if environ.get("OUBLIETTE_DATA_DIR"):
        return Path(environ["OUBLIETTE_DATA_DIR"])
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "oubliette"
