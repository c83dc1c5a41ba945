"""Attention of requests with one query token, over their paged keys and values.

Floor: the bytes of the visible keys and values over the memory's bandwidth. The query heads that
share a key head are the rows of one product, so keys are read once. Units of work are tiles of keys
of one (request, key head), shared evenly as `sharing` tells: short and long requests, few or many,
need no other split, and a fixed grid serves any batch. Partial softmaxes are merged by whichever
program is last. Keys and values in FP8 are widened to the queries' type. (FlashAttention: Dao et
al., 2022; splitting the keys: Flash-Decoding, 2023.)
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.triton.sharing import arrive, owner, run_begin, slot


@triton.jit(do_not_specialize=["num_requests", "num_tokens", "stride_table", "min_units"])
def decode_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, block_table_ptr, query_start_ptr, seq_lens_ptr, tiles_ptr,
    partial_ptr, counter_ptr,
    num_requests, num_tokens, scale, stride_q_token, stride_q_head, stride_block, stride_slot,
    stride_kv_head, stride_table, stride_out_token, min_units,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_B: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """q [T, Hkv · GROUP, D], caches [blocks, BLOCK_SIZE, Hkv, D] → out [T, Hkv · GROUP, D].

    tiles [B + 1]: tiles of keys of all requests before each; none for those without a query or
    with several. Tokens after the last request's are set to zeros. scale: of the scores, times
    log2(e). WINDOW: keys that a query sees, 0 for all. min_units: fewer units are not worth a
    program.
    """
    BLOCK_G: tl.constexpr = max(16, triton.next_power_of_2(GROUP))
    BLOCK_D: tl.constexpr = max(16, triton.next_power_of_2(HEAD_DIM))  # 16: the least of tl.dot
    if PDL:
        gdc_wait()
    requests = tl.arange(0, BLOCK_B)
    ends = tl.load(tiles_ptr + 1 + requests, mask=requests < num_requests, other=2**30)
    num_units = tl.load(tiles_ptr + num_requests) * NUM_KV_HEADS
    program = tl.program_id(0)
    padding = tl.load(query_start_ptr + num_requests)
    num_programs = tl.minimum(tl.num_programs(0), tl.cdiv(num_units, min_units))
    begin = num_units
    if program < num_programs:
        begin = run_begin(program, num_programs, num_units)
    end = num_units
    if program < num_programs:
        end = run_begin(program + 1, num_programs, num_units)
    while begin < end:
        # whose unit this is, from what is in registers: requests that end before it, and where
        passed = ends <= begin // NUM_KV_HEADS
        request = tl.sum(passed.to(tl.int32))
        before = tl.max(tl.where(passed, ends, 0))
        num_tiles = tl.min(tl.where(passed, 2**30, ends)) - before
        head = (begin - before * NUM_KV_HEADS) // num_tiles
        row_unit = before * NUM_KV_HEADS + head * num_tiles  # first unit of this (request, head)
        stop = tl.minimum(end, row_unit + num_tiles)
        token = tl.load(query_start_ptr + request)
        q = _load_query(
            q_ptr + token * stride_q_token + head * GROUP * stride_q_head, stride_q_head,
            GROUP, HEAD_DIM, BLOCK_G, BLOCK_D,
        )  # fmt: skip
        acc, m, s = _attend(
            q, k_ptr + head * stride_kv_head, v_ptr + head * stride_kv_head,
            block_table_ptr + request * stride_table, tl.load(seq_lens_ptr + request),
            begin - row_unit, stop - row_unit, scale, stride_block, stride_slot,
            HEAD_DIM, BLOCK_SIZE, TILE, WINDOW, STAGES, BLOCK_G, BLOCK_D, PRECISION,
        )  # fmt: skip
        if PDL:
            if stop == end:
                gdc_launch_dependents()
        first = owner(row_unit, num_programs, num_units)
        last = owner(row_unit + num_tiles - 1, num_programs, num_units)
        out = out_ptr + token * stride_out_token + head * GROUP * HEAD_DIM
        if first == last:
            _store_heads(out, acc / s[:, None], GROUP, HEAD_DIM, BLOCK_G, BLOCK_D)
        else:
            stats_ptr = partial_ptr + 2 * tl.num_programs(0) * (GROUP * BLOCK_D)
            mine = slot(program, first)
            _leave(partial_ptr, stats_ptr, mine, acc, m, s, GROUP, BLOCK_G, BLOCK_D)
            counter = counter_ptr + request * NUM_KV_HEADS + head
            if arrive(counter, last - first + 1):
                _merge(out, partial_ptr, stats_ptr, first, last, GROUP, HEAD_DIM, BLOCK_D)
        begin = stop
    for spare in range(padding + program, num_tokens, tl.num_programs(0)):
        _clear(out_ptr + spare * stride_out_token, NUM_KV_HEADS * GROUP * HEAD_DIM)


@triton.jit
def _clear(out_ptr, SIZE: tl.constexpr):
    """A token of padding."""
    i = tl.arange(0, triton.next_power_of_2(SIZE))
    tl.store(out_ptr + i, tl.zeros_like(i).to(out_ptr.dtype.element_ty), mask=i < SIZE)


@triton.jit
def _load_query(
    q_ptr, stride_q_head,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The query heads of one key head, [BLOCK_G, BLOCK_D], zeros beyond GROUP and HEAD_DIM."""
    g, d = tl.arange(0, BLOCK_G)[:, None], tl.arange(0, BLOCK_D)[None, :]
    return tl.load(q_ptr + g * stride_q_head + d, mask=(g < GROUP) & (d < HEAD_DIM), other=0.0)


@triton.jit
def _attend(
    q, k_ptr, v_ptr, table_ptr, seq_len, tile_begin, tile_end, scale, stride_block, stride_slot,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr,
    STAGES: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over some of a request's visible tiles: (sum of p·v, maximum, sum of p).

    Every tile holds at least one visible key, so the maximum is finite.
    """
    oldest = 0
    if WINDOW > 0:
        oldest = tl.maximum(seq_len - WINDOW, 0)
    start = oldest // TILE
    d = tl.arange(0, BLOCK_D)[None, :]
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    m = tl.full([BLOCK_G], float("-inf"), tl.float32)
    s = tl.zeros([BLOCK_G], tl.float32)
    for tile in tl.range(start + tile_begin, start + tile_end, num_stages=STAGES):
        positions = tile * TILE + tl.arange(0, TILE)
        seen = (positions < seq_len) & (positions >= oldest)
        block = tl.load(table_ptr + positions // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        place = (block * stride_block + positions % BLOCK_SIZE * stride_slot)[:, None] + d
        inside = seen[:, None]
        if HEAD_DIM != BLOCK_D:
            inside = inside & (d < HEAD_DIM)
        k = tl.load(k_ptr + place, mask=inside, other=0.0)
        scores = (
            tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION) * scale
        )  # [BLOCK_G, TILE]
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_m = tl.maximum(m, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_m[:, None])
        shrink = tl.exp2(m - new_m)
        s = s * shrink + tl.sum(p, axis=1)
        v = tl.load(v_ptr + place, mask=inside, other=0.0)
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * shrink[:, None], input_precision=PRECISION)
        m = new_m
    return acc, m, s


@triton.jit
def _store_heads(
    out_ptr, out,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    g, d = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    inside = (g < GROUP) & (d < HEAD_DIM)
    tl.store(out_ptr + g * HEAD_DIM + d, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _leave(
    partial_ptr, stats_ptr, slot, acc, m, s,
    GROUP: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Put a part in memory: [GROUP, BLOCK_D] there, GROUP maxima and GROUP sums here."""
    g, d = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    place = (slot * GROUP + g[:, None]) * BLOCK_D + d[None, :]
    tl.store(partial_ptr + place, acc, mask=(g < GROUP)[:, None])
    tl.store(stats_ptr + slot * (2 * GROUP) + g, m, mask=g < GROUP)
    tl.store(stats_ptr + slot * (2 * GROUP) + GROUP + g, s, mask=g < GROUP)


@triton.jit
def _merge(
    out_ptr, partial_ptr, stats_ptr, first, last,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The softmax over all parts, in their order, some at a time: out [GROUP, HEAD_DIM]."""
    ROWS: tl.constexpr = triton.next_power_of_2(GROUP)
    CHUNK: tl.constexpr = max(1, 64 // ROWS)
    g, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
    m = tl.full([ROWS], -1e30, tl.float32)
    s = tl.zeros([ROWS], tl.float32)
    for start in range(first, last + 1, CHUNK):
        part = start + tl.arange(0, CHUNK)
        there = (part <= last)[:, None] & (g < GROUP)[None, :]  # [CHUNK, ROWS]
        row = (slot(part, first) * GROUP)[:, None] + g[None, :]
        stats = stats_ptr + row + (slot(part, first) * GROUP)[:, None]
        part_m = tl.load(stats, mask=there, other=-1e30, cache_modifier=".cg")
        part_s = tl.load(stats + GROUP, mask=there, other=0.0, cache_modifier=".cg")
        part_acc = tl.load(
            partial_ptr + row[:, :, None] * BLOCK_D + d[None, None, :],
            mask=there[:, :, None], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        new_m = tl.maximum(m, tl.max(part_m, axis=0))
        weight = tl.exp2(part_m - new_m[None, :])
        shrink = tl.exp2(m - new_m)
        s = s * shrink + tl.sum(weight * part_s, axis=0)
        acc = acc * shrink[:, None] + tl.sum(weight[:, :, None] * part_acc, axis=0)
        m = new_m
    s = tl.where(g < GROUP, s, 1.0)
    _store_heads(out_ptr, acc / s[:, None], GROUP, HEAD_DIM, ROWS, BLOCK_D)
