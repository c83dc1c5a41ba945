"""Time without a sign of life of a process, as its supervisor counts it."""

from __future__ import annotations

import time


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
