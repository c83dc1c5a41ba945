"""How many processor cores this process may use, and so how many threads are worth trying."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from quire.engine.startup.cgroups import cpu_quota, own_groups

_CPUS = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Cores, not their hardware threads, of the process's affinity and within its group's quota."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = physical_cores(os.sched_getaffinity(0), _CPUS)
    return max(1, min(cores, int(cpu_quota(own_groups()))))


def physical_cores(cpus: Iterable[int], folder: Path) -> int:
    """How many cores these CPUs are, by the kernel's files in a folder. One each, without files."""
    cores = set()
    for cpu in cpus:
        siblings = folder / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        cores.add(siblings.read_text() if siblings.exists() else str(cpu))
    return len(cores)
