"""Wall-clock time as the wire writes it. Deadlines never use it: they are trio's, which wall jumps do not move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def now() -> str:
    """Returns the time as RFC 3339 UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_from_now(seconds: float) -> str:
    """Returns the time in `seconds` as RFC 3339 UTC."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
