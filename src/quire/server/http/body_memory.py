"""How many bytes of request bodies this process holds at once; one event loop's.

A body is held from its first byte until its request is answered, and most of its life it may be
half there. Its number is bounded elsewhere (request_gate.py), its size by `max_body_bytes`; without
a bound on all together, a few thousand slow large ones would be gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from quire.errors import QueueFullError

# Of each body so much is free, as its connection buffers that anyway: the usual request is let in
# also while large ones use everything up.
FREE_BYTES = 64 << 10


class BodyMemory:
    """Counts the bytes. retry_after: seconds until those who wait now will have begun."""

    def __init__(self, limit: int, retry_after: Callable[[], float]) -> None:
        self.num_bytes = 0
        self._limit = limit
        self._retry_after = retry_after

    def space(self) -> BodySpace:
        """Room for one body."""
        return BodySpace(self)

    def take(self, num_bytes: int) -> None:
        """Count in, or raise QueueFullError with nothing counted."""
        if self.num_bytes + num_bytes > self._limit:
            text = f"the server is full: it holds {self.num_bytes} bytes of request bodies already"
            raise QueueFullError(
                f"{text}; send the request again later", retry_after=self._retry_after()
            )
        self.num_bytes += num_bytes


class BodySpace:
    """What one body takes. Leaving its `with` block gives it back, however it ended."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._num_bytes = 0

    def hold(self, num_bytes: int) -> None:
        """So many bytes of it have come by now. Raises QueueFullError."""
        more = num_bytes - FREE_BYTES - self._num_bytes
        if more > 0:
            self._memory.take(more)
            self._num_bytes += more

    def __enter__(self) -> BodySpace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._memory.num_bytes -= self._num_bytes
        self._num_bytes = 0
