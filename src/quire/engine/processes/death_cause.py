"""Cause of an engine process's death: its requests, or somebody from outside.

A request whose steps kill engines must not kill one after another; but requests that merely ran
when a process was killed (by an administrator, an orchestrator, for another's memory) go on.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from pathlib import Path

from quire.processes import stat_fields

# What a process does to itself by a fault of its own code; other signals are sent by others.
FAULTS = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP,
    signal.SIGSYS,
}  # fmt: skip


# From the kernel's kill of a process for lack of memory to its end: its pages are freed meanwhile
SECONDS_TO_END = 10.0


class DeathCause:
    """Evidence on one engine process's death. Call `watch` now and then while it lives."""

    def __init__(self) -> None:
        self._kills = deque([(time.monotonic(), num_memory_kills())])  # when, and how many by then
        self._has_hung = self._was_stopped = False

    def watch(self) -> None:
        """Note the kernel's kills for lack of memory long before the death, which explain others.

        Later ones may be this process's, which takes a while to end.
        """
        now = time.monotonic()
        self._kills.append((now, num_memory_kills()))
        while len(self._kills) > 1 and self._kills[1][0] <= now - SECONDS_TO_END:
            self._kills.popleft()

    def hung(self, pid: int) -> None:
        """The process is about to be killed, as it gives no sign of life."""
        self._has_hung, self._was_stopped = True, is_stopped(pid)

    def is_outside(self, status: int, *, had_work: bool) -> bool:
        """Whether no request can have caused it. status: as of subprocess; had_work: at its end."""
        if self._has_hung:
            return self._was_stopped
        if not had_work:
            return True
        if status >= 0 or -status in FAULTS:
            return False
        return num_memory_kills() == self._kills[0][1]  # else the step may have taken the memory


def num_memory_kills() -> int:
    """Processes that the kernel has killed for lack of memory, of all users; 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped the process, as with SIGSTOP or a debugger; Linux only."""
    try:
        return stat_fields(pid)[0] in ("T", "t")
    except OSError:
        return False
