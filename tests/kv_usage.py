"""How much of the KV cache running requests use: for checks of the waste of having blocks."""

from __future__ import annotations

from quire.kvcache.kv_cache_manager import KVCacheManager


def num_allocated_slots(kv: KVCacheManager) -> int:
    """Slots in the block tables of running requests; a shared block counts in each."""
    return sum(len(table.block_ids) for table in kv._tables.values()) * kv.block_size


def num_stored_tokens(kv: KVCacheManager) -> int:
    """Tokens in those slots; the rest is the waste."""
    return sum(table.request.num_computed_tokens for table in kv._tables.values())
