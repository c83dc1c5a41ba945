"""The memory plan: bytes of a model on its device by purpose, before anything is allocated.

No torch, and no look at a weight. The KV cache gets what is left: on a GPU of the share that the
settings give, on a CPU by the rule of footprint.py. Sizes of a step are upper bounds; the start of
an engine on a GPU measures them instead (gpu_backend.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from quire.config import EngineConfig
from quire.core.layer_spec import LayerSpec, MoESpec
from quire.dtypes import DTYPES, HOPPER_BLOCK_SIZES, HOPPER_HEAD_DIMS, HOPPER_MAJOR
from quire.engine.core.step_sizes import StepSizes
from quire.engine.startup.footprint import (
    block_bytes_of,
    blocks_within,
    default_kv_bytes,
    weights_by_format,
)
from quire.engine.startup.gpu_driver import driver_capability
from quire.engine.startup.kv_cache_size import cache_problem
from quire.engine.startup.resolved_config import ResolvedConfig, resolve
from quire.errors import ConfigError
from quire.models.config.model_config import ModelConfig

# What CUDA allocates in a process at its start, as seen on Hopper.
CONTEXT_BYTES = 512 << 20
# Scratch memory of Triton's kernels and of cuBLAS.
WORKSPACE_BYTES = 96 << 20
# Scratch memory for dequantized keys and values, see attention/kv_dequantization.py.
DEQUANTIZED_BYTES = 512 << 20
# Queries of a prompt in a step, times query heads of a key head, from which on that is done.
DEQUANTIZED_QUERIES = {"int8": 1024, "float8_e4m3fn": 2048}
# Code of kernels, which the driver loads at the first launch of each, for some long after the KV
# cache was allocated. The largest of ours have half a megabyte. Scratch of cuBLAS for the stream on
# which steps are recorded is included.
CODE_BYTES = 128 << 20
# What the driver allocates for each graph.
GRAPH_BYTES = 3 << 20
# Unused rows in tiles of requests with a shared prefix, at most.
UNFILLED_ROWS = 17 * 16
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


def plan_memory(config: EngineConfig, memory: DeviceMemory) -> MemoryPlan:
    """The plan of an engine of these settings. Reads files; downloads them if need be.

    Which machine it will be is not known, so the number of its cores plays no part. Raises
    CheckpointError, or ConfigError for settings that do not fit the device.
    """
    if config.model.load_format == "null":
        raise ConfigError("load_format is 'null', which has no model to plan for; leave it out")
    resolved = resolve(config, memory.device)
    resolved.warn_of_quantization()
    config, model_config = resolved.config, resolved.model_config
    sizes = _sizes(config, model_config, DTYPES[resolved.dtype].num_bytes)
    if memory.device == "cuda" and dequantizes_keys(resolved, driver_capability()):
        sizes["workspace"] += DEQUANTIZED_BYTES
    weights = weights_by_format(config, model_config, resolved.folder)
    share = config.cache.gpu_memory_utilization if memory.device == "cuda" else 1.0
    budget = int(memory.total * share)
    fixed = memory.context + sum(sizes.values()) + sum(weights.values())
    left = budget - (memory.total - memory.free) - fixed
    block_bytes, block_size = block_bytes_of(config, model_config), config.cache.block_size
    default = left if memory.device == "cuda" else default_kv_bytes(memory.free)
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


def dequantizes_keys(resolved: ResolvedConfig, capability: tuple[int, int] | None) -> bool:
    """Whether a step may dequantize keys and values, see `choose_dequantization`.

    capability: the GPU's; None, if unknown, is Hopper's.
    """
    config, least = resolved.config, DEQUANTIZED_QUERIES.get(resolved.kv_dtype)
    is_hopper = capability is None or capability[0] == HOPPER_MAJOR
    if least is None or not is_hopper or resolved.dtype != "bfloat16":
        return False
    if config.device.batch_invariant or config.cache.block_size not in HOPPER_BLOCK_SIZES:
        return False
    limits = config.scheduler
    sizes = StepSizes(limits.max_num_seqs, limits.max_num_batched_tokens, pads_mixed=True)
    most = sizes.of(limits.max_num_batched_tokens, 1, has_prefills=True).num_tokens
    layers = zip(resolved.model_config.spec.layers, resolved.kv_layers, strict=True)
    attentions = [layer.attention for layer, stored in layers if stored.dtype is None]
    return any(
        each.key_dim in HOPPER_HEAD_DIMS
        and not each.sinks
        and each.soft_cap is None
        and most >= least // (each.num_heads // each.num_kv_heads)
        for each in attentions
    )


def _sizes(config: EngineConfig, model_config: ModelConfig, item: int) -> dict[str, int]:
    """Bytes that steps need beside weights and KV cache. item: bytes of a number."""
    num_tokens, num_rows = config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs
    sizes = {
        "activations": activation_bytes(model_config, num_tokens, item),
        "logits": logits_bytes(model_config, num_rows, item) if model_config.has_head else 0,
        "graphs": 0,
        "workspace": 0,
    }
    if config.device.device == "cuda":
        sizes["workspace"] = WORKSPACE_BYTES + CODE_BYTES
        sizes["graphs"] = graph_bytes(config, model_config, item)
        sizes["logits"] += token_count_bytes(config, model_config)
    return sizes


def activation_bytes(model_config: ModelConfig, num_tokens: int, item: int) -> int:
    """Peak bytes of activations in a layer's pass over this many tokens."""
    spec = model_config.spec
    widest = max(_widest(layer) for layer in spec.layers)
    angles = sum(2 * rope.rotary_dim * 4 for rope in spec.ropes)  # cosines and sines
    return num_tokens * ((2 * spec.hidden_size + widest) * item + angles)


def _widest(layer: LayerSpec) -> int:
    """Numbers per token between the linear layers, in attention or in the MLP."""
    attention = layer.attention
    queries = attention.num_heads * attention.key_dim
    keys = attention.num_kv_heads * attention.key_dim
    heads = 3 * (queries + keys)  # projected, after RoPE, attention's result
    inner = 3 * layer.mlp.intermediate_size  # gate and up, and their product
    if isinstance(layer.mlp, MoESpec):
        # all tokens' inputs, an expert's inputs and results; in float32, each two numbers of 16
        # bits, its weighted results and the sums; the rest is the router's
        inner += 8 * layer.mlp.router.k
    return max(heads, inner)


def logits_bytes(model_config: ModelConfig, num_rows: int, item: int) -> int:
    """Bytes of logits in the model's type, in float32, and of two copies for the sampler."""
    return num_rows * model_config.vocab_size * (item + 3 * 4)


def token_count_bytes(config: EngineConfig, model_config: ModelConfig) -> int:
    """Bytes of the counts of each token in each request, for penalties on a GPU."""
    return (
        config.scheduler.max_num_seqs * model_config.vocab_size * 2 if model_config.has_head else 0
    )


def shared_part_bytes(config: EngineConfig, model_config: ModelConfig) -> int:
    """Bytes of partial softmax results over shared prefixes, in float32 with two statistics.

    Requests are in tiles, some of them unfilled: see `StepSections.num_shared_tiles`.
    """
    if not config.shares_prefixes:
        return 0
    rows = config.scheduler.max_num_seqs + UNFILLED_ROWS
    heads = (layer.attention for layer in model_config.spec.layers)
    return rows * max(each.num_heads * (each.value_dim + 2) * 4 for each in heads)


def graph_bytes(config: EngineConfig, model_config: ModelConfig, item: int) -> int:
    """Bytes of recorded steps: the largest one's tensors, which all share, and the driver's part.

    A step may sample for each row. What the layers leave for sampling is not shared.
    """
    if config.device.enforce_eager:
        return 0
    num_rows, num_tokens = config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
    sizes = StepSizes(
        num_rows, num_tokens,
        pads_mixed=True, shares_prefixes=config.shares_prefixes,
    )  # fmt: skip
    most_tokens = max(sizes.mixed[-1], num_rows)
    activations = activation_bytes(model_config, most_tokens, item)
    attention = model_config.spec.layers[-1].attention
    width = model_config.hidden_size + attention.num_heads * attention.key_dim
    states = most_tokens * width * item
    logits = num_rows * model_config.vocab_size * item if model_config.has_head else 0
    parts = activations + logits + states + shared_part_bytes(config, model_config)
    return parts + sizes.num_graphs * GRAPH_BYTES


def _problem(
    config: EngineConfig, left: int, num_bytes: int, block_bytes: int, num_blocks: int
) -> str | None:
    """The error for what does not fit, with the setting to change; None if all fits.

    left: beside all but the KV cache; negative if that alone does not fit.

    num_bytes: what the KV cache may take.
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
