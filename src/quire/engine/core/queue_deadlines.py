"""When waiting requests are given up. Owns the clock's part of it; the scheduler has none."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable


class QueueDeadlines:
    """Requests by the time at which they must have begun.

    clock: seconds that only go forward. Those that began or ended meanwhile are told as well.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heap: list[tuple[float, str]] = []

    def add(self, request_id: str, seconds: float | None) -> None:
        """Give a request so long from now; None: for ever."""
        if seconds is not None:
            heapq.heappush(self._heap, (self._clock() + seconds, request_id))

    def take_expired(self) -> list[str]:
        """Those whose time has come since the last call, in order."""
        expired: list[str] = []
        while self._heap and self._heap[0][0] <= self._clock():
            expired.append(heapq.heappop(self._heap)[1])
        return expired
