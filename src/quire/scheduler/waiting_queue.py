"""The waiting queue: an order of requests by priority, due time and arrival. No torch."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

import msgspec

from quire.core.request import Request

_MOST_EMPTY = 64  # entries of removed requests, beside as many as there are requests

QueuePosition = tuple[int, float, int]
"""A sort key, smallest first: priority, due time, arrival number."""


class _Entry(msgspec.Struct, eq=False):
    key: QueuePosition
    number: int  # of the push, which decides between equal keys
    request: Request | None  # None once it has been removed

    def __lt__(self, other: _Entry) -> bool:
        return (self.key, self.number) < (other.key, other.number)


class WaitingQueue:
    """A heap of waiting requests: by priority, then due time, then arrival.

    A preempted request keeps its arrival number, so it stays before later ones. All methods are
    O(log n) or less on average; a removed request leaves an empty entry, of which there are never
    many more than requests.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._entries: dict[str, _Entry] = {}
        self._num_pushes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def key(self, request: Request) -> QueuePosition:
        """The request's position in the queue: lower numbers of priority come first."""
        return (request.priority, request.due_time, request.arrival_number)

    def push(self, request: Request) -> None:
        """Add a request to the queue."""
        self._num_pushes += 1
        entry = _Entry(self.key(request), self._num_pushes, request)
        self._entries[request.request_id] = entry
        heapq.heappush(self._heap, entry)

    def peek(self) -> Request | None:
        """The first request; None if the queue is empty."""
        while self._heap and self._heap[0].request is None:
            heapq.heappop(self._heap)
        return self._heap[0].request if self._heap else None

    def some(self, most: int) -> Iterator[Request]:
        """At most `most` requests: the first one first, the others in no order."""
        self.peek()  # drops removed ones in front of the first
        return islice((e.request for e in self._heap if e.request is not None), most)

    def pop(self) -> Request:
        """Remove and return the first request, which `peek` has returned."""
        request = heapq.heappop(self._heap).request
        assert request is not None
        del self._entries[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue; no-op if it is not in it."""
        entry = self._entries.pop(request.request_id, None)
        if entry is not None:
            entry.request = None
            if len(self._heap) > 2 * len(self._entries) + _MOST_EMPTY:
                self._heap = list(self._entries.values())
                heapq.heapify(self._heap)
