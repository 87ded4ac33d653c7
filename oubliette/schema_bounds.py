"""What it can cost to check arguments against a caller's schema, known before it is tried (HAZARDS T24, T25).

jsonschema-rs keeps the GIL until it is done and cannot be interrupted: a check that takes a minute stops the daemon for
a minute, and one that nests too deep overflows the stack and ends it. So the cost is bounded from above beforehand.

At declaration, `bounds_of` adds up the places of the survey, unrolled along their routes: what one value can cost at
each depth below the arguments. What has no usable bound is opaque: accepted, not evaluated. At a call,
`Bounds.cost` multiplies that by the number of values in the arguments, which `measure` counts without parsing them.

It is an upper bound for two reasons. All subschemas that are tried on the same value count, though `anyOf` may stop at
the first. And of those that are tried on different members of an object, or items of an array, the dearest counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import Final, NamedTuple, TypeAlias

from oubliette.protocol.nesting import MAX_DEPTH, too_deep
from oubliette.schema_survey import SUBSCHEMA_COST, Place, Route, Survey

# What one check may take (ns), so that a call stalls the daemon for less than the 50 ms of HAZARDS T24.
MAX_CHECK_COST: Final = 40_000_000
# ARCHITECTURE, traps: "over 10,000 … the schema is passed on but not evaluated".
MAX_IN_PLACE: Final = 10_000
# Subschemas nested in place, through references too: each takes stack, `MAX_DEPTH` times over. In 8 MiB, 200 fitted
# and 400 ended the process.
MAX_CHAIN: Final = 64
# Steps (some 0.2 µs) that adding up one schema may take. Where they end, deeper arguments are not evaluated.
MAX_STEPS: Final = 50_000
# Larger arguments (bytes), or with more quotation marks, are not even measured.
MAX_MEASURED: Final = 2**20
MAX_QUOTES: Final = 2**17

# Nanoseconds. A million `[]` took 1.5 s to read.
READ_VALUE_COST: Final = 700
READ_BYTE_COST: Final = 10
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

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# A regular expression takes 90 ns for each digit; these tables turn the question into one for `in`.
_DIGITS: Final = bytes(ord("0") if chr(b) in "0123456789." else ord(" ") for b in range(256))
_LONG_INTEGER: Final = b"0" * 16
_MANY_DIGITS: Final = b"0" * 25
_EXPONENTS: Final = bytes.maketrans(b"E13456789", b"e02222222")
_GREAT: Final = (b"e20", b"e22", b"e000", b"e002", b"e020", b"e022")


class UnboundedError(Exception):
    """The schema cannot be evaluated within bounds; the message says why."""


class Measure(NamedTuple):
    """What counts about a JSON text, found without parsing it.

    `structure` is the text without its strings, `value_count` how many values it holds at most. Unusual numbers have 25
    digits or more, or an exponent beyond 19; long ones 16 digits or more.
    """

    size: int
    structure: bytes
    value_count: int
    has_unusual_numbers: bool
    has_long_numbers: bool


def measure(text: bytes) -> Measure | None:
    """Returns what counts about `text`, None where it is too large to look through."""
    if len(text) > MAX_MEASURED or text.count(b'"') > MAX_QUOTES:
        return None
    structure = _STRING.sub(b"", text)
    count = structure.count(b",") + structure.count(b"[") + structure.count(b"{") + 1
    digits = structure.translate(_DIGITS)
    is_unusual = _MANY_DIGITS in digits or _has_great_exponent(structure)
    return Measure(len(text), structure, count, is_unusual, _LONG_INTEGER in digits)


def _has_great_exponent(structure: bytes) -> bool:
    exponents = structure.translate(_EXPONENTS, b"+-")
    return b"e" in exponents and any(mark in exponents for mark in _GREAT)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one value can cost at each depth below the arguments; nothing is evaluated below the last.

    `values` in ns, `string_bytes` in ns for each byte of a string, `unique_items` in evaluations of `uniqueItems`. All
    are multiplied by `factor`. `has_branches`: there is an `anyOf` or `oneOf`.
    """

    values: list[float]
    string_bytes: list[float]
    unique_items: list[float]
    factor: int
    has_branches: bool

    def cost(self, arguments: Measure) -> float:
        """Returns the most (ns) that it can take to read and check the arguments."""
        alike = any(self.unique_items) and arguments.has_long_numbers
        factor = self.factor * (UNUSUAL_FACTOR if alike or arguments.has_unusual_numbers else 1)
        cost = factor * self._cost(arguments, MAX_DEPTH)
        return cost if cost <= MAX_CHECK_COST else factor * self._cost(arguments, _depth(arguments.structure))

    def explanation_cost(self, arguments: Measure) -> float:
        """Returns the most (ns) that it can take to say why the arguments, checked already, do not fit."""
        copies = self._evaluation(arguments.value_count, MAX_DEPTH) / SUBSCHEMA_COST if self.has_branches else 1
        return copies * (COPY_VALUE_COST * arguments.value_count + COPY_BYTE_COST * arguments.size)

    def _cost(self, arguments: Measure, depth: int) -> float:
        reading = READ_VALUE_COST * arguments.value_count + READ_BYTE_COST * arguments.size
        strings = arguments.size * max(self.string_bytes[: depth + 1])
        pairs = arguments.value_count * (arguments.value_count + PAIRS_OF_FEW) * sum(self.unique_items[: depth + 1])
        return reading + strings + PAIR_COST * pairs + self._evaluation(arguments.value_count, depth)

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
        profile.of([place.value_cost for place in survey.places]),
        profile.of([place.byte_cost for place in survey.places]),
        profile.of([place.unique_items for place in survey.places]),
        factor,
        survey.has_branches,
    )
    if factor * bounds.values[0] > MAX_CHECK_COST:
        raise UnboundedError("it takes too long to evaluate")
    return bounds


def _children_first(places: list[Place]) -> list[int]:
    """Returns the places with subschemas on the same value, each after those."""
    try:
        graph = {number: place.routes["same"] for number, place in enumerate(places) if "same" in place.routes}
        return [number for number in TopologicalSorter(graph).static_order() if number in graph]
    except CycleError:
        raise UnboundedError("it refers to itself in place") from None


def _check_in_place(places: list[Place], order: list[int]) -> None:
    counts, chains = [1] * len(places), [1] * len(places)
    for number in order:
        same = places[number].routes["same"]
        counts[number] = min(1 + sum(counts[child] for child in same), MAX_IN_PLACE + 1)
        chains[number] = 1 + max(chains[child] for child in same)
    if max(counts) > MAX_IN_PLACE:
        raise UnboundedError(f"it has more than {MAX_IN_PLACE} subschemas in place")
    if max(chains) > MAX_CHAIN:
        raise UnboundedError(f"it has subschemas nested deeper than {MAX_CHAIN} in place")


# The place that subschemas belong to, those of which one value meets only one, and those that every value meets.
_Meeting: TypeAlias = tuple[int, list[int], list[int]]


class _Profile:
    """Adds up places along their routes, once for each depth."""

    def __init__(self, places: list[Place], order: list[int]) -> None:
        self._same = [(number, places[number].routes["same"]) for number in order]
        self._members = list(_meetings(places, "member", "members"))
        self._items = list(_meetings(places, "item", "items"))
        steps = sum(len(children) for place in places for children in place.routes.values())
        self._max_depth = min(MAX_DEPTH, MAX_STEPS // (len(places) + steps))

    def of(self, weights: list[float]) -> list[float]:
        """Returns the most that the weights of all places can add up to for one value, at each depth."""
        here = self._on_same_value(weights)
        found = [here[0]]
        while any(here) and len(found) <= self._max_depth:
            here = self._one_deeper(here)
            found.append(here[0])
        return [*found, inf] if any(here) and self._max_depth < MAX_DEPTH else found

    def _one_deeper(self, below: list[float]) -> list[float]:
        """A value is an object or an array, never both."""
        members = self._on_same_value(_meet(below, self._members))
        items = self._on_same_value(_meet(below, self._items))
        return [max(pair) for pair in zip(members, items, strict=True)]

    def _on_same_value(self, weights: list[float]) -> list[float]:
        sums = weights.copy()
        for number, children in self._same:
            sums[number] += sum([sums[child] for child in children])
        return sums


def _meetings(places: list[Place], one: Route, every: Route) -> Iterator[_Meeting]:
    for number, place in enumerate(places):
        if one in place.routes or every in place.routes:
            yield number, place.routes.get(one, []), place.routes.get(every, [])


def _meet(below: list[float], meetings: list[_Meeting]) -> list[float]:
    met = [0.0] * len(below)
    for number, one, every in meetings:
        met[number] = max([below[child] for child in one], default=0) + sum([below[child] for child in every])
    return met


def _depth(structure: bytes) -> int:
    """Returns how deep a text nests, up to twice too much; `MAX_DEPTH` where it nests deeper than ours may."""
    return next((depth for depth in (2, 4, 8, 16, 32, 64) if not too_deep(structure, depth)), MAX_DEPTH)
