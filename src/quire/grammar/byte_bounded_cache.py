"""A least-recently-used cache whose size is bounded in bytes. Thread-safe.

The caller says how large each entry is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ByteBoundedCache(Generic[K, V]):
    """Entries of at most `max_bytes` together; an entry that is larger alone is not stored."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The entry, marked as most recently used; None if there is none."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """Store an entry of this size; evicts the least recently used ones until all fit."""
        with self._lock:
            if key in self._entries:
                self._evict(key)
            self._entries[key] = (value, num_bytes)
            self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes:
                self._evict(next(iter(self._entries)))

    def _evict(self, key: K) -> None:
        _, num_bytes = self._entries.pop(key)
        self.num_bytes -= num_bytes
