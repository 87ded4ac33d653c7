"""What `ot` shows: to an agent what its session may call, to a principal what its scope may (WIRE section 10)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

import msgspec
import trio

import oubliette
from ot_pack.state import Entry, State
from oubliette.declarations import Declaration
from oubliette.log import span
from oubliette.packs.registry import Packs
from oubliette.packs.tools import shown
from oubliette.scopes import Scope

# What every agent has beside packs and its caller's tools (WIRE section 1, "Towards the agent").
AGENTS_OWN: Final = (
    Entry(
        name="session.message",
        signature="session.message(message=None, session_id=None)",
        description="Gives a task to an agent of your own, or goes on with one, and waits for what it says",
        source="local",
        args=("message: what it is asked to do", "session_id: the agent to go on with"),
    ),
    Entry(name="project.list", signature="project.list()", description="Returns your own project", source="local"),
)
# Declarations whose entries are remembered: one of 128 tools takes 10 ms. Each is a few KiB, and 4 MiB at most.
_REMEMBERED: Final = 8


def principal_state(packs: Packs, scope: Scope, allowed: Collection[str] | None) -> State:
    """Returns what a principal sees: the daemon's tools that its scope allows, and the packs `allowed` (None: all)."""
    own = [tool.shown for tool in packs.own.values() if scope.allows(tool.access, tool.target)]
    return _state(packs, own, allowed, is_whole=scope.project_id is None)


def agent_state(
    packs: Packs, ot: Iterable[Entry], allowed: Collection[str], declaration: Declaration | None, cwd: str
) -> State:
    """Returns what an agent without a key sees: what it may call of `ot`, its caller's tools, and the packs of its
    project; it works in the folder `cwd`.
    """
    own = [*ot, *AGENTS_OWN, *(caller_entries(declaration.source) if declaration else ())]
    return _state(packs, own, allowed, is_whole=False, cwd=cwd)


def _state(
    packs: Packs, own: Sequence[Entry], allowed: Collection[str] | None, *, is_whole: bool, cwd: str | None = None
) -> State:
    offer = packs.offer
    config = offer.settings.config
    visible = {name: kind for name, kind in offer.packs.items() if allowed is None or name in allowed}
    return State(
        version=oubliette.__version__,
        cwd=os.getcwd() if cwd is None else cwd,
        entries=(*own, *(tool.shown for tool in offer.tools.values() if tool.pack in visible)),
        servers={name: status for name, status in packs.upstreams.status.items() if is_whole or name in visible},
        aliases=dict(_visible(config.aliases, {entry.name for entry in own}, visible)),
        snippets=config.snippets,
        instructions=config.instructions,
        topics=config.topics,
        topics_folder=packs.topics_folder,
        problems=offer.problems if is_whole else {},
        packs=visible,
        span=span,
        # Every function of `ot` runs in a thread.
        reload=partial(trio.from_thread.run, packs.reload),
    )


def _visible(aliases: Mapping[str, str], own: Collection[str], packs: Collection[str]) -> Iterator[tuple[str, str]]:
    return ((name, to) for name, to in aliases.items() if to in own or to.partition(".")[0] in packs)


@lru_cache(maxsize=_REMEMBERED)
def caller_entries(source: bytes) -> tuple[Entry, ...]:
    """Returns the tools of a declaration, the text of one that was accepted, as `ot` shows them."""
    declared = msgspec.json.decode(source)
    return tuple(shown(f"{declared['caller_id']}.{tool['name']}", tool) for tool in declared["caller_tools"])
