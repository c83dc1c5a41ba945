"""Paged attention on a GPU: a plan for each step, then decode and prefill kernels.

Owns which requests go to which kernel, and the launches.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Set
from dataclasses import dataclass
from typing import TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels import reference
from quire.kernels.batch_layout import SHARED_MEMBERS, BatchLayout
from quire.kernels.operands import AttentionParams, KVScales
from quire.kernels.triton.attention.decode_attention import decode_attention_kernel
from quire.kernels.triton.attention.prefill_attention import prefill_attention_kernel
from quire.kernels.triton.attention.prefill_tiles import WORK_FIELDS, prefill_work_kernel
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
from quire.kernels.triton.launch.work_partition import owner, run_begin
from quire.kernels.triton.launch.workspace import (
    NUM_COUNTERS,
    NUM_PARTIALS,
    launches_early,
    workspace,
)

LOG2_E = 1.4426950408889634
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


@dataclass(frozen=True, slots=True)
class Plan:
    """The partition of a step's attention among programs, for one window and config."""

    decode_tiles: Tensor  # int32 [B + 1]: number of key tiles of all decodes before each request
    decode_runs: Tensor  # int32 [programs, 10]: run of each decode program, see `_store_runs`
    num_query_tiles: Tensor  # int32 [1], query tiles of all prefills
    work: Tensor  # int32 [most, WORK_FIELDS]: query tiles, see `prefill_work_kernel`


def attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    params: AttentionParams,
    scales: KVScales | None = None,
) -> Tensor:
    """PagedAttention: twin of `reference.attention`, for any block size."""
    group = query.shape[1] // k_cache.shape[2]
    decode = choose_decode_config(query, k_cache, params)
    prefill = choose_prefill_config(query, k_cache, params, has_few_keys=layout.has_few_keys)
    window, tokens = params.window or 0, prefill.tokens(group)
    key = ("triton attention", window, decode, tokens)
    is_fresh = not layout.knows(key)
    plan = layout.once(key, lambda: make_plan(layout, window, decode, tokens, k_cache.shape[2]))
    out = query.new_empty(query.shape)
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
            opens_early=pdl and has_hopper_gpu(query.device) and opens_early(k_cache, len(query)),
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
    if isinstance(
        config, HopperDecodeConfig
    ):  # a crew of programs for each run, one for each key head
        num_programs *= num_kv_heads
    part = group * (padded_head_dim(k_cache) + 2)
    assert 2 * num_programs * part <= NUM_PARTIALS
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
        *k_cache.stride()[:3], layout.block_table.stride(0), out.stride(0), config.min_units,
        int(plan_is_fresh), int(opens_early),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        TILE=config.tile, WINDOW=window, SOFT_CAP=log2_soft_cap(params), STAGES=config.stages,
        BLOCK_B=_padded_count(num_requests), BLOCK_D=padded_head_dim(k_cache),
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
        from quire.kernels.triton.hopper.hopper_prefill import launch_prefill

        launch_prefill(
            query, k_cache, v_cache, layout.block_table, plan.work, plan.num_query_tiles,
            params.scale * LOG2_E, window, out, config, scale_operands(scales),
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
    return decode_config(k_cache, len(query))


def choose_prefill_config(
    query: Tensor, k_cache: Tensor, params: AttentionParams, *, has_few_keys: bool = False
) -> PrefillConfig | HopperConfig:
    """The config of prefill attention: for Hopper's kernel where that serves the operands.

    has_few_keys: see `BatchLayout`. Hopper's kernel has one program on a multiprocessor, which
    stalls at each step of a short prompt; of the plain kernel several programs work on different
    prompts at a time.
    """
    group = query.shape[1] // k_cache.shape[2]
    if has_few_keys:
        return short_config(k_cache, group)
    if group <= 64 and hopper_serves(query, k_cache, params):
        return choose_hopper_config(k_cache, len(query), group, workspace(query.device).num_sms)
    return prefill_config(k_cache, group)


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
        and head_dim in (64, 128)
        and block_size in (8, 16, 32, 64, 128)
        and k_cache.is_contiguous()
    )


@functools.cache
def has_hopper_kernels(index: int | None) -> bool:
    """Whether a GPU is a Hopper, and this Triton can import its kernels (in Gluon)."""
    if torch.cuda.get_device_capability(index)[0] != 9:
        return False
    try:
        importlib.import_module("quire.kernels.triton.hopper.hopper_prefill")
    except (ImportError, AttributeError):
        return False
    return True


def has_hopper_gpu(device: torch.device) -> bool:
    """Whether Hopper's kernels run on the device."""
    return device.type == "cuda" and has_hopper_kernels(device.index)


def _most_query_tiles(num_tokens: int, num_requests: int, query_tile: int) -> int:
    """A bound on the number of query tiles that holds for any lengths of requests.

    Each request has a token or more, and one partial tile at most.
    """
    most_requests = min(num_requests, num_tokens)
    return max(1, most_requests + (num_tokens - most_requests) // query_tile)


def _padded_count(num_requests: int) -> int:
    """num_requests rounded up to a power of two, 64 at least, so that few kernels are compiled."""
    return max(64, 1 << (num_requests - 1).bit_length())


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


def make_plan(
    layout: BatchLayout,
    window: int,
    decode: DecodeConfig | HopperDecodeConfig | None,
    query_tile: int,
    num_kv_heads: int,
) -> Plan:
    """Compute a plan on the device. window: 0 for none. query_tile: tokens of a query tile.

    decode: None: prefill attention serves requests with one query token, too.
    """
    num_requests = len(layout.seq_lens)
    config = decode or DecodeConfig(tile=16, stages=1, per_sm=1)
    num_programs = config.per_sm * workspace(layout.seq_lens.device).num_sms
    if isinstance(
        config, HopperDecodeConfig
    ):  # a run for each crew, which has a program for each key head
        num_programs, num_kv_heads = max(1, num_programs // num_kv_heads), 1
    shared = layout.shared if not window else None
    index, lens = (None, None) if shared is None else (shared.index, shared.lens)
    starts = layout.seq_lens.new_empty(2, num_requests + 1)
    runs = layout.seq_lens.new_empty(num_programs, 10)
    plan_kernel[(triton.cdiv(num_programs, 16),)](
        layout.query_start_loc, layout.seq_lens, index, lens, starts[0], starts[1], runs,
        num_requests, num_programs, config.min_units,
        KEY_TILE=config.tile, QUERY_TILE=query_tile, WINDOW=window, NUM_KV_HEADS=num_kv_heads,
        DECODES=decode is not None, MEMBERS=SHARED_MEMBERS,
        BLOCK_B=_padded_count(num_requests), BLOCK_P=16,
    )  # fmt: skip
    most_tiles = _most_query_tiles(len(layout.slot_mapping), num_requests, query_tile)
    work = layout.seq_lens.new_empty(most_tiles, WORK_FIELDS)
    if layout.has_prefills or decode is None:
        prefill_work_kernel[(triton.cdiv(most_tiles, 16),)](
            layout.query_start_loc, layout.seq_lens, starts[1], work, num_requests,
            TOKENS=query_tile, BLOCK_B=_padded_count(num_requests), BLOCK_T=16, FIELDS=WORK_FIELDS,
        )  # fmt: skip
    return Plan(starts[0], runs, num_query_tiles=starts[1, -1:], work=work)


@triton.jit(do_not_specialize=["num_requests", "num_programs", "min_units"])
def plan_kernel(
    query_start_ptr, seq_lens_ptr, shared_index_ptr, lens_ptr, decode_tiles_ptr, query_tiles_ptr,
    runs_ptr, num_requests, num_programs, min_units,
    KEY_TILE: tl.constexpr, QUERY_TILE: tl.constexpr, WINDOW: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, DECODES: tl.constexpr, MEMBERS: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Fill a `Plan`: each program BLOCK_P of the runs, program 0 the tile counts as well."""
    request = tl.arange(0, BLOCK_B)
    there = request < num_requests
    begin = tl.load(query_start_ptr + request, mask=there, other=0)
    queries = tl.load(query_start_ptr + request + 1, mask=there, other=0) - begin
    seq_len = tl.load(seq_lens_ptr + request, mask=there, other=0)
    oldest = tl.zeros_like(seq_len)
    if WINDOW > 0:
        oldest = tl.maximum(seq_len - WINDOW, 0)
    if shared_index_ptr is not None:
        member = tl.load(shared_index_ptr + request, mask=there, other=-1)
        oldest = tl.load(lens_ptr + member // MEMBERS, mask=member >= 0, other=0)
    key_tiles = tl.cdiv(seq_len, KEY_TILE) - oldest // KEY_TILE
    decodes = there & (queries == 1) & DECODES
    key_tiles = tl.where(decodes, key_tiles, 0)
    ends = tl.cumsum(key_tiles, axis=0)
    if tl.program_id(0) == 0:
        query_tiles = tl.where(there & (decodes == 0), tl.cdiv(queries, QUERY_TILE), 0)
        tl.store(decode_tiles_ptr, 0)
        tl.store(query_tiles_ptr, 0)
        tl.store(decode_tiles_ptr + 1 + request, ends, mask=there)
        tl.store(query_tiles_ptr + 1 + request, tl.cumsum(query_tiles, axis=0), mask=there)
    program = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    _store_runs(
        runs_ptr, query_start_ptr, seq_lens_ptr, program, ends, tl.sum(key_tiles) * NUM_KV_HEADS,
        num_programs, min_units, NUM_KV_HEADS,
    )  # fmt: skip


@triton.jit
def _store_runs(
    runs_ptr, query_start_ptr, seq_lens_ptr, program, ends, num_units, num_programs, min_units,
    NUM_KV_HEADS: tl.constexpr,
):  # fmt: skip
    """Store runs [programs, 10], the run of units of each decode program:

    its first unit and its end; the first unit's request and key head; the first unit and the number
    of tiles of that (request, head); the request's token and length; the first and the last program
    that work on that (request, head).
    """
    busy = tl.minimum(num_programs, tl.cdiv(num_units, min_units))
    works = program < busy
    busy = tl.maximum(busy, 1)
    begin = tl.where(works, run_begin(program, busy, num_units), num_units)
    end = tl.where(works, run_begin(program + 1, busy, num_units), num_units)
    passed = ends[None, :] <= (begin // NUM_KV_HEADS)[:, None]  # [BLOCK_P, BLOCK_B]
    request = tl.sum(passed.to(tl.int32), axis=1)
    before = tl.max(tl.where(passed, ends[None, :], 0), axis=1)
    num_tiles = tl.min(tl.where(passed, 2**30, ends[None, :]), axis=1) - before
    head = (begin - before * NUM_KV_HEADS) // num_tiles
    row_unit = before * NUM_KV_HEADS + head * num_tiles
    run, there = runs_ptr + program * 10, program < num_programs
    tl.store(run, begin, mask=there)
    tl.store(run + 1, end, mask=there)
    tl.store(run + 2, request, mask=there)
    tl.store(run + 3, head, mask=there)
    tl.store(run + 4, row_unit, mask=there)
    tl.store(run + 5, num_tiles, mask=there)
    tl.store(run + 6, tl.load(query_start_ptr + request, mask=works, other=0), mask=there)
    tl.store(run + 7, tl.load(seq_lens_ptr + request, mask=works, other=0), mask=there)
    units = tl.maximum(num_units, 1)
    tl.store(run + 8, owner(row_unit, busy, units), mask=there)
    tl.store(run + 9, owner(row_unit + num_tiles - 1, busy, units), mask=there)
