"""Whether a session's owner listens, and until when a request may wait for it (WIRE section 3).

Plain state, asked with the time: who waits and what is cancelled is the relay's business.
"""

from __future__ import annotations

from math import inf


class Presence:
    """The owner's streams that carry one session: how many there are, and since when there are none.

    A poll counts while it waits and for a while after it returned ("Polling counts"): it lingers. Times are seconds
    on one monotonic clock. `attach_grace` is how long a request waits for the very first stream, `grace` how long one
    that is pending waits after the last stream was lost.
    """

    def __init__(self, *, attach_grace: float, grace: float) -> None:
        self._attach_grace = attach_grace
        self._grace = grace
        self._streams = 0
        self._lost_at = -inf
        self._lingers_until = -inf
        self._is_over = False
        self.was_ever = False

    @property
    def streams(self) -> int:
        return self._streams

    def attach(self) -> None:
        """Counts a stream in."""
        self._streams += 1
        self.was_ever = True

    def detach(self, now: float, linger: float = 0) -> None:
        """Counts a stream out, which goes on counting as open for `linger` seconds."""
        self._streams -= 1
        if linger:
            self._lingers_until = max(self._lingers_until, now + linger)
        if not self._streams:
            self._lost_at = now

    def end(self) -> None:
        """Says that the owner cannot come back: its token was revoked, or has expired. No stream counts any more."""
        self._is_over = self.was_ever = True

    def is_open(self, now: float) -> bool:
        """Whether a stream is open: one that is attached, or a poll that lingers."""
        return not self._is_over and (self._streams > 0 or now < self._lingers_until)

    def gone_at(self, now: float) -> float:
        """Returns when a request that is pending `now` is to be given up, should no stream come."""
        if self._is_over:
            return -inf
        if self._streams:
            return inf
        if not self.was_ever:
            return now + self._attach_grace
        return max(self._lost_at, self._lingers_until) + self._grace
