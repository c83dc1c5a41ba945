"""Liveness of a child process, as its supervisor sees it: heartbeats, progress, deaths in a row."""

from __future__ import annotations

import os
import time
from pathlib import Path

from quire.processes import processor_ticks

NOTE_SECONDS = 30.0  # without progress, until the log says so
_SYSTEM_FOLDERS = ("/dev/", "/proc/", "/sys/", "/memfd:")

MAX_DEATHS = 5  # of a process in a row
BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0, 4.0)  # before a restart, by deaths in a row
STEADY_SECONDS = 10.0  # after serving this long, a death starts a new count
# Where the system has no process for a restart: nothing is wrong with what would run in it, and
# its requests wait.
LACK_SECONDS = 60.0  # until giving up
LACK_PAUSE = 2.0  # between two attempts


class Silence:
    """Seconds without a heartbeat of a process, counted while its supervisor itself ran.

    When all processes were stopped (docker pause), the last heartbeat is as old as that pause, but
    the process is as healthy as before. hang: seconds after which it has hung; 0: never. tick:
    seconds between two looks.
    """

    def __init__(self, hang: float) -> None:
        self.tick = min(1.0, hang / 10) if hang else 1.0
        self._most = 2 * self.tick  # that one look adds
        self._last = time.monotonic()
        self._seconds = 0.0

    def seconds(self, age: float) -> float:
        """The seconds of silence. age: seconds since the last heartbeat."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        self._seconds = min(age, self._seconds + min(passed, self._most))
        return self._seconds


class LoadProgress:
    """The time without progress of a process that starts and loads a model.

    All work of a load takes processor time, also that of a slow disk's driver; a process that waits
    for storage that does not answer takes none. Linux only: elsewhere each look counts as progress.
    limit: seconds until it counts as hung.
    """

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


class Deaths:
    """Deaths of one process after another, and restarts that the system had no process for."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._lacking_since: float | None = None

    def add(self, *, was_steady: bool) -> None:
        """Count a death. was_steady: the process has served for a while, so the count is new."""
        self._in_a_row = 1 if was_steady else self._in_a_row + 1
        self._lacking_since = None

    def add_lack(self) -> None:
        """Note that no process could be started."""
        self._lacking_since = self._lacking_since or time.monotonic()

    @property
    def are_too_many(self) -> bool:
        """Whether to give up."""
        if self._lacking_since is not None:
            return time.monotonic() - self._lacking_since >= LACK_SECONDS
        return self._in_a_row >= MAX_DEATHS

    @property
    def summary(self) -> str:
        """The predicate of a sentence that says why to give up."""
        if self._lacking_since is not None:
            return f"could not be started again for {LACK_SECONDS:.0f} s"
        return f"died {self._in_a_row} times in a row"

    @property
    def pause(self) -> float:
        """Seconds before the next start."""
        return (
            LACK_PAUSE if self._lacking_since is not None else BACKOFF_SECONDS[self._in_a_row - 1]
        )
