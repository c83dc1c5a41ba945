"""What running requests hold of the KV cache: for checks of sharing, and of the waste of blocks."""

from __future__ import annotations

from quire.core.request import Request
from quire.kvcache.kv_cache_manager import KVCacheManager


def block_table(kv: KVCacheManager, request: Request) -> list[int]:
    """The blocks that hold tokens 0, 1, .. of a running request."""
    return kv._tables[request.request_id].block_ids


def num_allocated_slots(kv: KVCacheManager) -> int:
    """Slots in the block tables of running requests; a shared block counts in each."""
    return sum(len(table.block_ids) for table in kv._tables.values()) * kv.block_size


def num_stored_tokens(kv: KVCacheManager) -> int:
    """Tokens in those slots; the rest is the waste."""
    return sum(table.request.num_computed_tokens for table in kv._tables.values())
