"""What the machine, or the part of it this process may use, has to offer."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path

__all__ = ["default_threads", "total_memory"]


@functools.lru_cache(maxsize=1)
def default_threads() -> int:
    """The number of physical cores this process may use.

    Counts the cores behind the CPUs in the process's affinity mask (two hyper-threads of a core share its
    arithmetic units, so a second thread there slows matrix products down) and respects a container's CPU
    quota.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {_core(cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota()))


def _core(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(cpu)


def _quota() -> int:
    """CPUs a Linux control group grants; a large number where there is no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return 1 << 16


def total_memory() -> int:
    """Bytes of memory this process could use at most: the machine's, or less where a container limits it."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return total
