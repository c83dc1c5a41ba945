"""How many KV blocks an engine makes, and how long requests may be because of that. No torch."""

from __future__ import annotations

import logging
from collections.abc import Callable

from quire.config import EngineConfig
from quire.engine.startup.footprint import blocks_within
from quire.engine.startup.resolved_config import cache_problem, larger_cache
from quire.errors import ConfigError
from quire.models.config.model_config import ModelConfig

logger = logging.getLogger(__name__)


def choose_num_blocks(
    config: EngineConfig, model_config: ModelConfig, block_bytes: int, budget: Callable[[], int]
) -> int:
    """As asked, or what the memory gives and the requests can use. Raises ConfigError.

    budget: tells the bytes that the cache may take, where the settings leave that open.
    """
    asked = config.cache.num_blocks, config.cache.kv_cache_memory_bytes
    num_bytes = budget() if asked == (None, None) else asked[1] or 0
    num_blocks = blocks_within(config, model_config, num_bytes, block_bytes)
    if problem := cache_problem(config, num_bytes, block_bytes, num_blocks):
        raise ConfigError(problem)
    return num_blocks


def choose_max_model_len(config: EngineConfig, limit: int, num_slots: int) -> int:
    """limit: as asked, or the model's; or what the KV cache can hold of that."""
    if num_slots < limit:
        logger.warning(
            "the KV cache holds %d tokens, so the context is limited to that instead of the "
            "model's %d; for more, %s",
            num_slots,
            limit,
            larger_cache(config),
        )
    return min(limit, num_slots)
