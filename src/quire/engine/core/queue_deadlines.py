"""Queue timeouts: which waiting requests have waited too long. The scheduler has no clock."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection

SPARE = 1024  # entries of requests that have ended, beside as many as there are requests


class QueueDeadlines:
    """A heap of request ids by the time at which they must have started to run.

    clock: monotonic seconds. Requests that have started or ended are reported as well, and must be
    ignored by the caller; of those that have ended there are never many more than of others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request_id: str, seconds: float | None, unfinished: Collection[str]) -> None:
        """Let a request wait for this many seconds from now; None: without a limit.

        unfinished: the ids of all requests that have not ended.
        """
        if seconds is None:
            return
        if len(self._heap) > 2 * len(unfinished) + SPARE:
            self._heap = [entry for entry in self._heap if entry[1] in unfinished]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (self._clock() + seconds, request_id))

    def take_expired(self) -> list[str]:
        """Ids whose deadline has passed since the last call, earliest first."""
        expired: list[str] = []
        while self._heap and self._heap[0][0] <= self._clock():
            expired.append(heapq.heappop(self._heap)[1])
        return expired
