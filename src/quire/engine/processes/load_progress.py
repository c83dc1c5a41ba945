"""Progress of a process that starts and loads a model, as its supervisor sees it.

All work of a load takes processor time, also that of a slow disk's driver; a process that waits for
storage that does not answer takes none. Linux only: elsewhere each look counts as progress.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from quire.engine.processes.silence import Silence
from quire.processes import processor_ticks

NOTE_SECONDS = 30.0  # without progress, until the log says so
_SYSTEM_FOLDERS = ("/dev/", "/proc/", "/sys/", "/memfd:")


class LoadProgress:
    """The time without progress of one process. limit: seconds until it counts as hung."""

    def __init__(self, pid: int, limit: float) -> None:
        self._pid = pid
        self._silence = Silence(limit)
        self.tick = self._silence.tick
        self._ticks = 0
        self._since = time.monotonic()

    def idle_seconds(self) -> float:
        """Seconds in which the process took no processor time, while its supervisor ran."""
        now, before = time.monotonic(), self._ticks
        try:
            self._ticks = processor_ticks(self._pid)
        except OSError:  # another system
            self._since = now
        if self._ticks != before:
            self._since = now
        return self._silence.seconds(now - self._since)


def open_files(pid: int) -> str:
    """The files that a process has open, as text for the log."""
    names = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            name = os.readlink(link)  # asks nothing of the storage, which may not answer
            if int(link.name) > 2 and name.startswith("/") and not name.startswith(_SYSTEM_FOLDERS):
                names.add(name)
    except OSError:  # another system, or it has ended
        pass
    return ", ".join(sorted(names)) or "no files"
