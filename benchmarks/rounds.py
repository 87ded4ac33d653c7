"""Measurements in rounds: medians, how far they strayed, and the table that shows them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from benchmarks.load import Measurement


class Row(msgspec.Struct, frozen=True):
    """One system at one level: medians over the rounds, and how far the CPU per call strayed from its own."""

    calls_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_call: float
    cpu_spread: float
    load_cpu_us_per_call: float

    @property
    def cpu_share(self) -> float:
        """The share of one core that the system took."""
        return self.calls_per_second * self.cpu_us_per_call / 1e6


def summary(rounds: Sequence[Measurement]) -> Row:
    """Returns the medians of one system's rounds at one level."""
    cpu = [one.cpu_us_per_call for one in rounds]
    return Row(
        calls_per_second=statistics.median(one.calls_per_second for one in rounds),
        p50_ms=statistics.median(one.p50_ms for one in rounds),
        p99_ms=statistics.median(one.p99_ms for one in rounds),
        cpu_us_per_call=statistics.median(cpu),
        cpu_spread=(max(cpu) - min(cpu)) / 2 / statistics.median(cpu),
        load_cpu_us_per_call=statistics.median(one.load_cpu_us_per_call for one in rounds),
    )


def line(title: str, cells: Sequence[str]) -> str:
    """Returns one line of a table."""
    return f"{title:<34}" + "".join(f"{cell:>13}" for cell in cells)


def judge(what: str, share: float, bound: float) -> str:
    """Returns the verdict on a p99 that shall be less than `bound` times another."""
    return f"p99 of {what}: {share:.2f} times as long, of less than {bound:g}: {'met' if share < bound else 'MISSED'}"
