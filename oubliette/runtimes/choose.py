"""Which runtime agents are run in: the one that is configured, or the strongest that works here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import takewhile
from typing import Final, Literal

import trio
from msgspec import Struct

from oubliette.errors import InternalError
from oubliette.log import get as get_logger
from oubliette.runtimes.base import Kind, Runtime, Settings
from oubliette.runtimes.bubblewrap import remove_left_groups
from oubliette.runtimes.container import remove_left
from oubliette.runtimes.process import ProcessRuntime
from oubliette.runtimes.trial import Examined, examine

# The strongest first.
STRENGTH: Final[tuple[Kind, ...]] = ("podman", "docker", "bubblewrap", "process")

log = get_logger(__name__)


class Choice(Struct, frozen=True, kw_only=True):
    """The runtime of projects that name none, and all that they may name, by name."""

    runtime: Runtime
    runtimes: Mapping[str, Runtime]


async def choose(kind: Literal["auto"] | Kind, settings: Settings) -> Choice:
    """Returns what agents are run in, found out by running a program in each candidate, all at once.

    Of a kind that the operator named there is no way around: it alone is to be had. Raises `InternalError`, in words
    for the operator, where it does not work here.
    """
    examined = await examine_all(STRENGTH if kind == "auto" else (kind,), settings)
    runtimes: dict[str, Runtime] = {one.kind: one.runtime for one in examined if one.runtime is not None}
    if not runtimes:
        raise InternalError(f"runtime.kind: {kind} does not work here: {examined[0].lacks}")
    runtime = next(iter(runtimes.values()))
    stronger = takewhile(lambda one: one.runtime is None, examined)
    passed_over = {one.kind: str(one.lacks) for one in stronger}
    log.info("runtime chosen", runtime=runtime.name, passed_over=passed_over, warnings=runtime.warnings)
    return Choice(runtime=runtime, runtimes=runtimes)


async def examine_all(kinds: tuple[Kind, ...], settings: Settings) -> list[Examined]:
    """Tries out several kinds of runtime at the same time. Returns what is known of each, in the same order."""
    found: dict[Kind, Examined] = {}

    async def look(kind: Kind) -> None:
        found[kind] = await examine(kind, settings)

    async with trio.open_nursery() as nursery:
        for kind in kinds:
            nursery.start_soon(look, kind)
    return [found[kind] for kind in kinds]


async def clean(choice: Choice, settings: Settings) -> None:
    """Removes what a crashed daemon of the same data directory left, in runtimes that are not to be had now too.

    What the choice's runtimes have open stays, so it may run beside sessions.
    """
    cleaners: list[Callable[[], Awaitable[None]]] = [runtime.clean for runtime in choice.runtimes.values()]
    for kind in STRENGTH:
        if kind not in choice.runtimes:
            cleaners.append(_cleaner(kind, settings))
    async with trio.open_nursery() as nursery:
        for cleaner in cleaners:
            nursery.start_soon(cleaner)


def _cleaner(kind: Kind, settings: Settings) -> Callable[[], Awaitable[None]]:
    """Returns what removes the leavings of a runtime that does not work here, or was not asked for."""
    match kind:
        case "process":
            return ProcessRuntime(settings).clean
        case "bubblewrap":
            return partial(remove_left_groups, settings.data_dir)
        case _:
            return partial(remove_left, kind, settings.data_dir)
