"""Paged attention on a GPU: which requests go to which kernel, and the launches.

The plan of a step is made in attention/attention_plan.py.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Set
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from quire.dtypes import HOPPER_BLOCK_SIZES, HOPPER_HEAD_DIMS, HOPPER_MAJOR
from quire.kernels import reference
from quire.kernels.batch_layout import SHARED_MEMBERS, BatchLayout
from quire.kernels.operands import AttentionParams, KVScales
from quire.kernels.triton.attention import softmax_options
from quire.kernels.triton.attention.attention_plan import Plan, make_plan, padded_count
from quire.kernels.triton.attention.decode_attention import decode_attention_kernel
from quire.kernels.triton.attention.prefill_attention import prefill_attention_kernel
from quire.kernels.triton.attention.prefill_tiles import WORK_FIELDS
from quire.kernels.triton.attention.shared_prefix_attention import SharedParts, shared_attention
from quire.kernels.triton.launch.attention_config import (
    DecodeConfig,
    HopperConfig,
    HopperDecodeConfig,
    PrefillConfig,
    choose_hopper_config,
    decode_config,
    hopper_decode_config,
    opens_early,
    padded_head_dim,
    prefill_config,
    short_config,
)
from quire.kernels.triton.launch.attention_memory import (
    fitting_decode,
    fitting_prefill,
    shared_tile,
)
from quire.kernels.triton.launch.row_memory import empty_rows
from quire.kernels.triton.launch.workspace import (
    NUM_COUNTERS,
    NUM_PARTIALS,
    launches_early,
    workspace,
)
from quire.kernels.triton.ops.hopper_prompts import attend_to_prompts

LOG2_E: float = softmax_options.LOG2_E.value
Types: TypeAlias = "tuple[torch.dtype, torch.dtype]"
_FOR_PROMPTS = frozenset(
    {
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.bfloat16, reference.FP8),
        (torch.bfloat16, torch.int8),
    }
)
_FOR_DECODES = _FOR_PROMPTS | {(torch.float16, torch.int8)}


def attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    params: AttentionParams,
    scales: KVScales | None = None,
) -> Tensor:
    """PagedAttention: twin of `reference.attention`, for any block size."""
    num_kv_heads, space = k_cache.shape[2], workspace(query.device)
    most = _most_programs(k_cache, query.shape[1] // num_kv_heads)
    decode = choose_decode_config(query, k_cache, params)
    prefill = choose_prefill_config(query, k_cache, params, has_few_keys=layout.has_few_keys)
    window, tokens = params.window or 0, prefill.tokens(query.shape[1] // num_kv_heads)
    if layout.shared is not None and not shared_tile(query, k_cache, space.shared_memory):
        layout = replace(layout, shared=None)  # each request reads its prefix itself
    key = ("triton attention", window, decode, tokens, num_kv_heads, layout.shared is None, most)
    is_fresh = not layout.knows(key)
    plan = layout.once(key, lambda: make_plan(layout, window, decode, tokens, num_kv_heads, most))
    out = empty_rows(*query.shape, dtype=query.dtype, device=query.device)
    if layout.has_decodes:
        shared = None
        if layout.shared is not None and not window:
            shared = shared_attention(
                query, k_cache, v_cache, layout, params.scale * LOG2_E, log2_soft_cap(params),
                dot_precision(query), scale_operands(scales),
            )  # fmt: skip
        pdl = launches_early(query.device)
        decode_attention(
            query, k_cache, v_cache, layout, plan, params, out, decode, shared, scales,
            pdl=pdl, plan_is_fresh=is_fresh,
            opens_early=pdl and has_hopper_gpu(query.device)
            and opens_early(k_cache, len(query), params.early_launch_bytes),
        )  # fmt: skip
    if layout.has_prefills:
        prefill_attention(query, k_cache, v_cache, layout, plan, params, out, prefill, scales)
    return out


def decode_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    plan: Plan,
    params: AttentionParams,
    out: Tensor,
    config: DecodeConfig | HopperDecodeConfig,
    shared: SharedParts | None = None,
    scales: KVScales | None = None,
    *,
    pdl: bool = False,
    plan_is_fresh: bool = True,
    opens_early: bool = False,
) -> None:
    """Fill the rows of out [T, Hq, D] that belong to requests with one query token.

    config: a `HopperDecodeConfig` selects Hopper's kernel, for plain params only. shared: partial
    results over shared prefixes. pdl, plan_is_fresh and opens_early: see the kernel.

    Rows of padding tokens become zeros, so that no later kernel reads undefined values.
    """
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    group = query.shape[1] // num_kv_heads
    num_requests = len(layout.seq_lens)
    space = workspace(query.device)
    num_programs = len(plan.decode_runs)
    if isinstance(config, HopperDecodeConfig):
        num_programs *= num_kv_heads  # a crew for each run, of one program for each key head
    assert num_programs <= _most_programs(k_cache, group)
    assert num_requests * num_kv_heads <= NUM_COUNTERS
    window = params.window or 0
    if isinstance(config, HopperDecodeConfig):
        assert params.is_plain
        from quire.kernels.triton.hopper.hopper_decode import launch_decode

        launch_decode(
            query, k_cache, v_cache, layout, plan.decode_tiles, plan.decode_runs,
            _shared_operands(layout, shared), params.scale * LOG2_E, window, out, config,
            scale_operands(scales), pdl=pdl, plan_is_fresh=plan_is_fresh, opens_early=opens_early,
        )  # fmt: skip
        return
    decode_attention_kernel[(num_programs,)](
        query, k_cache, v_cache, *scale_operands(scales), out,
        layout.block_table, layout.query_start_loc, layout.seq_lens,
        plan.decode_tiles, plan.decode_runs, space.partials, space.counters,
        *_shared_operands(layout, shared), params.sinks,
        num_requests, len(query), params.scale * LOG2_E, query.stride(0), query.stride(1),
        *k_cache.stride()[:3], layout.block_table.stride(0), out.stride(0),
        int(plan_is_fresh), int(opens_early),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        TILE=config.tile, WINDOW=window, SOFT_CAP=log2_soft_cap(params), STAGES=config.stages,
        BLOCK_B=padded_count(num_requests), BLOCK_D=padded_head_dim(k_cache),
        CODES_PATH=_codes_path(query, k_cache), PRECISION=dot_precision(query), PDL=pdl,
        HAS_SHARED=shared is not None, MEMBERS=SHARED_MEMBERS,
        num_warps=config.warps, launch_pdl=pdl,
    )  # fmt: skip


def _shared_operands(layout: BatchLayout, shared: SharedParts | None) -> tuple[Tensor | None, ...]:
    """The kernel's arguments for shared prefixes."""
    if layout.shared is None or shared is None:
        return (None,) * 5
    return layout.shared.index, layout.shared.lens, shared.sums, shared.stats, shared.plan


def prefill_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    plan: Plan,
    params: AttentionParams,
    out: Tensor,
    config: PrefillConfig | HopperConfig,
    scales: KVScales | None = None,
) -> None:
    """Fill the rows of out [T, Hq, D] that belong to requests with several query tokens.

    config: a `HopperConfig` selects Hopper's kernel, for plain params only.
    """
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    group = query.shape[1] // num_kv_heads
    window = params.window or 0
    if isinstance(config, HopperConfig):
        assert params.is_plain
        attend_to_prompts(
            query, k_cache, v_cache, layout, plan, params.scale * LOG2_E, window, out, config,
            scale_operands(scales),
        )  # fmt: skip
        return
    prefill_attention_kernel[(num_kv_heads, len(plan.work))](
        query, k_cache, v_cache, *scale_operands(scales), out, layout.block_table, plan.work,
        plan.num_query_tiles, params.sinks, params.scale * LOG2_E, query.stride(0), query.stride(1),
        *k_cache.stride()[:3], layout.block_table.stride(0), out.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        ROWS=config.rows, TILE=config.tile, WINDOW=window, SOFT_CAP=log2_soft_cap(params),
        STAGES=config.stages, FIELDS=WORK_FIELDS, PRECISION=dot_precision(query),
        num_warps=config.warps,
    )  # fmt: skip


def choose_decode_config(
    query: Tensor, k_cache: Tensor, params: AttentionParams
) -> DecodeConfig | HopperDecodeConfig:
    """The config of decode attention: for Hopper's kernel where that serves the operands."""
    group = query.shape[1] // k_cache.shape[2]
    if group <= 16 and hopper_serves(query, k_cache, params, _FOR_DECODES):
        return hopper_decode_config(k_cache, group, len(query))
    capacity = workspace(query.device).shared_memory
    return fitting_decode(decode_config(k_cache, len(query)), query, k_cache, group, capacity)


def _most_programs(k_cache: Tensor, group: int) -> int:
    """Programs of decode attention whose parts, two of each, fit into the workspace."""
    return NUM_PARTIALS // (2 * group * (padded_head_dim(k_cache) + 2))


def choose_prefill_config(
    query: Tensor, k_cache: Tensor, params: AttentionParams, *, has_few_keys: bool = False
) -> PrefillConfig | HopperConfig:
    """The config of prefill attention: for Hopper's kernel where that serves the operands.

    has_few_keys: see `BatchLayout`. Hopper's kernel has one program on a multiprocessor, which
    stalls at each step of a short prompt; of the plain kernel several programs work on different
    prompts at a time.
    """
    group, space = query.shape[1] // k_cache.shape[2], workspace(query.device)
    if not has_few_keys and group <= 64 and hopper_serves(query, k_cache, params):
        return choose_hopper_config(k_cache, len(query), group, space.num_sms)
    config = short_config(k_cache, group) if has_few_keys else prefill_config(k_cache, group)
    return fitting_prefill(config, query, k_cache, group, space.shared_memory)


def hopper_serves(
    query: Tensor, k_cache: Tensor, params: AttentionParams, types: Set[Types] = _FOR_PROMPTS
) -> bool:
    """Whether Hopper's kernels serve these dtypes, shapes and params.

    types: pairs of a query's and a key's that they serve.
    """
    _, block_size, _, head_dim = k_cache.shape
    return (
        has_hopper_gpu(query.device)
        and params.is_plain
        and (query.dtype, k_cache.dtype) in types
        and head_dim in HOPPER_HEAD_DIMS
        and block_size in HOPPER_BLOCK_SIZES
        and k_cache.is_contiguous()
    )


@functools.cache
def has_hopper_kernels(index: int | None) -> bool:
    """Whether a GPU is a Hopper, and this Triton can import its kernels (in Gluon)."""
    if torch.cuda.get_device_capability(index)[0] != HOPPER_MAJOR:
        return False
    try:
        importlib.import_module("quire.kernels.triton.hopper.hopper_prefill")
    except (ImportError, AttributeError):
        return False
    return True


def has_hopper_gpu(device: torch.device) -> bool:
    """Whether Hopper's kernels run on the device."""
    return device.type == "cuda" and has_hopper_kernels(device.index)


def log2_soft_cap(params: AttentionParams) -> float:
    """The soft cap of scores that are multiplied by log2(e), as kernels take it; 0 for none."""
    return 0.0 if params.soft_cap is None else params.soft_cap * LOG2_E


def dot_precision(query: Tensor) -> str:
    """The input_precision of tl.dot for the query's dtype."""
    return "ieee" if query.dtype == torch.float32 else "tf32"


def scale_operands(scales: KVScales | None) -> tuple[Tensor | None, Tensor | None]:
    """The kernels' arguments for the scales of keys and values."""
    if scales is None:
        return None, None
    assert scales.keys.is_contiguous()
    assert scales.values.is_contiguous()
    return scales.keys, scales.values


def _codes_path(query: Tensor, k_cache: Tensor) -> str:
    """CODES_PATH of decode attention. "plain": they are converted to the query's dtype.

    Also for float32 queries, as the other paths multiply in float16.
    """
    if k_cache.dtype.itemsize > 1 or query.dtype == torch.float32:
        return "plain"
    return "instruction" if query.is_cuda else "numbers"
