"""Agents step back for the daemon that relays for all of them.

Where many agents compute, whoever is woken waits for its turn among them, and an answer on its way is woken six times.
The daemon needs little of the processors, but with no more right to them than any one of 50 agents it waits for all the
others: its p99 was 5 to 15 times as long. So each has a third of its right. As long as somebody idles this costs
nothing.

Linux divides processors among control groups; outside of those among sessions of processes (sched(7), "the autogroup
feature"), where nice values count only within one; and only without these by nice values. So an agent is told all
three, of which one counts.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

NICE: Final = 10
# What a nice value of 5 comes to beside 0, for control groups: of 1024 in version 1, of 100 in version 2.
SHARES: Final = 110
WEIGHT: Final = 11


def step_back(pid: int) -> None:
    """Lowers the priority of a process that has just been started with a session of its own, and so of all its own.

    Never raises: what cannot be lowered stays.
    """
    # It has ended already.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
    # There are no autogroups; or this is not root, which alone may change them more often than every 0.1 s.
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(NICE))
