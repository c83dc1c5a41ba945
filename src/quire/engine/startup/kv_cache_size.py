"""Number of KV blocks of an engine, and the length of requests that it allows. No torch."""

from __future__ import annotations

import logging
from collections.abc import Callable

from quire.config import EngineConfig
from quire.engine.startup.footprint import blocks_within
from quire.errors import ConfigError
from quire.models.config.model_config import ModelConfig

logger = logging.getLogger(__name__)


def choose_num_blocks(
    config: EngineConfig, model_config: ModelConfig, block_bytes: int, budget: Callable[[], int]
) -> int:
    """The number of KV blocks: as set, or as many as fit and requests can use. Raises ConfigError.

    block_bytes: of one block in all layers. budget: returns the bytes that the cache may take;
    called only where the settings leave that open.
    """
    asked = config.cache.num_blocks, config.cache.kv_cache_memory_bytes
    num_bytes = budget() if asked == (None, None) else asked[1] or 0
    num_blocks = blocks_within(config, model_config, num_bytes, block_bytes)
    if problem := cache_problem(config, num_bytes, block_bytes, num_blocks):
        raise ConfigError(problem)
    return num_blocks


def choose_max_model_len(config: EngineConfig, limit: int, num_slots: int) -> int:
    """Tokens that a request may have: the limit of settings and model, or what the cache holds."""
    if num_slots < limit:
        logger.warning(
            "the KV cache holds %d tokens, so the context is limited to that instead of the "
            "model's %d; for more, %s",
            num_slots,
            limit,
            _larger_cache(config),
        )
    return min(limit, num_slots)


def cache_problem(
    config: EngineConfig, num_bytes: int, block_bytes: int, num_blocks: int
) -> str | None:
    """The error for a KV cache with too few blocks, and what to change; None if they suffice.

    num_bytes: what it may take, unless the number of blocks was asked for.
    """
    num_slots, wanted = num_blocks * config.cache.block_size, config.model.max_model_len
    if num_blocks < 1:
        return (
            f"the KV cache has {num_bytes:,} bytes, but one block takes {block_bytes:,}; "
            f"{_larger_cache(config)}"
        )
    if wanted is not None and wanted > num_slots:
        return (
            f"max_model_len is {wanted}, but the KV cache holds {num_slots} tokens; lower "
            f"max_model_len, or {_larger_cache(config)}"
        )
    return None


def _larger_cache(config: EngineConfig) -> str:
    """The advice for a larger KV cache: which setting decides its size."""
    for name in ("num_blocks", "kv_cache_memory_bytes"):
        if getattr(config.cache, name) is not None:
            return f"raise {name}"
    if config.device.device == "cuda":
        return (
            "raise gpu_memory_utilization, lower max_num_batched_tokens or max_num_seqs, or free "
            "memory"
        )
    return "set kv_cache_memory_bytes, or free memory"
