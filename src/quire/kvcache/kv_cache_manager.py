"""The KV cache manager: block tables of running requests, and the prefix cache. No torch.

Owns the block tables, the chained hashes of full blocks, and the prefix cache's statistics. Free
and cached blocks are in block_pool.py, the bytes in kv_storage.py.

    token_ids:    [ t0 .. t15 | t16 .. t31 | t32 .. ]           block_size = 16
    block_hashes: [ h0        | h1         ]                    h_i = SHA-256(h_{i-1}, tokens)
    block table:  [ 7         | 2          | 9      ]           h_{-1} = SHA-256(seed, salt)

A hash stands for its tokens and everything before them, so equal hashes mean equal KV. Tenants with
different salts, and processes with different seeds, never share one.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

import msgspec

from quire.core.request import Request
from quire.kvcache.block_pool import BlockPool
from quire.kvcache.in_flight_prefixes import InFlightPrefixes


class PrefixCacheStats(msgspec.Struct):
    """Tokens in full blocks that first admissions looked up: queries == hits + sum of misses.

    Reasons of misses: "cold", never seen; "evicted", was cached once; "bypassed", prompt_logprobs
    and mean pooling need every position computed.
    """

    queries: int = 0
    hits: int = 0
    misses: dict[str, int] = msgspec.field(
        default_factory=lambda: {"cold": 0, "evicted": 0, "bypassed": 0}
    )


class _BlockTable(msgspec.Struct):
    request: Request
    block_ids: list[int]
    num_registered: int  # leading blocks whose hash is registered, for this block or an equal one
    cacheable: bool  # whether blocks filled from now on are registered


class KVCacheManager:
    """Block tables for running requests, over one pool.

    hash_seed: random by default, so that hashes cannot be predicted.
    A request has a block table from `admit` to `free`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        hash_seed: bytes | None = None,
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.prefix_stats = PrefixCacheStats()
        self.pool = BlockPool(num_blocks, on_removed=self._remember_removed)
        self._tables: dict[str, _BlockTable] = {}
        self._in_flight = InFlightPrefixes()
        self._seed_digest = hashlib.sha256(
            os.urandom(32) if hash_seed is None else hash_seed
        ).digest()
        self._removed: OrderedDict[bytes, None] = OrderedDict()  # oldest first, bounded

    # Lookups: these change no block.

    def get_computed_blocks(self, request: Request) -> list[int]:
        """The blocks of the longest cached prefix.

        It ends before the last known token, which must be computed for its logits.
        """
        if not self._reads_cache(request):
            return []
        block_ids = []
        for block_hash in self._needed_hashes(request):
            block_id = self.pool.lookup(block_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def wait_for_prefix(self, request: Request, num_hits: int) -> bool:
        """Let the request wait if a running one is computing its next block.

        num_hits: number of blocks from get_computed_blocks. Returns whether it waits; `take_ready`
        returns it later.
        """
        if not self._reads_cache(request):
            return False
        return self._in_flight.wait(request, islice(self._needed_hashes(request), num_hits, None))

    def take_ready(self) -> list[Request]:
        """Requests that have waited for a prefix and are ready to be scheduled."""
        return self._in_flight.take_ready()

    def num_missing_blocks(self, request: Request) -> int:
        """The number of blocks that a running request lacks to hold all its known tokens."""
        held = len(self._tables[request.request_id].block_ids)
        return max(0, self.num_blocks_for(request.num_tokens) - held)

    def num_blocks_for(self, num_tokens: int) -> int:
        """The number of blocks that hold that many tokens."""
        return -(-num_tokens // self.block_size)

    # Allocation: a request's block table exists from admit to free.

    def admit(self, request: Request, hits: list[int], num_tokens: int) -> list[int] | None:
        """Create a block table of cached blocks and new ones, for the first num_tokens tokens.

        Returns the block table; None, with nothing changed, if too few blocks are free.
        """
        assert request.request_id not in self._tables
        count = self.num_blocks_for(num_tokens) - len(hits)
        if count > self.pool.num_available_beside(hits):
            return None
        if self.enable_prefix_caching:
            missing = self._hashes(request)[len(hits) :]
            self._count_admission(request, len(hits), missing)
            self._in_flight.claim(request, missing)
        for block_id in hits:
            self.pool.share(block_id)
        block_ids = hits + self.pool.allocate(count)
        self._tables[request.request_id] = _BlockTable(
            request, block_ids, num_registered=len(hits), cacheable=self.enable_prefix_caching
        )
        return block_ids.copy()

    def allocate_slots(self, request: Request, num_new_tokens: int) -> list[int] | None:
        """Allocate blocks for the next tokens of a running request.

        Returns the new blocks, appended to its block table; None, with nothing changed, if too few
        are free.
        """
        block_ids = self._tables[request.request_id].block_ids
        num_slots = len(block_ids) * self.block_size
        num_missing = request.num_computed_tokens + num_new_tokens - num_slots
        if num_missing <= 0:
            return []
        count = self.num_blocks_for(num_missing)
        if count > self.pool.num_available:
            return None
        new_block_ids = self.pool.allocate(count)
        block_ids += new_block_ids
        return new_block_ids

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Register the blocks that are full once num_computed_tokens tokens have been computed.

        Called after a step has succeeded.
        """
        table = self._tables[request.request_id]
        num_full = num_computed_tokens // self.block_size
        if num_full <= table.num_registered or not table.cacheable:
            return
        hashes = self._hashes(request)
        for index in range(table.num_registered, num_full):
            self.pool.register(table.block_ids[index], hashes[index])
            self._in_flight.mark_registered(hashes[index])
        table.num_registered = num_full

    def free(self, request: Request) -> None:
        """Free a request's block table; its registered blocks stay cached until evicted."""
        table = self._tables.pop(request.request_id)
        self._in_flight.release(request.request_id)
        self.pool.release(reversed(table.block_ids))

    # Invalidation.

    def forget(self, request: Request) -> None:
        """Remove all blocks of a request whose forward pass failed from the prefix cache."""
        for block_hash in request.block_hashes:
            self.pool.forget(block_hash)

    def reset_prefix_cache(self) -> None:
        """Clear the prefix cache.

        Running requests keep their block tables, but their blocks are not cached any more.
        """
        self.pool.reset()
        self._in_flight.release_all()
        self._removed.clear()
        for table in self._tables.values():
            table.cacheable = False

    def _reads_cache(self, request: Request) -> bool:
        return self.enable_prefix_caching and not request.needs_every_position

    def _needed_hashes(self, request: Request) -> Iterable[bytes]:
        """Hashes of the full blocks before the last known token."""
        return islice(self._hashes(request), (len(request.token_ids) - 1) // self.block_size)

    def _hashes(self, request: Request) -> list[bytes]:
        """SHA-256 hashes of all full blocks of known tokens; grows request.block_hashes."""
        hashes, size = request.block_hashes, self.block_size
        num_full = len(request.token_ids) // size
        if len(hashes) == num_full:
            return hashes
        if hashes:
            parent = hashes[-1]
        else:
            salt = request.cache_salt.encode("utf-8", "surrogatepass")
            parent = hashlib.sha256(self._seed_digest + salt).digest()
        tokens = request.token_ids[len(hashes) * size : num_full * size]
        packed = struct.pack(f"<{len(tokens)}I", *tokens)
        for start in range(0, len(packed), 4 * size):
            parent = hashlib.sha256(parent + packed[start : start + 4 * size]).digest()
            hashes.append(parent)
        return hashes

    def _count_admission(self, request: Request, num_hits: int, missing: list[bytes]) -> None:
        """Count a first admission; blocks found after a preemption are not cache hits.

        missing: hashes of the full blocks after the hits.
        """
        if request.num_preemptions > 0:
            return
        stats, size = self.prefix_stats, self.block_size
        num_needed = (len(request.token_ids) - 1) // size
        stats.queries += num_needed * size
        stats.hits += num_hits * size
        missed = missing[: num_needed - num_hits]
        if not self._reads_cache(request):
            stats.misses["bypassed"] += len(missed) * size
            return
        # a block may outlive the head of its prefix, and is then unreachable
        removed, find = self._removed, self.pool.lookup
        num_evicted = len([h for h in missed if h in removed or find(h) is not None])
        stats.misses["evicted"] += num_evicted * size
        stats.misses["cold"] += (len(missed) - num_evicted) * size

    def _remember_removed(self, block_hash: bytes) -> None:
        self._removed[block_hash] = None
        if len(self._removed) > 4 * self.pool.num_blocks:
            self._removed.popitem(last=False)
