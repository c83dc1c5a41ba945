"""Memory and processor cores that this process may use. No torch.

Control groups bound both; the files of their first and second version are read. In a container the
group's own files are at the top of the folder, wherever the group is outside.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from quire.errors import ConfigError

FOLDER = Path("/sys/fs/cgroup")
MOST_THREADS = 4  # that may be asked for, for each of the machine's cores
UNLIMITED = 1 << 60  # bytes; the first version has a larger number where there is no limit
_MEMINFO = Path("/proc/meminfo")
_CPUS = Path("/sys/devices/system/cpu")


def available_bytes() -> int:
    """Memory that can be had without swapping: of the machine, within this process's groups.

    The page cache counts, since it is given up on demand.
    """
    return min(_free_bytes(), memory_left(own_groups()))


def most_bytes() -> int:
    """Memory and swap that could be had if all else gave way; UNLIMITED where that is not known."""
    memory, swap = _meminfo("MemTotal"), _meminfo("SwapTotal") or 0
    return min(memory or UNLIMITED, memory_limit(own_groups())) + swap


def usable_cores() -> int:
    """Cores, not their hardware threads, of the process's affinity and within its group's quota."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = physical_cores(os.sched_getaffinity(0), _CPUS)
    return max(1, min(cores, int(cpu_quota(own_groups()))))


def check_threads(asked: int) -> None:
    """Raise ConfigError for far more threads than there are cores."""
    most = MOST_THREADS * (os.cpu_count() or 1)
    if asked > most:
        raise ConfigError(f"threads must be at most {most} ({MOST_THREADS} per core), not {asked}")


def physical_cores(cpus: Iterable[int], folder: Path) -> int:
    """The number of cores of these CPUs, by the kernel's files; without files, one each."""
    cores = set()
    for cpu in cpus:
        siblings = folder / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        cores.add(siblings.read_text() if siblings.exists() else str(cpu))
    return len(cores)


def _free_bytes() -> int:
    """Free memory of the machine, in bytes."""
    found = _meminfo("MemAvailable")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 if found is None else found


def _meminfo(name: str) -> int | None:
    """A line of the kernel's file, in bytes; None where there is none."""
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def own_groups() -> str:
    """This process's groups, a line for each hierarchy; empty where there are none."""
    file = Path("/proc/self/cgroup")
    return file.read_text() if file.exists() else ""


def cpu_quota(listed: str, folder: Path = FOLDER) -> float:
    """CPUs' worth of time that the groups allow; 1e9 where there is no limit.

    listed: as `own_groups` returns them. folder: where their files are.
    """
    return min((_quota_of(group) for group in _groups(listed, "cpu", folder)), default=1e9)


def memory_left(listed: str, folder: Path = FOLDER) -> int:
    """Bytes that the groups still allow; the page cache counts, since it gives way."""
    left = (_memory_left_in(group) for group in _groups(listed, "memory", folder))
    return min(left, default=UNLIMITED)


def memory_limit(listed: str, folder: Path = FOLDER) -> int:
    """The lowest limit of the groups, in bytes; UNLIMITED where there is none."""
    return min(map(_memory_limit_of, _groups(listed, "memory", folder)), default=UNLIMITED)


def _groups(listed: str, controller: str, folder: Path) -> Iterator[Path]:
    """The folders of the groups that bound a controller, inner ones first."""
    for line in listed.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = folder / controller if controllers else folder
        own = top / path.lstrip("/")
        for group in (own, *own.parents):
            yield group
            if group == top:
                break


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


def _memory_limit_of(group: Path) -> int:
    is_new = (group / "memory.max").exists()
    try:
        limit = (group / ("memory.max" if is_new else "memory.limit_in_bytes")).read_text().strip()
    except OSError:
        return UNLIMITED
    return UNLIMITED if limit == "max" else min(int(limit), UNLIMITED)


def _memory_left_in(group: Path) -> int:
    is_new, limit = (group / "memory.max").exists(), _memory_limit_of(group)
    if limit == UNLIMITED:
        return UNLIMITED
    try:
        used = int((group / ("memory.current" if is_new else "memory.usage_in_bytes")).read_text())
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return UNLIMITED
    cached = sum(int(counts.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, limit - used + cached)
