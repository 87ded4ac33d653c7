"""What there is, as the `ot` functions see it: one `State`, bound for the time of a call.

The daemon builds a `State` of what the asker may see and binds it. Where none is bound, the configuration in reach is
read (`ot_pack.standalone`), so that the package works by itself.

The records of this package are named tuples: `import dataclasses` alone takes a third of what `import ot_pack` may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from ot_pack.snippets import Snippet
    from ot_pack.topics import Topic

CONNECTED: Final = "connected"
DISCONNECTED: Final = "disconnected"
LOCAL: Final = "local"
PROXY: Final = "proxy"

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Entry(NamedTuple):
    """A tool as it is shown: `name` is `pack.tool`, `source` is `local` or `proxy:{server}` (WIRE section 10).

    `args` are `"name: description"`, in the order of the signature.
    """

    name: str
    signature: str
    description: str
    source: str
    args: tuple[str, ...] = ()

    @property
    def pack(self) -> str:
        """What comes before the first dot of the name."""
        return self.name.partition(".")[0]

    @property
    def tool(self) -> str:
        """What comes after the first dot of the name."""
        return self.name.partition(".")[2]


@contextmanager
def log_span(name: str) -> Iterator[None]:
    """A span for who has no other: a debug line of the logger `ot_pack` at its end, with the field `span`."""
    outcome = "failed"
    try:
        yield
        outcome = "ended"
    finally:
        # Not at the top: `import ot_pack` is to take less than 60 ms, and logging is 10 of them.
        import logging

        logging.getLogger("ot_pack").debug("%s %s", name, outcome, extra={"span": name})


def _reload_standalone() -> None:
    from ot_pack.standalone import reload

    reload()


# Apart from `State`, which has a dictionary for its cached properties.
class _Parts(NamedTuple):
    version: str
    cwd: str
    entries: tuple[Entry, ...] = ()
    servers: Mapping[str, str] = _NONE
    aliases: Mapping[str, str] = _NONE
    snippets: Mapping[str, Snippet] = _NONE
    instructions: Mapping[str, str] = _NONE
    topics: tuple[Topic, ...] = ()
    topics_folder: Path | None = None
    problems: Mapping[str, str] = _NONE
    packs: Mapping[str, str] = _NONE
    span: Callable[[str], AbstractContextManager[object]] = log_span
    reload: Callable[[], None] = _reload_standalone


class State(_Parts):
    """Everything that one asker sees.

    `servers`: the proxied servers by name, each `connected` or `disconnected`. `aliases`: name to target (`pack.tool`).
    `instructions`: pack to text. `topics_folder`: below it lie the files of the topics. `problems`: what is broken and
    why, as `ot.health` tells it. `packs`: those that have no tool at the moment, with their source.

    `span` makes the log span of a call. `reload` reads the configuration again; where that is bad, it raises
    `ot_pack.document.ConfigError` and nothing has changed.
    """

    @cached_property
    def by_name(self) -> Mapping[str, Entry]:
        """The tools by their names."""
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def by_pack(self) -> Mapping[str, tuple[Entry, ...]]:
        """The tools of each pack, the packs in the order of their first tool, those without any at the end."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.pack, []).append(entry)
        return {pack: tuple(found.get(pack, ())) for pack in (*found, *self.packs)}


_bound: Final[ContextVar[State | None]] = ContextVar("ot_pack_state", default=None)


@contextmanager
def bound(state: State) -> Iterator[State]:
    """Makes `state` the current one for the block: for this task and those that it starts within."""
    token = _bound.set(state)
    try:
        yield state
    finally:
        _bound.reset(token)


def current() -> State:
    """Returns the bound state, else that of the configuration in reach.

    Raises `ot_pack.document.ConfigError` where that configuration is bad.
    """
    state = _bound.get()
    if state is not None:
        return state
    # Not at the top: it reads YAML, and `ot_pack.state` is imported by what it needs itself.
    from ot_pack.standalone import state as state_in_reach

    return state_in_reach()
