"""What settings come to on a device, and what is refused there: the same at a start and in a plan.

No torch, and no look at a weight.
"""

from __future__ import annotations

from quire.config import EngineConfig
from quire.core.request_limits import RequestLimits
from quire.errors import ConfigError
from quire.models.config.model_config import ModelConfig
from quire.quantization.scheme import check_device


def settle(config: EngineConfig, device_type: str) -> EngineConfig:
    """With what depends on the device filled in; device_type: "cpu" or "cuda".

    Raises ConfigError for what that device has not.
    """
    check_device(config.model.quantization, device_type)
    return config.settled(device_type)


def length_limit(config: EngineConfig, model_config: ModelConfig) -> int:
    """Positions that a request may have. Raises ConfigError for more than the model knows."""
    limit = model_config.max_position_embeddings
    wanted = config.model.max_model_len or limit
    if wanted > limit:
        raise ConfigError(
            f"max_model_len is {wanted}, but the model knows positions up to {limit}; lower it"
        )
    return wanted


def request_limits(
    config: EngineConfig, model_config: ModelConfig, max_model_len: int, num_slots: int
) -> RequestLimits:
    """What requests are checked by. num_slots: tokens that the KV cache holds."""
    return RequestLimits(
        max_model_len=max_model_len,
        max_kv_tokens=num_slots,
        vocab_size=model_config.vocab_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        honours_priority=config.scheduler.scheduling_policy == "priority",
        hidden_size=model_config.hidden_size,
        generates=model_config.has_head,
    )


def cache_problem(
    config: EngineConfig, num_bytes: int, block_bytes: int, num_blocks: int
) -> str | None:
    """Why a KV cache of so many blocks does not serve, and what to change; None if it does.

    num_bytes: what it may take, unless the number of blocks was asked for.
    """
    num_slots, wanted = num_blocks * config.cache.block_size, config.model.max_model_len
    if num_blocks < 1:
        return (
            f"the KV cache has {num_bytes:,} bytes, but one block takes {block_bytes:,}; "
            f"{larger_cache(config)}"
        )
    if wanted is not None and wanted > num_slots:
        return (
            f"max_model_len is {wanted}, but the KV cache holds {num_slots} tokens; lower the "
            f"former, or {larger_cache(config)}"
        )
    return None


def larger_cache(config: EngineConfig) -> str:
    """What to do for a larger KV cache: change the setting that decides its size."""
    for name in ("num_blocks", "kv_cache_memory_bytes"):
        if getattr(config.cache, name) is not None:
            return f"raise {name}"
    if config.device.device == "cuda":
        return (
            "raise gpu_memory_utilization, lower max_num_batched_tokens or max_num_seqs, or free "
            "memory"
        )
    return "give kv_cache_memory_bytes, or free memory"
