"""Errors where memory runs out: they name the setting to change; no bare traceback.

Importing this module does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from quire.config import EngineConfig
from quire.dtypes import DTYPES
from quire.engine.core.device_errors import is_out_of_memory, smaller_step
from quire.errors import ConfigError
from quire.models.config.model_config import ModelConfig


def fitting_weights(model_config: ModelConfig, dtype: str) -> AbstractContextManager[None]:
    """A context in which running out of memory is an error about loading the model."""
    num_bytes = model_config.num_parameters * DTYPES[dtype].num_bytes
    return _fitting(
        f"the model, {num_bytes:,} bytes in {dtype},",
        "free memory, use a smaller model, or set quantization",
    )


def fitting_step(config: EngineConfig) -> AbstractContextManager[None]:
    """A context in which running out of memory is an error about the largest step."""
    scheduler = config.scheduler
    return _fitting(
        f"a step of {scheduler.max_num_batched_tokens:,} tokens and {scheduler.max_num_seqs:,} "
        "requests beside the weights",
        f"{smaller_step(on_gpu=config.device.device == 'cuda')}, or free memory",
    )


def fitting_kv(config: EngineConfig, num_bytes: int) -> AbstractContextManager[None]:
    """A context in which running out of memory is an error about the KV cache."""
    share = "gpu_memory_utilization, " if config.device.device == "cuda" else ""
    return _fitting(
        f"a KV cache of {num_bytes:,} bytes with {config.scheduler.max_num_seqs:,} requests' rows",
        f"lower {share}num_blocks, kv_cache_memory_bytes or max_num_seqs",
    )


def fitting_profile(num_requests: int, context: int) -> AbstractContextManager[None]:
    """A context in which running out of memory is an error about loading and profiling."""
    return _fitting(
        f"the model with a step of {num_requests:,} requests of {context:,} tokens each",
        "lower --batch-size, --context or --prefill, use a smaller model, or free memory",
    )


@contextmanager
def _fitting(what: str, fix: str) -> Iterator[None]:
    """Turn a failed allocation at the start into a ConfigError: `what` does not fit; `fix`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(f"{what} does not fit in memory{_free_memory()}; {fix}") from None


def _free_memory() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    free, total = torch.cuda.mem_get_info()
    return f" ({free:,} of the GPU's {total:,} bytes are free)"
