"""The memory plan: bytes of a model on its device by purpose, before anything is allocated.

No torch, and no look at a weight. The KV cache gets what is left: on a GPU of the share that the
settings give, on a CPU by the rule of footprint.py. Sizes of a step are those of step_memory.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from quire.config import EngineConfig
from quire.dtypes import DTYPES
from quire.engine.startup.footprint import (
    block_bytes_of,
    blocks_within,
    default_kv_bytes,
    dequantized_bytes,
    weights_by_format,
)
from quire.engine.startup.gpu_driver import driver_capability
from quire.engine.startup.kv_cache_size import cache_problem
from quire.engine.startup.resolved_config import ResolvedConfig, resolve
from quire.engine.startup.step_memory import DEQUANTIZED_BYTES, dequantizes_keys, step_bytes
from quire.errors import ConfigError

# What CUDA allocates in a process at its start, as seen on Hopper.
CONTEXT_BYTES = 512 << 20
_LENGTHS = (2048, 8192, 32_768)  # of requests, for which the plan says how many fit


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's memory. context: bytes that an engine's process takes without a model."""

    device: Literal["cpu", "cuda"]
    total: int
    free: int
    context: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """Bytes by purpose, and the limits that follow. weights: by data type or weight format.

    budget: what may be used of the device, others' use included. max_model_len: None if nothing
    fits. problem: what does not fit and which setting to change; None if all does.
    """

    model: str
    device: str
    total: int
    free: int
    budget: int
    context: int
    weights: dict[str, int]
    activations: int
    logits: int
    graphs: int
    workspace: int
    block_bytes: int
    block_size: int
    num_blocks: int
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    problem: str | None

    @property
    def fixed(self) -> int:
        """Bytes of everything except the KV cache."""
        parts = self.context + self.activations + self.logits + self.graphs + self.workspace
        return parts + sum(self.weights.values())

    @property
    def kv_cache(self) -> int:
        """Bytes of the KV cache."""
        return self.num_blocks * self.block_bytes

    @property
    def num_slots(self) -> int:
        """The number of tokens that the KV cache holds."""
        return self.num_blocks * self.block_size

    def at_once(self) -> dict[int, int]:
        """Length of requests → how many of them run at a time."""
        longest = self.max_model_len or 0
        lengths = sorted({n for n in (*_LENGTHS, longest) if 0 < n <= longest}, reverse=True)
        blocks = {n: -(-n // self.block_size) for n in lengths}
        return {n: min(self.max_num_seqs, self.num_blocks // blocks[n]) for n in lengths}

    def as_json(self) -> dict[str, Any]:
        """The memory plan as JSON values."""
        lengths = {str(length): count for length, count in self.at_once().items()}
        return asdict(self) | {"kv_cache": self.kv_cache, "at_once": lengths}


def plan_memory(
    config: EngineConfig, memory: DeviceMemory, memory_bytes: int | None = None
) -> MemoryPlan:
    """The plan of an engine of these settings. Reads files; downloads them if need be.

    Which machine it will be is not known, so the number of its cores plays no part. memory_bytes:
    as `footprint_of` has it. Raises CheckpointError, or ConfigError for settings that do not fit
    the device.
    """
    if config.model.load_format == "null":
        raise ConfigError("load_format is 'null', which has no model to plan for; leave it out")
    resolved = resolve(config, memory.device)
    resolved.log_weights()
    config, model_config = resolved.config, resolved.model_config
    sizes = _step_bytes(resolved, memory.device)
    weights = weights_by_format(config, model_config, resolved.folder)
    share = config.cache.gpu_memory_utilization if memory.device == "cuda" else 1.0
    budget = int(memory.total * share)
    fixed = memory.context + sum(sizes.values()) + sum(weights.values())
    left = budget - (memory.total - memory.free) - fixed
    block_bytes, block_size = block_bytes_of(config, model_config), config.cache.block_size
    is_share = memory_bytes is not None or memory.device != "cuda"
    default = default_kv_bytes(memory_bytes or memory.free) if is_share else left
    num_bytes = config.cache.kv_cache_memory_bytes or default
    num_blocks = blocks_within(config, model_config, num_bytes, block_bytes)
    problem = _problem(config, left, num_bytes, block_bytes, num_blocks)
    max_model_len = min(resolved.length_limit, num_blocks * block_size)
    if problem is None:
        config.scheduler.check_longest_prompt(max_model_len)
    return MemoryPlan(
        model=config.model.public_name,
        device=memory.device,
        total=memory.total,
        free=memory.free,
        budget=budget,
        context=memory.context,
        weights=weights,
        **sizes,
        block_bytes=block_bytes,
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=None if problem else max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        problem=problem,
    )


def _step_bytes(resolved: ResolvedConfig, device: str) -> dict[str, int]:
    """Bytes beside the weights that a step takes, as fields of a plan."""
    config, model_config = resolved.config, resolved.model_config
    sizes = step_bytes(config, model_config, DTYPES[resolved.dtype].num_bytes)
    if device == "cuda":
        sizes["workspace"] += dequantized_bytes(config, model_config)
        if dequantizes_keys(resolved, driver_capability()):
            sizes["workspace"] += DEQUANTIZED_BYTES
    return sizes


def _problem(
    config: EngineConfig, left: int, num_bytes: int, block_bytes: int, num_blocks: int
) -> str | None:
    """The error for what does not fit, with the setting to change; None if all fits.

    left: beside all but the KV cache; negative if that alone does not fit. num_bytes: what the KV
    cache may take.
    """
    if left < 0:
        raised = "raise gpu_memory_utilization, " if config.device.device == "cuda" else ""
        return (
            f"{-left:,} bytes are missing before there is a KV cache; {raised}lower "
            "max_num_batched_tokens or max_num_seqs, take a smaller model or quantization, or free "
            "memory"
        )
    if problem := cache_problem(config, num_bytes, block_bytes, num_blocks):
        return problem
    if num_blocks * block_bytes > left:
        return (
            f"the KV cache takes {num_blocks * block_bytes:,} bytes, but {left:,} are left; lower "
            "num_blocks or kv_cache_memory_bytes"
        )
    return None
