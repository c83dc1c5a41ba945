"""Bytes that steps need beside weights and KV cache, as upper bounds. No torch.

The start of an engine on a GPU measures a step's activations and logits instead (gpu_backend.py).
"""

from __future__ import annotations

from quire.config import EngineConfig
from quire.core.layer_spec import AttentionSpec, LayerSpec, MoESpec
from quire.dtypes import HOPPER_BLOCK_SIZES, HOPPER_HEAD_DIMS, HOPPER_MAJOR
from quire.engine.core.step_sizes import StepSizes
from quire.engine.startup.footprint import dequantized_bytes
from quire.engine.startup.resolved_config import ResolvedConfig
from quire.models.config.model_config import ModelConfig

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
# Requests of a tile with a shared prefix, SHARED_MEMBERS of the kernels, which import torch.
MEMBERS = 16
# Unused rows in such tiles, at most.
UNFILLED_ROWS = 17 * MEMBERS
# Tiles, times key heads, over which keys of shared prefixes are split where tiles are few: two for
# each multiprocessor, of which GPUs have fewer than 192.
SPLIT_TILES = 2 * 192


def step_bytes(config: EngineConfig, model_config: ModelConfig, item: int) -> dict[str, int]:
    """Bytes that steps need, by purpose. item: bytes of a number."""
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
    numbers = model_config.vocab_size if model_config.has_head else 0
    return config.scheduler.max_num_seqs * numbers * 2


def shared_part_bytes(config: EngineConfig, model_config: ModelConfig) -> int:
    """Bytes of partial softmax results over shared prefixes: `SharedParts`, of the largest layer.

    Requests are in tiles, some of them unfilled: see `StepSections.num_shared_tiles`.
    """
    if not config.shares_prefixes:
        return 0
    rows = config.scheduler.max_num_seqs + UNFILLED_ROWS

    def num_bytes(attention: AttentionSpec) -> int:
        most = max(rows, SPLIT_TILES // attention.num_kv_heads * MEMBERS)
        padded = max(32, 1 << (attention.value_dim - 1).bit_length())
        return most * attention.num_heads * (padded + 2) * 4

    return max(num_bytes(layer.attention) for layer in model_config.spec.layers)


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
    parts += dequantized_bytes(config, model_config)
    return parts + sizes.num_graphs * GRAPH_BYTES


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
