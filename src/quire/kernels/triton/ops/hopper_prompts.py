"""Attention of prompts by Hopper's kernel: over the cache, or over keys dequantized before."""

from __future__ import annotations

import functools

from torch import Tensor

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.triton.attention.attention_plan import Plan
from quire.kernels.triton.attention.kv_dequantization import (
    DequantizationPlan,
    dequantize_kv,
    most_keys,
    plan_dequantization,
    scratch_caches,
)
from quire.kernels.triton.launch.attention_config import (
    DequantizationConfig,
    HopperConfig,
    least_queries,
)

ScaleOperands = tuple[Tensor | None, Tensor | None]


def attend_to_prompts(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    plan: Plan,
    scale: float,
    window: int,
    out: Tensor,
    config: HopperConfig,
    scales: ScaleOperands,
) -> None:
    """Fill the rows of out [T, Hq, D] that belong to requests with several query tokens.

    scale: of the scores, times log2(e). window: 0 for none. scales: of caches in INT8.
    """
    from quire.kernels.triton.hopper.hopper_prefill import launch_prefill

    chosen = choose_dequantization(query, k_cache, config)
    table = layout.block_table
    if chosen is None:
        launch_prefill(
            query, k_cache, v_cache, table, plan.work, plan.num_query_tiles, scale, window, out,
            config, scales,
        )  # fmt: skip
        return
    split: DequantizationPlan = layout.once(
        ("dequantization", window, chosen), lambda: plan_dequantization(layout, window, chosen)
    )
    wide = scratch_caches(k_cache, config.tile)
    dequantize_kv(k_cache, v_cache, scales, layout, split, wide, pdl=True)
    launch = functools.partial(
        launch_prefill, query, scale=scale, window=window, out=out, config=config, pdl=True
    )
    launch(wide[0], wide[1], split.rows, split.work, split.num_query_tiles)
    launch(k_cache, v_cache, table, split.other_work, split.num_other_tiles, kv_scales=scales)


def choose_dequantization(
    query: Tensor, k_cache: Tensor, config: HopperConfig
) -> DequantizationConfig | None:
    """The config by which keys are dequantized first; None where that costs more than it saves."""
    num_kv_heads, head_dim = k_cache.shape[2:]
    group = query.shape[1] // num_kv_heads
    least = least_queries(k_cache, group)
    if k_cache.dtype.itemsize > 1 or len(query) < least:
        return None
    most = most_keys(num_kv_heads, head_dim, config.tile)
    return DequantizationConfig(least, most, config.tile, config.tokens(group))
