"""What a benchmark reads of processes and makes of figures. The load processes import it, so it imports no trio."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time, user and system, that all threads of process `pid` have used so far, in seconds."""
    # The name in parentheses may hold anything; utime and stime are fields 14 and 15 (proc_pid_stat(5)).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def own_cpu_seconds() -> float:
    """Returns the CPU time that this process has used so far, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memory_kib(pid: int, field: str = "VmRSS") -> int:
    """Returns the resident memory of process `pid` in KiB: `VmRSS` now, `VmHWM` at its highest (proc_pid_status(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise ValueError(f"/proc/{pid}/status has no {field}")


def percentile(ordered: list[float], share: float) -> float:
    """Returns the smallest of the `ordered` values that at least `share` (0 to 1) of them do not exceed."""
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def allow_descriptors(needed: int) -> None:
    """Lets this process, and those that it starts, open so many files. Raises `SystemExit` where it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        raise SystemExit(f"{needed} open files are needed; this shell allows {hard} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
