"""The search for a weight that is not finite, in a thread, once a request has failed by one.

Owns the requests' last deltas until the search has ended, so that their errors name the weight. The
requests have ended by then and hold nothing, so that others are not delayed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from quire.core.messages import RequestDelta
from quire.processes import try_start
from quire.scheduler.request_outputs import NON_FINITE

logger = logging.getLogger(__name__)

SEARCH_SECONDS = 20.0  # after which requests end without its outcome


class WeightSearch:
    """Runs `find` at the first failure, and never again.

    find: describes a weight that is not finite, with what to do; "" if there is none. None: nobody
    looks for one.
    """

    def __init__(self, find: Callable[[], str] | None) -> None:
        self._find = find
        self._thread: threading.Thread | None = None
        self._due = 0.0  # monotonic seconds
        self._held: list[RequestDelta] = []
        self.fault = ""  # what was found

    @property
    def holds_any(self) -> bool:
        """Whether deltas wait for the outcome."""
        return bool(self._held)

    def clear(self) -> None:
        """Drop the deltas."""
        self._held.clear()

    def filter(self, deltas: list[RequestDelta]) -> list[RequestDelta]:
        """Hold back the deltas of requests with numbers that are not finite; returns the others."""
        if all(delta.error != NON_FINITE for delta in deltas) or not self._is_started():
            return deltas
        self._held += [delta for delta in deltas if delta.error == NON_FINITE]
        return [delta for delta in deltas if delta.error != NON_FINITE]

    def release(self, request_ids: Collection[str]) -> list[RequestDelta]:
        """The deltas of requests that are aborted: their callers do not wait for the outcome."""
        released = [delta for delta in self._held if delta.request_id in request_ids]
        self._held = [delta for delta in self._held if delta.request_id not in request_ids]
        return released

    def take(self, timeout: float) -> list[RequestDelta]:
        """The deltas that were held back, once the search has ended; waits for it so long."""
        assert self._thread is not None
        self._thread.join(timeout)
        if self._thread.is_alive() and time.monotonic() < self._due:
            return []
        deltas, self._held = self._held, []
        for delta in deltas:
            delta.error = self.fault or delta.error
        return deltas

    def _is_started(self) -> bool:
        """Whether the search runs, which this starts unless the system has no thread left."""
        if self._thread is None:
            self._due = time.monotonic() + SEARCH_SECONDS
            self._thread = try_start(self._run, "quire-weights")
        return self._thread is not None

    def _run(self) -> None:
        if self._find is not None and (found := self._find()):
            self.fault = f"the model computes non-finite numbers, because {found}"
            logger.error("%s", self.fault)
