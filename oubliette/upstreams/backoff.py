"""How long to wait before the next try to connect."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

# In seconds. A server that was killed and started again is back before anybody asks; one that cannot start costs a
# process, or a connection, every so often.
FIRST: Final = 0.25
LONGEST: Final = 15.0
# A connection that stood so long was a good one: the next wait is short again.
HEALTHY: Final = 30.0


class Backoff:
    """Doubles from FIRST to LONGEST, each wait between half of it and the whole, so that servers do not keep step."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._next = FIRST

    def after(self, stood: float) -> float:
        """Returns how many seconds to wait after a connection that stood `stood` seconds, 0 for none at all."""
        if stood >= HEALTHY:
            self._next = FIRST
        wait, self._next = self._next, min(2 * self._next, LONGEST)
        return wait * (1 + self._chance()) / 2
