"""How long a process gives no sign of life, as its supervisor counts it."""

from __future__ import annotations

import time


class Silence:
    """How long a process has given no heartbeat while its supervisor itself ran.

    When all processes were stopped (docker pause), the last heartbeat is as old as that pause, but
    the process is as healthy as before. tick: seconds between two looks.
    """

    def __init__(self, tick: float) -> None:
        self._most = 2 * tick  # that one look adds
        self._last = time.monotonic()
        self._seconds = 0.0

    def seconds(self, age: float) -> float:
        """The seconds of silence. age: seconds since the last heartbeat."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        self._seconds = min(age, self._seconds + min(passed, self._most))
        return self._seconds
