"""Causal attention of prefill chunks over paged keys and values, cached prefixes included.

Floor: 4 · D operations for each query, head and visible key over the tensor cores' rate. A tile
holds some tokens' query heads of one key head, token by token, so keys are loaded once for all of
them. Tiles with the most keys start first. FP8 keys and values are converted to the query's dtype.
(FlashAttention: Dao et al., 2022.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.kernels.triton.attention.kv_codes import LIFT, load_scales, scale_to_float16
from quire.kernels.triton.attention.softmax_options import soft_capped, softmax_of_sinks


@triton.jit(do_not_specialize=["stride_table"])
def prefill_attention_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, out_ptr, block_table_ptr, work_ptr,
    num_tiles_ptr, sinks_ptr,
    scale, stride_q_token, stride_q_head, stride_block, stride_slot, stride_kv_head,
    stride_table, stride_out_token,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr, STAGES: tl.constexpr, FIELDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """q [T, Hkv · GROUP, D], caches [blocks, BLOCK_SIZE, Hkv, D] → out [T, Hkv · GROUP, D].

    One program for each key head and tile of ROWS // GROUP tokens; work int32 [most, FIELDS] lists
    the tiles (see `prefill_tiles.py`). scale: of the scores, times log2(e). SOFT_CAP: of scores
    times log2(e), 0 for none. sinks [Hkv · GROUP] or None. k_scale, v_scale
    [blocks, BLOCK_SIZE, Hkv]: of keys and values in INT8, else None.
    """
    BLOCK_D: tl.constexpr = max(16, triton.next_power_of_2(HEAD_DIM))  # 16: the least of tl.dot
    head, tile = tl.program_id(0), tl.program_id(1)
    if tile >= tl.load(num_tiles_ptr):
        return
    record = work_ptr + tile * FIELDS
    q, position, row_scale, request, num_queries, seq_len, first_query = load_queries(
        q_ptr, record, head, scale, stride_q_token, stride_q_head,
        k_ptr.dtype.element_ty == tl.float8e4nv, GROUP, HEAD_DIM, ROWS, BLOCK_D,
    )  # fmt: skip
    lowest = seq_len - num_queries + first_query
    begin, full_begin, full_end, end = key_tiles(lowest, ROWS // GROUP, seq_len, TILE, WINDOW)
    acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
    m = tl.full([ROWS], -1e30, tl.float32)
    s = tl.zeros([ROWS], tl.float32)
    if sinks_ptr is not None:
        m, s = softmax_of_sinks(sinks_ptr + head * GROUP + tl.arange(0, ROWS) % GROUP)
    k_base, v_base = k_ptr + head * stride_kv_head, v_ptr + head * stride_kv_head
    table = block_table_ptr + request * stride_table
    scales = (k_scale_ptr, v_scale_ptr, head)
    acc, m, s = attend_ranges(
        acc, m, s, q, position, k_base, v_base, scales, table,
        (begin, full_begin, full_end), (full_begin, full_end, end),
        seq_len, row_scale, stride_block, stride_slot,
        NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP, STAGES, BLOCK_D, PRECISION,
    )  # fmt: skip
    s = tl.maximum(s, 1e-30)  # rows without a query may have seen no key
    out = (acc / s[:, None]).to(out_ptr.dtype.element_ty)
    token, q_head, there = rows_of_tile(record, head, GROUP, HEAD_DIM, ROWS, BLOCK_D)
    d = tl.arange(0, BLOCK_D)[None, :]
    offset = (token * stride_out_token + q_head * HEAD_DIM)[:, None] + d
    tl.store(out_ptr + offset, out, mask=there)


@triton.jit
def load_queries(
    q_ptr, record_ptr, head, scale, stride_q_token, stride_q_head,
    IN_FP8: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Load a tile of queries and its record.

    Returns q [ROWS, BLOCK_D], each row's position and scale of its scores [ROWS], and of the tile:
    request, number of queries and of keys of the request, index of its first query. IN_FP8: whether
    keys are in FP8.
    """
    token, q_head, there = rows_of_tile(record_ptr, head, GROUP, HEAD_DIM, ROWS, BLOCK_D)
    request, first_token = tl.load(record_ptr), tl.load(record_ptr + 1)
    num_queries, seq_len, first_query = (
        tl.load(record_ptr + 2), tl.load(record_ptr + 3), tl.load(record_ptr + 4)
    )  # fmt: skip
    offset = (token * stride_q_token + q_head * stride_q_head)[:, None]
    q = tl.load(q_ptr + offset + tl.arange(0, BLOCK_D)[None, :], mask=there, other=0.0)
    row_scale = tl.full([ROWS], scale, tl.float32)
    if IN_FP8 and q.dtype == tl.bfloat16:
        q, factor = scale_to_float16(q)
        row_scale *= factor
    position = seq_len - num_queries + token - first_token
    return q, position, row_scale, request, num_queries, seq_len, first_query


@triton.jit
def rows_of_tile(
    record_ptr, head,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Each row's token and query head [ROWS], and the mask [ROWS, BLOCK_D] of what exists.

    Rows are a token's query heads of this key head, then the next token's.
    """
    row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)[None, :]
    query = tl.load(record_ptr + 4) + row // GROUP
    exists = (query < tl.load(record_ptr + 2)) & (row < ROWS // GROUP * GROUP)
    token, q_head = tl.load(record_ptr + 1) + query, head * GROUP + row % GROUP
    return token, q_head, exists[:, None] & (d < HEAD_DIM)


@triton.jit
def key_tiles(lowest, num_rows, seq_len, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Key tiles [begin, end) of queries from position `lowest` on, and [full_begin, full_end).

    All queries see the keys of the latter, so these need no mask.
    Returns begin, full_begin, full_end, end.
    """
    highest = tl.minimum(lowest + num_rows, seq_len)  # one beyond the last query's position
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(lowest + 1 - WINDOW, 0) // TILE
    full_begin, full_end = begin, (lowest + 1) // TILE
    if WINDOW > 0:
        full_begin = tl.minimum(tl.cdiv(tl.maximum(highest - WINDOW, 0), TILE), full_end)
    return begin, full_begin, full_end, tl.cdiv(highest, TILE)


@triton.jit
def attend_ranges(
    acc, m, s, q, position, k_ptr, v_ptr, scales, table_ptr, begins, ends, seq_len,
    scale, stride_block, stride_slot,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`attend_tiles` over three ranges of tiles, with a mask for the first and the last one."""
    for i in tl.static_range(3):
        if WINDOW > 0 or i > 0:
            acc, m, s = attend_tiles(
                acc, m, s, q, position, k_ptr, v_ptr, scales, table_ptr, begins[i], ends[i],
                seq_len, scale, stride_block, stride_slot, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE,
                TILE, WINDOW, SOFT_CAP, STAGES, BLOCK_D, i != 1, PRECISION,
            )  # fmt: skip
    return acc, m, s


@triton.jit
def attend_tiles(
    acc, m, s, q, position, k_ptr, v_ptr, scales, table_ptr, begin, end, seq_len,
    scale, stride_block, stride_slot,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_D: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Continue the online softmax over key tiles [begin, end): (acc, maximum m, sum s).

    scales: pointers to those of keys and values, or None, and the head.
    """
    k_scale_ptr, v_scale_ptr, head = scales
    INT8: tl.constexpr = k_scale_ptr is not None
    d = tl.arange(0, BLOCK_D)[None, :]
    for tile in tl.range(begin, end, num_stages=STAGES):
        keys = tile * TILE + tl.arange(0, TILE)
        written = keys < seq_len
        if MASKED:
            block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=written, other=0)
        else:
            block = tl.load(table_ptr + keys // BLOCK_SIZE)
        offset = (block.to(tl.int64) * stride_block + keys % BLOCK_SIZE * stride_slot)[:, None] + d
        if HEAD_DIM != BLOCK_D:
            k = tl.load(k_ptr + offset, mask=written[:, None] & (d < HEAD_DIM), other=0.0)
        elif MASKED:
            k = tl.load(k_ptr + offset, mask=written[:, None], other=0.0)
        else:
            k = tl.load(k_ptr + offset)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)  # [ROWS, TILE]
        rest = scale  # what is left to multiply scores by
        if INT8 or SOFT_CAP > 0.0:
            scores *= scale[:, None]
            rest = tl.full(scale.shape, 1.0, tl.float32)
        if INT8:
            slots = block.to(tl.int64) * BLOCK_SIZE + keys % BLOCK_SIZE
            key_scale, value_scale = load_scales(
                k_scale_ptr + head, v_scale_ptr + head, slots, NUM_KV_HEADS, written
            )
            scores *= key_scale[None, :]
        if SOFT_CAP > 0.0:
            scores = soft_capped(scores, SOFT_CAP)
        if INT8:
            scores += tl.log2(value_scale)[None, :]
        if MASKED:
            seen = keys[None, :] <= position[:, None]
            if WINDOW > 0:
                seen = seen & (keys[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, -1e38)
        new_m = tl.maximum(m, tl.max(scores, axis=1) * rest)
        p = tl.exp2(scores * rest[:, None] - (new_m - LIFT)[:, None])
        shrink = tl.exp2(m - new_m)
        s = s * shrink + tl.sum(p / value_scale[None, :] if INT8 else p, axis=1)
        if HEAD_DIM != BLOCK_D:
            v = tl.load(v_ptr + offset, mask=written[:, None] & (d < HEAD_DIM), other=0.0)
        elif MASKED:
            v = tl.load(v_ptr + offset, mask=written[:, None], other=0.0)
        else:
            v = tl.load(v_ptr + offset)
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * shrink[:, None], input_precision=PRECISION)
        m = new_m
    return acc, m, s
