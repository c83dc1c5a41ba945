"""The order of waiting requests; nothing about whether they can run. No torch."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from quire.core.request import Request

QueuePosition = tuple[int, float, int]
"""A place in line, the smaller the sooner: priority, when it is due, arrival."""


@dataclass(order=True, slots=True)
class _Entry:
    key: QueuePosition
    number: int  # of the push: requests are never compared
    request: Request | None = field(compare=False)  # None once it has been removed


class WaitingQueue:
    """First come, first served; before that the first due, if requests have due times; and under
    "priority" the lowest priority number before all.

    A preempted request keeps its arrival, so it comes back before those that came after it.
    All verbs cost O(log n) or less; a removed request leaves an empty entry for `peek` to drop.
    """

    def __init__(self, policy: Literal["fcfs", "priority"]) -> None:
        self._by_priority = policy == "priority"
        self._heap: list[_Entry] = []
        self._entries: dict[str, _Entry] = {}
        self._num_pushes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def key(self, request: Request) -> QueuePosition:
        """The request's place in line."""
        return (request.priority if self._by_priority else 0, request.due, request.arrival)

    def push(self, request: Request) -> None:
        """Put a request in line."""
        self._num_pushes += 1
        entry = _Entry(self.key(request), self._num_pushes, request)
        self._entries[request.request_id] = entry
        heapq.heappush(self._heap, entry)

    def peek(self) -> Request | None:
        """The first in line, or None if nobody waits."""
        while self._heap and self._heap[0].request is None:
            heapq.heappop(self._heap)
        return self._heap[0].request if self._heap else None

    def some(self, most: int) -> Iterator[Request]:
        """So many of those in line, the first of all first and the others in no order."""
        return islice((e.request for e in self._heap if e.request is not None), most)

    def pop(self) -> Request:
        """Take the first in line, whom `peek` has shown."""
        request = heapq.heappop(self._heap).request
        assert request is not None
        del self._entries[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        """Take a request out of line, wherever it stands; no-op if it is not in it."""
        entry = self._entries.pop(request.request_id, None)
        if entry is not None:
            entry.request = None
