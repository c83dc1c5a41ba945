"""Batch-invariant attention: results do not depend on the rest of the batch, bit for bit.

The keys of a request are cut into splits of fixed length by their positions. Each split has its own
softmax, and splits are merged in order: by one program or, where a step has few queries, by the
last of several programs that share a token's splits. A key tile that is masked for a row leaves the
row's sums unchanged, so the other queries of a tile have no effect either.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.operands import AttentionParams, KVScales
from quire.kernels.triton.attention.attention_plan import make_plan
from quire.kernels.triton.attention.decode_attention import clear_row
from quire.kernels.triton.attention.prefill_attention import (
    attend_ranges,
    key_tiles,
    load_queries,
    rows_of_tile,
)
from quire.kernels.triton.attention.prefill_tiles import WORK_FIELDS
from quire.kernels.triton.attention.softmax_options import softmax_of_sinks
from quire.kernels.triton.launch.attention_config import padded_head_dim, prefill_config
from quire.kernels.triton.launch.attention_memory import fitting_prefill
from quire.kernels.triton.launch.row_memory import empty_rows
from quire.kernels.triton.launch.work_partition import arrive
from quire.kernels.triton.launch.workspace import (
    NUM_COUNTERS,
    NUM_PARTIALS,
    follow,
    launches_early,
    workspace,
)
from quire.kernels.triton.ops.paged_attention import (
    LOG2_E,
    dot_precision,
    hopper_serves,
    log2_soft_cap,
    scale_operands,
)

SPLIT = 256  # keys of a split; results depend on it


def attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    params: AttentionParams,
    scales: KVScales | None = None,
) -> Tensor:
    """Twin of `reference.attention`."""
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    group, window = query.shape[1] // num_kv_heads, params.window or 0
    out = empty_rows(*query.shape, dtype=query.dtype, device=query.device)
    space = workspace(query.device)
    usual = prefill_config(k_cache, group)
    config = fitting_prefill(usual, query, k_cache, group, space.shared_memory)
    tokens = config.tokens(group)
    plan = layout.once(
        ("invariant attention", window, tokens),
        lambda: make_plan(layout, window, None, tokens, num_kv_heads),
    )
    most_tiles, pdl = len(plan.work), launches_early(query.device)
    # about two programs for each multiprocessor
    sharers = triton.cdiv(2 * space.num_sms, num_kv_heads * most_tiles)
    most_splits = NUM_PARTIALS // (num_kv_heads * group * (padded_head_dim(k_cache) + 2))
    assert sharers == 1 or num_kv_heads * most_tiles <= NUM_COUNTERS
    if _hopper_serves(query, k_cache, params):
        from quire.kernels.triton.invariant.hopper_split_attention import launch_split_attention

        log2_scale = params.scale * LOG2_E
        launch_split_attention(
            query, k_cache, v_cache, layout, plan, log2_scale, window, out, SPLIT, sharers,
            most_splits,
        )  # fmt: skip
        return out
    invariant_attention_kernel[(num_kv_heads, most_tiles, sharers)](
        query, k_cache, v_cache, *scale_operands(scales), out, layout.block_table, plan.work,
        plan.num_query_tiles, layout.query_start_loc, space.partials, space.counters, params.sinks,
        len(query), len(layout.seq_lens), most_splits,
        params.scale * LOG2_E, query.stride(0), query.stride(1), *k_cache.stride()[:3],
        layout.block_table.stride(0), out.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        ROWS=config.rows, TILE=config.tile, SPLIT=SPLIT, WINDOW=window,
        SOFT_CAP=log2_soft_cap(params), STAGES=config.stages, FIELDS=WORK_FIELDS,
        PRECISION=dot_precision(query), PDL=pdl, num_warps=config.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def _hopper_serves(query: Tensor, k_cache: Tensor, params: AttentionParams) -> bool:
    """Whether Hopper's kernel serves these operands and params."""
    few = query.shape[1] // k_cache.shape[2] <= 64
    return few and query.dtype == k_cache.dtype and hopper_serves(query, k_cache, params)


@triton.jit(do_not_specialize=["num_tokens", "num_requests", "most_splits", "stride_table"])
def invariant_attention_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, out_ptr, block_table_ptr, work_ptr,
    num_tiles_ptr, query_start_ptr, part_ptr, counter_ptr, sinks_ptr,
    num_tokens, num_requests, most_splits, scale, stride_q_token, stride_q_head, stride_block,
    stride_slot, stride_kv_head, stride_table, stride_out_token,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, STAGES: tl.constexpr, FIELDS: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """q [T, Hkv · GROUP, D], caches [blocks, BLOCK_SIZE, Hkv, D] → out [T, Hkv · GROUP, D].

    Grid: key heads, tiles of ROWS // GROUP queries as work [most, FIELDS] lists them, and programs
    that share the splits of a tile with a single query. part: partial results of at most
    most_splits splits of all heads. scale: of the scores, times log2(e). SOFT_CAP: of scores times
    log2(e), 0 for none. sinks [Hkv · GROUP] or None. Rows of padding become zeros.
    """
    BLOCK_D: tl.constexpr = max(16, triton.next_power_of_2(HEAD_DIM))  # 16: the least of tl.dot
    TILES: tl.constexpr = SPLIT // TILE
    if PDL:
        follow()
    head, tile, share = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if share == 0:
        padding = tl.load(query_start_ptr + num_requests)
        for token in range(padding + tile, num_tokens, tl.num_programs(1)):
            row = out_ptr + token * stride_out_token + head * GROUP * HEAD_DIM
            clear_row(row, GROUP * HEAD_DIM)
    if tile >= tl.load(num_tiles_ptr):
        return
    record = work_ptr + tile * FIELDS
    q, position, row_scale, request, num_queries, seq_len, first_query = load_queries(
        q_ptr, record, head, scale, stride_q_token, stride_q_head,
        k_ptr.dtype.element_ty == tl.float8e4nv, GROUP, HEAD_DIM, ROWS, BLOCK_D,
    )  # fmt: skip
    lowest = seq_len - num_queries + first_query
    begin, full_begin, full_end, end = key_tiles(lowest, ROWS // GROUP, seq_len, TILE, WINDOW)
    first_split, end_split = begin // TILES, tl.cdiv(end, TILES)
    num_splits = end_split - first_split
    sharers, before = 1, 0
    if (tl.num_programs(2) > 1) & (num_queries == 1):
        each = tl.arange(0, 32)
        for start in range(0, tile, 32):  # splits of the tiles before
            lens = tl.load(work_ptr + (start + each) * FIELDS + 3, start + each < tile, 0)
            before += tl.sum(tl.cdiv(lens, SPLIT))
        if before + num_splits <= most_splits:
            sharers = tl.minimum(tl.num_programs(2), num_splits)
    if share >= sharers:
        return
    k_base, v_base = k_ptr + head * stride_kv_head, v_ptr + head * stride_kv_head
    table = block_table_ptr + request * stride_table
    scales = (k_scale_ptr, v_scale_ptr, head)
    PART: tl.constexpr = GROUP * (BLOCK_D + 2)
    part_ptr += (before * NUM_KV_HEADS + head) * PART
    total = tl.zeros([ROWS, BLOCK_D], tl.float32)
    total_m = tl.full([ROWS], -1e30, tl.float32)
    total_s = tl.zeros([ROWS], tl.float32)
    if sinks_ptr is not None:
        sinks_ptr += head * GROUP
        total_m, total_s = softmax_of_sinks(sinks_ptr + tl.arange(0, ROWS) % GROUP)
    for number in range(share * num_splits // sharers, (share + 1) * num_splits // sharers):
        first = (first_split + number) * TILES
        acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
        m = tl.full([ROWS], -1e30, tl.float32)
        s = tl.zeros([ROWS], tl.float32)
        last = first + TILES
        acc, m, s = attend_ranges(
            acc, m, s, q, position, k_base, v_base, scales, table,
            (tl.maximum(first, begin), tl.maximum(first, full_begin), tl.maximum(first, full_end)),
            (tl.minimum(last, full_begin), tl.minimum(last, full_end), tl.minimum(last, end)),
            seq_len, row_scale, stride_block, stride_slot,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP, STAGES, BLOCK_D, PRECISION,
        )  # fmt: skip
        if sharers > 1:
            row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
            parts = part_ptr + number * (NUM_KV_HEADS * PART)
            tl.store(parts + row[:, None] * BLOCK_D + d[None, :], acc, mask=(row < GROUP)[:, None])
            tl.store(parts + GROUP * BLOCK_D + row, m, mask=row < GROUP)
            tl.store(parts + GROUP * (BLOCK_D + 1) + row, s, mask=row < GROUP)
        else:
            total, total_m, total_s = _add_split(total, total_m, total_s, acc, m, s)
    if sharers > 1:
        if arrive(counter_ptr + tile * NUM_KV_HEADS + head, sharers):
            out_ptr += tl.load(record + 1) * stride_out_token + head * (GROUP * HEAD_DIM)
            _merge(
                out_ptr, part_ptr, sinks_ptr, NUM_KV_HEADS * PART, num_splits, GROUP, HEAD_DIM,
                BLOCK_D,
            )  # fmt: skip
    else:
        total_s = tl.maximum(total_s, 1e-30)  # rows without a query may have seen no key
        out = (total / total_s[:, None]).to(out_ptr.dtype.element_ty)
        token, q_head, there = rows_of_tile(record, head, GROUP, HEAD_DIM, ROWS, BLOCK_D)
        at = (token * stride_out_token + q_head * HEAD_DIM)[:, None]
        tl.store(out_ptr + at + tl.arange(0, BLOCK_D)[None, :], out, mask=there)


@triton.jit
def _add_split(total, total_m, total_s, acc, m, s):
    """Merge the next split's sums, maxima and totals into the running ones.

    By explicit fused multiply-adds, since a compiler may choose them differently in each kernel.
    """
    new_m = tl.maximum(total_m, m)
    shrink, share = tl.exp2(total_m - new_m), tl.exp2(m - new_m)
    total = tl.fma(acc, tl.broadcast_to(share[:, None], acc.shape), total * shrink[:, None])
    return total, new_m, tl.fma(s, share, total_s * shrink)


@triton.jit
def _merge(
    out_ptr, part_ptr, sinks_ptr, stride, num_splits,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Merge all splits of one query's heads, in order, and store the result."""
    AT_ONCE: tl.constexpr = 4  # splits loaded together, without waiting for each other
    GROUPS: tl.constexpr = triton.next_power_of_2(GROUP)
    g, d = tl.arange(0, GROUPS), tl.arange(0, BLOCK_D)
    offsets = g[:, None] * BLOCK_D + d[None, :]
    total = tl.zeros([GROUPS, BLOCK_D], tl.float32)
    total_m = tl.full([GROUPS], -1e30, tl.float32)
    total_s = tl.zeros([GROUPS], tl.float32)
    if sinks_ptr is not None:
        total_m, total_s = softmax_of_sinks(sinks_ptr + g % GROUP)
    for first in range(0, num_splits, AT_ONCE):
        sums, maxima, weights = (), (), ()
        for i in tl.static_range(AT_ONCE):
            parts = part_ptr + (first + i) * stride
            there = g < tl.where(first + i < num_splits, GROUP, 0)
            sums += (tl.load(parts + offsets, there[:, None], 0.0, cache_modifier=".cg"),)  # type: ignore[assignment]
            parts += GROUP * BLOCK_D
            maxima += (tl.load(parts + g, there, -1e30, cache_modifier=".cg"),)  # type: ignore[assignment]
            weights += (tl.load(parts + GROUP + g, there, 0.0, cache_modifier=".cg"),)  # type: ignore[assignment]
        for i in tl.static_range(AT_ONCE):
            total, total_m, total_s = _add_split(
                total, total_m, total_s, sums[i], maxima[i], weights[i]
            )
    out = (total / tl.maximum(total_s, 1e-30)[:, None]).to(out_ptr.dtype.element_ty)
    inside = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(out_ptr + g[:, None] * HEAD_DIM + d[None, :], out, mask=inside)
