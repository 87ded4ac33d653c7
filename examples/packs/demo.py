"""A local pack: name this file under `packs:` in the configuration, and its functions are tools.

Annotations become the schema of a tool's arguments, the docstring what is said of them. A function may block, it runs
in a thread of its own; an async one runs under trio.
"""

from __future__ import annotations

import difflib
from typing import Annotated

import trio
from msgspec import Meta

pack = "demo"
__all__ = ["diff", "wait"]


def diff(before: str, after: str, context: Annotated[int, Meta(ge=0, le=100)] = 3) -> str:
    """Compare two texts line by line.

    Args:
        before: The text as it was
        after: The text as it is
        context: How many unchanged lines are shown around a change
    """
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=context)
    return "\n".join(lines) or "no difference"


async def wait(seconds: Annotated[float, Meta(ge=0, le=50)], reminder: str = "") -> dict[str, object]:
    """Wait, for a build for one, and be reminded of what comes next.

    Args:
        seconds: How long
        reminder: What to come back to
    """
    started = trio.current_time()
    await trio.sleep(seconds)
    return {"waited_seconds": round(trio.current_time() - started, 3), "reminder": reminder}
