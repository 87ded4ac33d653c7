"""How a transport may cut the same bytes: a decoder must not notice (h11's `tr`)."""

from __future__ import annotations


def cuttings(data: bytes) -> list[list[bytes]]:
    """Returns `data` whole, byte by byte, and in two pieces at every place."""
    in_two = [[data[:place], data[place:]] for place in range(1, len(data))]
    return [[data] if data else [], [data[place : place + 1] for place in range(len(data))], *in_two]
