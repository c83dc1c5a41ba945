"""Attention whose result for a token does not depend on what else is in the batch, bit for bit.

The keys of a request are cut into pieces by their positions. Each piece has a softmax of its own,
and pieces are merged in order, by one program, or by the last of those that share a token's pieces
where the step has few. Tiles that hide all keys of a row leave its sums as they are, so what other
queries a tile holds does not matter either.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.operands import AttentionParams
from quire.kernels.triton.attention.prefill_attention import (
    attend_tiles,
    load_queries,
    rows_of_tile,
)
from quire.kernels.triton.attention.prefill_tiles import WORK_FIELDS
from quire.kernels.triton.attention.softmax_options import softmax_of_sinks
from quire.kernels.triton.launch.attention_config import padded_head_dim, prefill_config
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
    make_plan,
)

PIECE = 256  # keys; results depend on it


def attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    layout: BatchLayout,
    params: AttentionParams,
) -> Tensor:
    """Twin of `reference.attention`."""
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    group, window = query.shape[1] // num_kv_heads, params.window or 0
    config = prefill_config(k_cache, group)
    tokens = config.tokens(group)
    plan = layout.once(
        ("invariant attention", window, tokens),
        lambda: make_plan(layout, window, None, tokens, num_kv_heads),
    )
    out, space = query.new_empty(query.shape), workspace(query.device)
    most_tiles, pdl = len(plan.work), launches_early(query.device)
    # programs for two on each multiprocessor
    shares = triton.cdiv(2 * space.num_sms, num_kv_heads * most_tiles)
    most_pieces = NUM_PARTIALS // (num_kv_heads * group * (padded_head_dim(k_cache) + 2))
    assert shares == 1 or num_kv_heads * most_tiles <= NUM_COUNTERS
    if _hopper_takes(query, k_cache, params):
        from quire.kernels.triton.invariant.hopper_split_attention import launch_split_attention

        log2_scale = params.scale * LOG2_E
        launch_split_attention(
            query, k_cache, v_cache, layout, plan, log2_scale, window, out, PIECE, shares,
            most_pieces,
        )  # fmt: skip
        return out
    invariant_attention_kernel[(num_kv_heads, most_tiles, shares)](
        query, k_cache, v_cache, out, layout.block_table, plan.work, plan.num_query_tiles,
        layout.query_start_loc, space.partials, space.counters, params.sinks,
        len(query), len(layout.seq_lens), most_pieces,
        params.scale * LOG2_E, query.stride(0), query.stride(1), *k_cache.stride()[:3],
        layout.block_table.stride(0), out.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        ROWS=config.rows, TILE=config.tile, PIECE=PIECE, WINDOW=window,
        SOFT_CAP=log2_soft_cap(params), STAGES=config.stages, FIELDS=WORK_FIELDS,
        PRECISION=dot_precision(query), PDL=pdl, num_warps=config.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out


def _hopper_takes(query: Tensor, k_cache: Tensor, params: AttentionParams) -> bool:
    """Whether Hopper has a kernel for these."""
    few = query.shape[1] // k_cache.shape[2] <= 64
    return few and query.dtype == k_cache.dtype and hopper_serves(query, k_cache, params)


@triton.jit(do_not_specialize=["num_tokens", "num_requests", "most_pieces", "stride_table"])
def invariant_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, block_table_ptr, work_ptr, num_tiles_ptr, query_start_ptr,
    part_ptr, counter_ptr, sinks_ptr, num_tokens, num_requests, most_pieces,
    scale, stride_q_token, stride_q_head, stride_block, stride_slot, stride_kv_head,
    stride_table, stride_out_token,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, PIECE: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, STAGES: tl.constexpr, FIELDS: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """q [T, Hkv · GROUP, D], caches [blocks, BLOCK_SIZE, Hkv, D] → out [T, Hkv · GROUP, D].

    Programs: key heads, tiles of ROWS // GROUP queries as work [most, FIELDS] lists them, and those
    that share the pieces of one that has a single query. part: room for most_pieces of all heads.
    scale: of the scores, times log2(e). SOFT_CAP: of scores times log2(e), 0 for none. sinks
    [Hkv · GROUP] or None. Rows of padding become zeros.
    """
    BLOCK_D: tl.constexpr = max(16, triton.next_power_of_2(HEAD_DIM))  # 16: the least of tl.dot
    TILES: tl.constexpr = PIECE // TILE
    if PDL:
        follow()
    head, tile, share = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if share == 0:
        padding = tl.load(query_start_ptr + num_requests)
        for token in range(padding + tile, num_tokens, tl.num_programs(1)):
            _clear(out_ptr + token * stride_out_token + head * GROUP * HEAD_DIM, GROUP * HEAD_DIM)
    if tile >= tl.load(num_tiles_ptr):
        return
    record = work_ptr + tile * FIELDS
    q, position, row_scale, request, num_queries, seq_len, first_query = load_queries(
        q_ptr, record, head, scale, stride_q_token, stride_q_head,
        k_ptr.dtype.element_ty == tl.float8e4nv, GROUP, HEAD_DIM, ROWS, BLOCK_D,
    )  # fmt: skip
    lowest = seq_len - num_queries + first_query
    highest = tl.minimum(lowest + ROWS // GROUP, seq_len)  # one beyond the last query's position
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(lowest + 1 - WINDOW, 0) // TILE
    end = tl.cdiv(highest, TILE)
    # tiles of keys that every query of this tile sees whole need no mask
    full_begin, full_end = begin, (lowest + 1) // TILE
    if WINDOW > 0:
        full_begin = tl.minimum(tl.cdiv(tl.maximum(highest - WINDOW, 0), TILE), full_end)
    first_piece, end_piece = begin // TILES, tl.cdiv(end, TILES)
    num_pieces = end_piece - first_piece
    shares, before = 1, 0
    if (tl.num_programs(2) > 1) & (num_queries == 1):
        each = tl.arange(0, 32)
        for start in range(0, tile, 32):  # other tiles' pieces
            lens = tl.load(work_ptr + (start + each) * FIELDS + 3, start + each < tile, 0)
            before += tl.sum(tl.cdiv(lens, PIECE))
        if before + num_pieces <= most_pieces:
            shares = tl.minimum(tl.num_programs(2), num_pieces)
    if share >= shares:
        return
    k_base, v_base = k_ptr + head * stride_kv_head, v_ptr + head * stride_kv_head
    table = block_table_ptr + request * stride_table
    PART: tl.constexpr = GROUP * (BLOCK_D + 2)
    part_ptr += (before * NUM_KV_HEADS + head) * PART
    total = tl.zeros([ROWS, BLOCK_D], tl.float32)
    total_m = tl.full([ROWS], -1e30, tl.float32)
    total_s = tl.zeros([ROWS], tl.float32)
    if sinks_ptr is not None:
        sinks_ptr += head * GROUP
        total_m, total_s = softmax_of_sinks(sinks_ptr + tl.arange(0, ROWS) % GROUP)
    for number in range(share * num_pieces // shares, (share + 1) * num_pieces // shares):
        first = (first_piece + number) * TILES
        acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
        m = tl.full([ROWS], -1e30, tl.float32)
        s = tl.zeros([ROWS], tl.float32)
        if WINDOW > 0:
            acc, m, s = attend_tiles(
                acc, m, s, q, position, k_base, v_base, table,
                tl.maximum(first, begin), tl.minimum(first + TILES, full_begin), seq_len,
                row_scale, stride_block, stride_slot,
                HEAD_DIM, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP, STAGES, BLOCK_D, True, PRECISION,
            )  # fmt: skip
        acc, m, s = attend_tiles(
            acc, m, s, q, position, k_base, v_base, table,
            tl.maximum(first, full_begin), tl.minimum(first + TILES, full_end), seq_len,
            row_scale, stride_block, stride_slot,
            HEAD_DIM, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP, STAGES, BLOCK_D, False, PRECISION,
        )  # fmt: skip
        acc, m, s = attend_tiles(
            acc, m, s, q, position, k_base, v_base, table,
            tl.maximum(first, full_end), tl.minimum(first + TILES, end), seq_len,
            row_scale, stride_block, stride_slot,
            HEAD_DIM, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP, STAGES, BLOCK_D, True, PRECISION,
        )  # fmt: skip
        if shares > 1:
            row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
            parts = part_ptr + number * (NUM_KV_HEADS * PART)
            tl.store(parts + row[:, None] * BLOCK_D + d[None, :], acc, mask=(row < GROUP)[:, None])
            tl.store(parts + GROUP * BLOCK_D + row, m, mask=row < GROUP)
            tl.store(parts + GROUP * (BLOCK_D + 1) + row, s, mask=row < GROUP)
        else:
            total, total_m, total_s = _with_piece(total, total_m, total_s, acc, m, s)
    if shares > 1:
        if arrive(counter_ptr + tile * NUM_KV_HEADS + head, shares):
            out_ptr += tl.load(record + 1) * stride_out_token + head * (GROUP * HEAD_DIM)
            _merge(
                out_ptr, part_ptr, sinks_ptr, NUM_KV_HEADS * PART, num_pieces, GROUP, HEAD_DIM,
                BLOCK_D,
            )  # fmt: skip
    else:
        total_s = tl.maximum(total_s, 1e-30)  # rows of no query may have seen nothing
        out = (total / total_s[:, None]).to(out_ptr.dtype.element_ty)
        token, q_head, there = rows_of_tile(record, head, GROUP, HEAD_DIM, ROWS, BLOCK_D)
        at = (token * stride_out_token + q_head * HEAD_DIM)[:, None]
        tl.store(out_ptr + at + tl.arange(0, BLOCK_D)[None, :], out, mask=there)


@triton.jit
def _clear(out_ptr, SIZE: tl.constexpr):
    i = tl.arange(0, triton.next_power_of_2(SIZE))
    zeros = tl.zeros([triton.next_power_of_2(SIZE)], out_ptr.dtype.element_ty)
    tl.store(out_ptr + i, zeros, mask=i < SIZE)


@triton.jit
def _with_piece(total, total_m, total_s, acc, m, s):
    """Sums, maxima and totals with those of the next piece.

    Asked for as multiply-adds, since compilers are free to make others in each place.
    """
    new_m = tl.maximum(total_m, m)
    shrink, share = tl.exp2(total_m - new_m), tl.exp2(m - new_m)
    total = tl.fma(acc, tl.broadcast_to(share[:, None], acc.shape), total * shrink[:, None])
    return total, new_m, tl.fma(s, share, total_s * shrink)


@triton.jit
def _merge(
    out_ptr, part_ptr, sinks_ptr, stride, num_pieces,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The pieces that others left, in their order: one query's heads."""
    AT_ONCE: tl.constexpr = 4  # whose loads do not wait for each other
    GROUPS: tl.constexpr = triton.next_power_of_2(GROUP)
    g, d = tl.arange(0, GROUPS), tl.arange(0, BLOCK_D)
    places = g[:, None] * BLOCK_D + d[None, :]
    total = tl.zeros([GROUPS, BLOCK_D], tl.float32)
    total_m = tl.full([GROUPS], -1e30, tl.float32)
    total_s = tl.zeros([GROUPS], tl.float32)
    if sinks_ptr is not None:
        total_m, total_s = softmax_of_sinks(sinks_ptr + g % GROUP)
    for first in range(0, num_pieces, AT_ONCE):
        sums, maxima, weights = (), (), ()
        for i in tl.static_range(AT_ONCE):
            parts = part_ptr + (first + i) * stride
            there = g < tl.where(first + i < num_pieces, GROUP, 0)
            sums += (tl.load(parts + places, there[:, None], 0.0, cache_modifier=".cg"),)  # type: ignore[assignment]
            parts += GROUP * BLOCK_D
            maxima += (tl.load(parts + g, there, -1e30, cache_modifier=".cg"),)  # type: ignore[assignment]
            weights += (tl.load(parts + GROUP + g, there, 0.0, cache_modifier=".cg"),)  # type: ignore[assignment]
        for i in tl.static_range(AT_ONCE):
            total, total_m, total_s = _with_piece(
                total, total_m, total_s, sums[i], maxima[i], weights[i]
            )
    out = (total / tl.maximum(total_s, 1e-30)[:, None]).to(out_ptr.dtype.element_ty)
    inside = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(out_ptr + g[:, None] * HEAD_DIM + d[None, :], out, mask=inside)
