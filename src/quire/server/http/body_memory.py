"""BodyMemory: bounds the bytes of request bodies, or of large answers, that one process holds.

A body is held from its first byte until its request is answered. request_gate.py bounds the number
of bodies and `max_body_bytes` the size of each; without a bound on their sum, a few thousand slow
large ones would be gigabytes. Used by one event loop.

The garbage collector counts objects, not bytes: a few reference cycles, each with a large body in
it, would be gigabytes before it runs. So it also runs after so many bytes.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable

import msgspec

from quire.errors import QueueFullError

# Of each body so much is not counted, as its connection buffers that anyway: usual requests are
# admitted even while large ones use up the limit.
FREE_BYTES = 64 << 10
# After this many counted bytes of bodies garbage is collected, which takes some milliseconds.
COLLECT_BYTES = 64 << 20
_YOUNG = 1  # generations of the collector that may hold what recent requests left


class BodyMemory:
    """Counts the bytes. limit: in bytes. retry_after: returns seconds for a refused client.

    what: the name of what is held. caller_limit: in bytes, of one caller; None: the same limit.
    """

    def __init__(
        self,
        limit: int,
        retry_after: Callable[[], float],
        what: str = "request bodies",
        caller_limit: int | None = None,
    ) -> None:
        self.num_bytes = 0
        self._of_callers: Counter[str] = Counter()
        self._num_released = 0  # since garbage was collected
        self._limit, self._caller_limit = limit, limit if caller_limit is None else caller_limit
        self._retry_after = retry_after
        self._what = what

    def take(self, num_bytes: int, caller: str = "") -> None:
        """Count in; raises QueueFullError with nothing counted."""
        whose, held, limit = "", self.num_bytes, self._limit
        if self._of_callers[caller] + num_bytes > self._caller_limit:
            whose, held, limit = " for this caller", self._of_callers[caller], self._caller_limit
        if held + num_bytes > limit:
            text = f"the server is full: it holds {held} bytes of {self._what} already{whose}"
            raise QueueFullError(
                f"{text}; send the request again later", retry_after=self._retry_after()
            )
        self.num_bytes += num_bytes
        self._of_callers[caller] += num_bytes

    def release(self, num_bytes: int, caller: str = "") -> None:
        """Count out."""
        self.num_bytes -= num_bytes
        self._of_callers[caller] -= num_bytes
        if not self._of_callers[caller]:
            del self._of_callers[caller]
        self._num_released += num_bytes
        if self._num_released >= COLLECT_BYTES:
            self._num_released = 0
            gc.collect(_YOUNG)


class BodySpace(msgspec.Struct, eq=False):
    """The bytes of one body. Leaving its `with` block releases them."""

    _memory: BodyMemory
    _caller: str = ""
    _num_bytes: int = 0

    def hold(self, num_bytes: int) -> None:
        """Count the bytes received so far. Raises QueueFullError."""
        more = num_bytes - FREE_BYTES - self._num_bytes
        if more > 0:
            self._memory.take(more, self._caller)
            self._num_bytes += more

    def __enter__(self) -> BodySpace:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.release(self._num_bytes, self._caller)
        self._num_bytes = 0
