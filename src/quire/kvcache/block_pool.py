"""The pool of KV blocks: which are free, cached or used, by reference counts. No torch.

Each block is in exactly one of three sets, and this file owns the moves between them:

    free ──allocate──► used ──release──► free         content without a hash: worth nothing
                        ▲ └────release──► evictable   content with a hash: a prefix worth keeping
                        └─────share────────┘
    evictable ──allocate, when none is free──► used   least recently used first; the hash is lost

What a hash means, and which request holds a block, is known to kv_cache_manager.py.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterable

import numpy as np


class BlockState(enum.IntEnum):
    """The state of a block for a live view."""

    FREE = 0
    CACHED = 1  # unused, but it holds a prefix
    USED = 2
    SHARED = 3  # in more than one block table


class BlockPool:
    """Blocks 0 .. num_blocks - 1, counted by reference, found again by the hash of their content.

    All methods are O(1) per block. on_removed: called with each hash that can no longer be found
    because its block was evicted or forgotten.
    """

    def __init__(self, num_blocks: int, on_removed: Callable[[bytes], None]) -> None:
        self.num_blocks = num_blocks
        self._on_removed = on_removed
        self._free = list(range(num_blocks))[::-1]  # a stack: the last one freed is still warm
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._ref_counts = [0] * num_blocks
        self.num_shared = 0  # blocks that more than one block table holds
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}  # the inverse of _hash_of

    @property
    def num_free(self) -> int:
        """The number of blocks that hold nothing."""
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        """Unused blocks that hold a cached prefix."""
        return len(self._evictable)

    @property
    def num_available(self) -> int:
        """The number of blocks that `allocate` can give."""
        return len(self._free) + len(self._evictable)

    def num_available_beside(self, block_ids: list[int]) -> int:
        """The number of blocks that `allocate` can give once these cached blocks are shared."""
        ref_counts = self._ref_counts
        num_unused = [ref_counts[block_id] for block_id in block_ids].count(0)
        return len(self._free) + len(self._evictable) - num_unused

    def states(self) -> bytes:
        """One BlockState per block, in O(num_blocks); for live views only."""
        of_ref_count = np.array([BlockState.FREE, BlockState.USED, BlockState.SHARED], np.uint8)
        ref_counts = np.fromiter(self._ref_counts, np.int32, self.num_blocks)
        states = of_ref_count[np.minimum(ref_counts, 2)]
        states[np.fromiter(self._evictable, dtype=np.int64)] = BlockState.CACHED
        return states.tobytes()

    def lookup(self, block_hash: bytes) -> int | None:
        """The block with this content, or None. Changes nothing, recency included."""
        return self._block_of.get(block_hash)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks of undefined content. The caller has checked num_available."""
        assert count <= self.num_available, f"{count} blocks of {self.num_available} available"
        block_ids = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def share(self, block_id: int) -> None:
        """Add a reference to a cached block: a prefix-cache hit."""
        if self._ref_counts[block_id] == 0:
            del self._evictable[block_id]
        self._ref_counts[block_id] += 1
        self.num_shared += self._ref_counts[block_id] == 2

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference to each of these blocks.

        Pass a block table in reverse: blocks released first are evicted first, and a prefix whose
        head is evicted can no longer be found.
        """
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"block {block_id} is released but not held"
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] > 0:
                self.num_shared -= self._ref_counts[block_id] == 1
                continue
            if self._hash_of[block_id] is None:
                self._free.append(block_id)
            else:
                self._evictable[block_id] = None

    def register(self, block_id: int, block_hash: bytes) -> None:
        """Make a used block findable by its hash.

        If another block has the same hash, that one stays findable and this one is a private copy.
        """
        assert self._ref_counts[block_id] > 0, f"block {block_id} is registered but not held"
        if block_hash in self._block_of:
            return
        assert self._hash_of[block_id] is None, f"block {block_id} has another hash already"
        self._block_of[block_hash] = block_id
        self._hash_of[block_id] = block_hash

    def forget(self, block_hash: bytes) -> None:
        """Make a hash unfindable; requests that hold its block keep it."""
        block_id = self._block_of.pop(block_hash, None)
        if block_id is None:
            return
        self._hash_of[block_id] = None
        if self._ref_counts[block_id] == 0:
            del self._evictable[block_id]
            self._free.append(block_id)
        self._on_removed(block_hash)

    def reset(self) -> None:
        """Make all hashes unfindable. Requests keep their blocks."""
        self._block_of.clear()
        self._hash_of = [None] * self.num_blocks
        self._free += self._evictable
        self._evictable.clear()

    def check(self) -> None:
        """Assert the invariants, in O(num_blocks)."""
        free, evictable = set(self._free), set(self._evictable)
        used = {b for b, refs in enumerate(self._ref_counts) if refs > 0}
        assert min(self._ref_counts, default=0) >= 0
        assert len(self._free) + len(evictable) + len(used) == self.num_blocks
        assert self.num_shared == sum(refs > 1 for refs in self._ref_counts)
        assert free | evictable | used == set(range(self.num_blocks))
        hashed = {b for b, block_hash in enumerate(self._hash_of) if block_hash is not None}
        assert evictable <= hashed <= evictable | used
        assert {self._hash_of[b]: b for b in hashed} == self._block_of

    def _evict(self) -> int:
        block_id, _ = self._evictable.popitem(last=False)
        block_hash = self._hash_of[block_id]
        assert block_hash is not None
        del self._block_of[block_hash]
        self._hash_of[block_id] = None
        self._on_removed(block_hash)
        return block_id
