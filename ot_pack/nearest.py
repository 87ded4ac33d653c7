"""The answer to a name that nothing has: the names that there are, nearest first (WIRE section 10, "not found")."""

from __future__ import annotations

from collections.abc import Collection
from heapq import nlargest
from typing import Final

from ot_pack.flow import string

# WIRE section 10: "nearest first, at most 20".
MAX_SHOWN: Final = 20
# Of a name that was asked for: no name that anything has is longer, and what is longer is not worth comparing.
MAX_NAME_CHARACTERS: Final = 128
# How many are compared letter by letter: 0.1 ms each.
_COMPARED: Final = 3 * MAX_SHOWN


def not_found(kind: str, name: str, available: Collection[str]) -> str:
    """Returns `Error: {kind} '{name}' not found. Available: …` with at most `MAX_SHOWN` of the names, nearest first."""
    shown = name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:MAX_NAME_CHARACTERS]}…"
    names = ", ".join(map(string, nearest(name, available))) or "(none)"
    return f"Error: {kind} {shown!r} not found. Available: {names}"


def nearest(name: str, available: Collection[str]) -> list[str]:
    """Returns at most `MAX_SHOWN` of the names `available`, the one most like `name` first, whatever their case.

    Which ones is decided by the pairs of letters that they share with `name`, which is cheap, as it looks at the whole
    catalogue while everything else waits; their order by a comparison letter by letter. Equal ones keep their order.
    """
    # Not at the top, for a quick `import ot_pack`.
    from difflib import SequenceMatcher

    wanted = _comparable(name)
    pairs = _pairs(wanted)
    near = nlargest(_COMPARED, available, key=lambda other: _likeness(pairs, _pairs(_comparable(other))))
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)

    def ratio(other: str) -> float:
        matcher.set_seq1(_comparable(other))
        return matcher.ratio()

    return nlargest(MAX_SHOWN, near, key=ratio)


def _comparable(name: str) -> str:
    return name[:MAX_NAME_CHARACTERS].casefold()


def _likeness(one: set[str], other: set[str]) -> float:
    """Dice's coefficient: 1 for the same, 0 for nothing in common."""
    return 2 * len(one & other) / (len(one) + len(other))


def _pairs(name: str) -> set[str]:
    """The pairs of neighbouring letters, with white space for what is before the first and behind the last."""
    padded = f" {name} "
    return {padded[start : start + 2] for start in range(len(padded) - 1)}
