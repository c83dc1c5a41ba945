"""How many processor cores this process may use, and so how many threads are worth trying."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores, not their hardware threads, of the process's affinity and within its group's quota."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = physical_cores(os.sched_getaffinity(0), _CPUS)
    group = Path("/proc/self/cgroup").read_text() if Path("/proc/self/cgroup").exists() else ""
    return max(1, min(cores, int(cpu_quota(group, _CGROUPS))))


def physical_cores(cpus: Iterable[int], folder: Path) -> int:
    """How many cores these CPUs are, by the kernel's files in a folder. One each, without files."""
    cores = set()
    for cpu in cpus:
        siblings = folder / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        cores.add(siblings.read_text() if siblings.exists() else str(cpu))
    return len(cores)


def cpu_quota(groups: str, folder: Path) -> float:
    """CPUs' worth of time that control groups allow; a great many where there is no limit.

    groups: as /proc/self/cgroup tells them. folder: where their files are. In a container the
    group's own files are at the top.
    """
    quota = 1e9
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = folder if not controllers else folder / "cpu"
        place = top / path.lstrip("/")
        for group in (place, *place.parents):
            quota = min(quota, _quota_of(group))
            if group == top:
                break
    return quota


def _quota_of(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():
            allowed, period = (group / "cpu.max").read_text().split()
        else:
            allowed = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return 1e9
    return 1e9 if allowed in ("max", "-1") else int(allowed) / int(period)
