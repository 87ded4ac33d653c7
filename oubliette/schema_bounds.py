"""What it can cost to check arguments against a caller's schema, known before it is tried (HAZARDS T24, T25).

jsonschema-rs keeps the GIL until it is done and cannot be interrupted: a check that takes a minute stops the daemon for
a minute, and one that nests too deep overflows the stack and ends it. So the cost is bounded from above beforehand.

At declaration, `bounds_of` adds up the places of the survey, unrolled along their routes: what one value can cost at
each depth below the arguments. What has no usable bound is opaque: accepted, not evaluated. At a call,
`Bounds.estimate` multiplies that by the number of values in the arguments, which it counts without parsing them.

It is an upper bound for two reasons. All subschemas that are tried on the same value count, though `anyOf` may stop at
the first. And of those that are tried on different members of an object, or items of an array, the dearest counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final

from oubliette.protocol.nesting import MAX_DEPTH, too_deep
from oubliette.schema_survey import SUBSCHEMA_COST, Place, Route, Survey

# What one check may take (ns), so that a call stalls the daemon for less than the 50 ms of HAZARDS T24.
MAX_CHECK_COST: Final = 40_000_000
# ARCHITECTURE, traps: "over 10,000 … the schema is passed on but not evaluated".
MAX_IN_PLACE: Final = 10_000
# Subschemas nested in place, through references too: each takes stack, `MAX_DEPTH` times over. In 8 MiB, 200 fitted
# and 400 ended the process.
MAX_CHAIN: Final = 64
# Steps (some 0.5 µs) that adding up one schema may take. Where they end, deeper arguments are not evaluated.
MAX_STEPS: Final = 50_000

# Nanoseconds. A million `[]` took 1.5 s to read.
READ_VALUE_COST: Final = 700
READ_BYTE_COST: Final = 8
# `uniqueItems` compares up to 15 items each with each, and of more items those that hash alike: all nestings of empty
# arrays do. For n values that is at most n * (n + 400) times this.
PAIR_COST: Final = 100
PAIRS_OF_FEW: Final = 400
# To say why no branch of `anyOf` or `oneOf` fits, the engine copies the value for each: 10,000 values for 300 branches
# took 2 s.
COPY_VALUE_COST: Final = 700
COPY_BYTE_COST: Final = 1
# What numbers cost more that are compared as decimals of hundreds of digits, or that hash alike (integers past 2**53).
UNUSUAL_FACTOR: Final = 15
# The size of arguments (bytes) up to which strings are told from structure, where that may save the check.
MAX_LOOK_THROUGH: Final = 2**18

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_UNUSUAL: Final = re.compile(rb"[\s:,\[]-?(?:[0-9.]{25}|[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{2})")
_LONG_INTEGER: Final = re.compile(rb"[\s:,\[]-?[0-9]{16}")


class UnboundedError(Exception):
    """The schema cannot be evaluated within bounds; the message says why."""


def has_unusual_numbers(text: bytes) -> bool:
    """Says whether JSON holds a number of 25 digits or more, or one whose exponent has two."""
    return _UNUSUAL.search(text) is not None


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one value can cost at each depth below the arguments; nothing is evaluated below the last.

    `values` in ns, `string_bytes` in ns for each byte of a string, `unique_items` in evaluations of `uniqueItems`. All are
    multiplied by `factor`. `has_branches`: there is an `anyOf` or `oneOf`.
    """

    values: list[float]
    string_bytes: list[float]
    unique_items: list[float]
    factor: int
    has_branches: bool

    def estimate(self, arguments: bytes) -> float:
        """Returns the most (ns) that it can take to read and check `arguments`, JSON text of any size."""
        cost = self.factor * self._cost(arguments, len(arguments), MAX_DEPTH)
        if cost > MAX_CHECK_COST and len(arguments) <= MAX_LOOK_THROUGH:
            structure = _STRING.sub(b"", arguments)
            cost = self.factor * self._cost(structure, len(arguments), _depth(structure))
        if cost <= MAX_CHECK_COST and self._has_unusual_numbers(arguments):
            cost *= UNUSUAL_FACTOR
        return cost

    def estimate_explanation(self, arguments: bytes) -> float:
        """Returns the most (ns) that it can take to say why `arguments`, which are within bounds, do not fit."""
        count = _count(arguments)
        copies = (self._evaluation(count, MAX_DEPTH) / SUBSCHEMA_COST) if self.has_branches else 1
        return copies * (COPY_VALUE_COST * count + COPY_BYTE_COST * len(arguments))

    def _has_unusual_numbers(self, arguments: bytes) -> bool:
        alike = any(self.unique_items) and _LONG_INTEGER.search(arguments) is not None
        return alike or has_unusual_numbers(arguments)

    def _cost(self, structure: bytes, size: int, depth: int) -> float:
        count = _count(structure)
        pairs = PAIR_COST * count * (count + PAIRS_OF_FEW) * sum(self.unique_items[: depth + 1])
        strings = size * max(self.string_bytes[: depth + 1])
        return READ_VALUE_COST * count + READ_BYTE_COST * size + self._evaluation(count, depth) + strings + pairs

    def _evaluation(self, count: int, depth: int) -> float:
        root, *below = self.values[: depth + 1]
        return root + count * max(below, default=0)


def bounds_of(survey: Survey, factor: int) -> Bounds:
    """Returns the bounds of a surveyed schema; `factor` is `UNUSUAL_FACTOR` where its own numbers are unusual, else 1.

    Raises `UnboundedError`.
    """
    if survey.opaque_reasons:
        raise UnboundedError(survey.opaque_reasons[0])
    if len(survey.places) > MAX_IN_PLACE:
        raise UnboundedError(f"it has more than {MAX_IN_PLACE} subschemas")
    order = _children_first(survey.places)
    _check_in_place(survey.places, order)
    profile = _Profile(survey.places, order)
    bounds = Bounds(
        profile.of(lambda place: place.value_cost),
        profile.of(lambda place: place.byte_cost),
        profile.of(lambda place: place.unique_items),
        factor,
        survey.has_branches,
    )
    if bounds.estimate(b"{}") > MAX_CHECK_COST:
        raise UnboundedError("it takes too long to evaluate")
    return bounds


def _children_first(places: list[Place]) -> list[int]:
    """Returns the places ordered so that those on the same value come before the one that they belong to."""
    try:
        graph = {number: place.routes[Route.SAME] for number, place in enumerate(places)}
        return list(TopologicalSorter(graph).static_order())
    except CycleError:
        raise UnboundedError("it refers to itself in place") from None


def _check_in_place(places: list[Place], order: list[int]) -> None:
    counts, chains = [1] * len(places), [1] * len(places)
    for number in order:
        same = places[number].routes[Route.SAME]
        counts[number] = min(1 + sum(counts[child] for child in same), MAX_IN_PLACE + 1)
        chains[number] = 1 + max((chains[child] for child in same), default=0)
    if max(counts) > MAX_IN_PLACE:
        raise UnboundedError(f"it has more than {MAX_IN_PLACE} subschemas in place")
    if max(chains) > MAX_CHAIN:
        raise UnboundedError(f"it has subschemas nested deeper than {MAX_CHAIN} in place")


class _Profile:
    """Adds up places along their routes, once for each depth."""

    def __init__(self, places: list[Place], order: list[int]) -> None:
        self._places = places
        self._order = order
        steps = len(places) + sum(len(numbers) for place in places for numbers in place.routes.values())
        self._max_depth = min(MAX_DEPTH, MAX_STEPS // steps)

    def of(self, weigh: Callable[[Place], float]) -> list[float]:
        """Returns the most that `weigh` can add up to for one value, at each depth below the schema's own."""
        weights = [float(weigh(place)) for place in self._places]
        if not any(weights):
            return [0.0]
        here = self._sums(weights.copy(), weights)
        found = [here[0]]
        while any(here) and len(found) <= self._max_depth:
            here = self._one_deeper(here)
            found.append(here[0])
        return found if not any(here) or self._max_depth == MAX_DEPTH else [*found, float("inf")]

    def _one_deeper(self, below: list[float]) -> list[float]:
        members, items = [], []
        for place in self._places:
            members.append(_meet(below, place, Route.MEMBER, Route.MEMBERS))
            items.append(_meet(below, place, Route.ITEM, Route.ITEMS))
        return self._sums(members, items)

    def _sums(self, members: list[float], items: list[float]) -> list[float]:
        """Adds to each place what is on the same value. That is an object or an array, never both."""
        for number in self._order:
            for child in self._places[number].routes[Route.SAME]:
                members[number] += members[child]
                items[number] += items[child]
        return [max(pair) for pair in zip(members, items, strict=True)]


def _meet(below: list[float], place: Place, one: Route, every: Route) -> float:
    dearest = max((below[child] for child in place.routes[one]), default=0)
    return dearest + sum(below[child] for child in place.routes[every])


def _count(structure: bytes) -> int:
    """Returns how many values there are at most: each but the first follows a comma or an opening bracket."""
    return structure.count(b",") + structure.count(b"[") + structure.count(b"{") + 1


def _depth(structure: bytes) -> int:
    """Returns how deep a text nests, up to twice too much; `MAX_DEPTH` where it nests too deep to be JSON of ours."""
    return next((depth for depth in (2, 4, 8, 16, 32, 64) if not too_deep(structure, depth)), MAX_DEPTH)
