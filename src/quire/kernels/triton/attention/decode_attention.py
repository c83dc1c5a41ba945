"""Decode attention: one query token per request over paged keys and values, split-KV.

Floor: the bytes of the visible keys and values over the memory bandwidth. The query heads of a key
head are the rows of one MMA, so keys are read once. Units of work are tiles of keys of one
(request, key head), partitioned evenly (see launch/work_partition.py): short and long requests, few
or many, need no other split, and a fixed grid serves any batch. The last program to finish a
request and key head merges the partial softmaxes. For one request the floor is below the latency of
a few dependent loads, so the plan stores where each program begins, and block ids are loaded a tile
ahead. (FlashAttention: Dao et al., 2022; splitting the keys: Flash-Decoding, 2023.)
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.triton.attention.kv_codes import (
    LIFT,
    codes_to_float16,
    load_scales,
    scale_to_float16,
)
from quire.kernels.triton.attention.shared_prefix_attention import with_shared_part
from quire.kernels.triton.attention.softmax_options import soft_capped, with_sinks
from quire.kernels.triton.launch.work_partition import arrive, owner, slot

_NUMBERS = ["num_requests", "num_tokens", "plan_is_fresh", "opens_early"]


@triton.jit(do_not_specialize=["stride_table", *_NUMBERS])
def decode_attention_kernel(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, out_ptr, block_table_ptr, query_start_ptr,
    seq_lens_ptr, tiles_ptr, runs_ptr, partial_ptr, counter_ptr,
    shared_index_ptr, lens_ptr, shared_sums_ptr, shared_stats_ptr, shared_plan_ptr, sinks_ptr,
    num_requests, num_tokens, scale, stride_q_token, stride_q_head, stride_block, stride_slot,
    stride_kv_head, stride_table, stride_out_token, plan_is_fresh, opens_early,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr,
    STAGES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr, CODES_PATH: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr, HAS_SHARED: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """q [T, Hkv · GROUP, D], caches [blocks, BLOCK_SIZE, Hkv, D] → out [T, Hkv · GROUP, D].

    tiles int32 [B + 1]: number of key tiles of all decodes before each request. runs int32
    [programs, 10]: each program's run, as `plan_kernel` stores it. Rows of out behind the last
    request's token are set to zeros. scale: of the scores, times log2(e). WINDOW: keys that a query
    sees, 0 for all. SOFT_CAP: of scores times log2(e), 0 for none. sinks [Hkv · GROUP] or None.
    CODES_PATH: "plain", or how `codes_to_float16` converts keys and values in 8 bits. k_scale,
    v_scale [blocks, BLOCK_SIZE, Hkv]: of those in INT8, else None.

    With PDL a program loads its plan while the previous kernel, which writes queries and the newest
    keys, still runs; unless plan_is_fresh, as that kernel then made the plan. opens_early: the next
    kernel may be launched as soon as queries are there; otherwise when this one is about to store.
    """
    BLOCK_G: tl.constexpr = max(16, triton.next_power_of_2(GROUP))  # 16: the least of tl.dot
    if PDL:
        if plan_is_fresh > 0:
            gdc_wait()
    program = tl.program_id(0)
    padding = tl.load(query_start_ptr + num_requests)
    run = runs_ptr + program * 10
    begin, end = tl.load(run), tl.load(run + 1)
    request, head = tl.load(run + 2), tl.load(run + 3)
    row_unit, num_tiles = tl.load(run + 4), tl.load(run + 5)  # units of this (request, head)
    token, seq_len = tl.load(run + 6), tl.load(run + 7)
    first, last = tl.load(run + 8), tl.load(run + 9)  # programs that share those units
    while begin < end:
        stop = tl.minimum(end, row_unit + num_tiles)
        member, num_shared = -1, 0
        if HAS_SHARED:
            member = tl.load(shared_index_ptr + request)
            num_shared = tl.load(lens_ptr + member // MEMBERS, mask=member >= 0, other=0)
        result, weight = _attend(
            q_ptr + token * stride_q_token + head * GROUP * stride_q_head,
            k_ptr + head * stride_kv_head, v_ptr + head * stride_kv_head,
            (k_scale_ptr, v_scale_ptr, head), block_table_ptr + request * stride_table,
            seq_len, num_shared,
            begin - row_unit, stop - row_unit, scale, stride_q_head, stride_block, stride_slot,
            NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_SIZE, TILE, WINDOW, SOFT_CAP, STAGES, BLOCK_G,
            BLOCK_D, CODES_PATH, PRECISION, PDL, opens_early,
        )  # fmt: skip
        if HAS_SHARED:
            if (begin == row_unit) & (member >= 0):
                result, weight = with_shared_part(
                    result, weight, shared_sums_ptr, shared_stats_ptr, shared_plan_ptr, member,
                    head, NUM_KV_HEADS, GROUP, BLOCK_G, BLOCK_D, MEMBERS,
                )  # fmt: skip
        if sinks_ptr is not None:
            if begin == row_unit:
                result, weight = with_sinks(
                    result, weight, sinks_ptr + head * GROUP, GROUP, BLOCK_G
                )
        if PDL:
            if (stop == end) & (opens_early == 0):
                gdc_launch_dependents()
        out = out_ptr + token * stride_out_token + head * GROUP * HEAD_DIM
        if first == last:
            _store_heads(out, result, GROUP, HEAD_DIM, BLOCK_G, BLOCK_D)
        else:
            weights_ptr = partial_ptr + 2 * tl.num_programs(0) * (GROUP * BLOCK_D)
            own_slot = slot(program, first)
            _store_part(partial_ptr, weights_ptr, own_slot, result, weight, GROUP, BLOCK_G, BLOCK_D)
            counter = counter_ptr + request * NUM_KV_HEADS + head
            if arrive(counter, last - first + 1):
                _merge(out, partial_ptr, weights_ptr, first, last, GROUP, HEAD_DIM, BLOCK_D)
        begin = stop
        if begin < end:
            row_unit = begin
            head += 1
            if head == NUM_KV_HEADS:
                head = 0
                request, num_tiles = _request_of(
                    tiles_ptr, begin // NUM_KV_HEADS, num_requests, BLOCK_B
                )
                token = tl.load(query_start_ptr + request)
                seq_len = tl.load(seq_lens_ptr + request)
            num_units = tl.load(tiles_ptr + num_requests) * NUM_KV_HEADS
            num_programs = tl.minimum(tl.num_programs(0), num_units)
            first, last = program, owner(row_unit + num_tiles - 1, num_programs, num_units)
    if PDL:  # programs without work wait, too: the next kernel relies on all kernels before
        gdc_wait()
    for spare in range(padding + program, num_tokens, tl.num_programs(0)):
        clear_row(out_ptr + spare * stride_out_token, NUM_KV_HEADS * GROUP * HEAD_DIM)


@triton.jit
def _request_of(tiles_ptr, tile, num_requests, BLOCK_B: tl.constexpr):
    """The request whose first tile this is, and its number of tiles."""
    requests = tl.arange(0, BLOCK_B)
    ends = tl.load(tiles_ptr + 1 + requests, mask=requests < num_requests, other=2**30)
    passed = ends <= tile
    return tl.sum(passed.to(tl.int32)), tl.min(tl.where(passed, 2**30, ends)) - tile


@triton.jit
def clear_row(out_ptr, SIZE: tl.constexpr):
    """Set a padding token's row to zeros."""
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
    q_ptr, k_ptr, v_ptr, scales, table_ptr, seq_len, num_shared, tile_begin, tile_end, scale,
    stride_q_head, stride_block, stride_slot,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr,
    STAGES: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, CODES_PATH: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr, opens_early,
):  # fmt: skip
    """Online softmax over some of a request's key tiles: (weighted mean of v, log2 of its weight).

    float32 [BLOCK_G, BLOCK_D] and [BLOCK_G]. Every tile holds at least one visible key, so the
    maximum is finite. num_shared: leading keys that shared prefix attention handles.
    """
    PAIRS: tl.constexpr = CODES_PATH != "plain"
    k_scale_ptr, v_scale_ptr, head = scales
    INT8: tl.constexpr = k_scale_ptr is not None
    WIDTH: tl.constexpr = BLOCK_D // 2 if PAIRS else BLOCK_D  # of a stored row
    if PAIRS:
        k_ptr, v_ptr = k_ptr.to(tl.pointer_type(tl.int16)), v_ptr.to(tl.pointer_type(tl.int16))
        stride_block, stride_slot = stride_block // 2, stride_slot // 2
    oldest = num_shared
    if WINDOW > 0:
        oldest = tl.maximum(seq_len - WINDOW, 0)
    start = oldest // TILE
    limit = tl.minimum(seq_len, (start + tile_end) * TILE)
    keys = tl.arange(0, TILE)
    d = tl.arange(0, WIDTH)[None, :]
    ahead = (start + tile_begin) * TILE + keys
    block = tl.load(table_ptr + ahead // BLOCK_SIZE, mask=ahead < limit, other=0)
    if PDL:  # results of the previous kernel are read from here on
        gdc_wait()
        if opens_early > 0:
            gdc_launch_dependents()
    q = _load_query(q_ptr, stride_q_head, GROUP, HEAD_DIM, BLOCK_G, BLOCK_D)
    acc = tl.zeros([BLOCK_G, WIDTH], tl.float32)
    if PAIRS:
        if q.dtype == tl.bfloat16:
            q, factor = scale_to_float16(q)
            scale = (factor * scale)[:, None]
        q, q_odd = tl.split(tl.reshape(q, [BLOCK_G, WIDTH, 2]))
        acc_odd = acc
    m = tl.full([BLOCK_G], float("-inf"), tl.float32)
    s = tl.zeros([BLOCK_G, TILE], tl.float32)
    for tile in tl.range(start + tile_begin, start + tile_end, num_stages=STAGES):
        positions = tile * TILE + keys
        seen = (positions < seq_len) & (positions >= oldest)
        offset = (block.to(tl.int64) * stride_block + positions % BLOCK_SIZE * stride_slot)[:, None]
        if INT8:
            slots = block.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
            key_scale, value_scale = load_scales(
                k_scale_ptr + head, v_scale_ptr + head, slots, NUM_KV_HEADS, seen
            )
        ahead = positions + TILE
        block = tl.load(table_ptr + ahead // BLOCK_SIZE, mask=ahead < limit, other=0)
        inside = seen[:, None]
        if HEAD_DIM != BLOCK_D:
            inside = inside & (d < HEAD_DIM * WIDTH // BLOCK_D)
        k = tl.load(k_ptr + offset + d, mask=inside, other=0 if PAIRS else 0.0)
        v = tl.load(v_ptr + offset + d, mask=inside, other=0 if PAIRS else 0.0)
        if PAIRS:
            k, k_odd = codes_to_float16(k, CODES_PATH, INT8)
            scores = tl.dot(q_odd, tl.trans(k_odd), tl.dot(q, tl.trans(k)))
        else:
            scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)
        scores *= scale
        if INT8:
            scores *= key_scale[None, :]
        if SOFT_CAP > 0.0:
            scores = soft_capped(scores, SOFT_CAP)
        if INT8:
            scores += tl.log2(value_scale)[None, :]
        scores = tl.where(seen[None, :], scores, float("-inf"))  # [BLOCK_G, TILE]
        new_m = tl.maximum(m, tl.max(scores, axis=1))
        p = tl.exp2(scores - (new_m - LIFT)[:, None])
        shrink = tl.exp2(m - new_m)[:, None]
        s = s * shrink + (p / value_scale[None, :] if INT8 else p)
        if PAIRS:
            v, v_odd = codes_to_float16(v, CODES_PATH, INT8)
            acc_odd = tl.dot(p.to(q.dtype), v_odd, acc_odd * shrink)
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * shrink, input_precision=PRECISION)
        m = new_m
    if PAIRS:
        acc = tl.reshape(tl.join(acc, acc_odd), [BLOCK_G, BLOCK_D])
    total = tl.sum(s, axis=1)
    return acc * (1.0 / total)[:, None], m + tl.log2(total)


@triton.jit
def _store_heads(
    out_ptr, out,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    g, d = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    inside = (g < GROUP) & (d < HEAD_DIM)
    tl.store(out_ptr + g * HEAD_DIM + d, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _store_part(
    partial_ptr, weights_ptr, slot, result, weight,
    GROUP: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Store a partial result: [GROUP, BLOCK_D], and GROUP logarithms of weights."""
    g, d = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    row = slot * GROUP + g
    tl.store(partial_ptr + row[:, None] * BLOCK_D + d[None, :], result, mask=(g < GROUP)[:, None])
    tl.store(weights_ptr + row, weight, mask=g < GROUP)


@triton.jit
def _merge(
    out_ptr, partial_ptr, weights_ptr, first, last,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Combine split-KV partial results: the weighted mean, in order: out [GROUP, HEAD_DIM].

    A thread holds the same elements of each, so no data is exchanged between threads.
    """
    ROWS: tl.constexpr = triton.next_power_of_2(GROUP)
    AT_ONCE: tl.constexpr = min(8, max(1, 8192 // (ROWS * BLOCK_D)))
    begin = slot(first, first) * GROUP
    acc, m = _load_part(partial_ptr + begin * BLOCK_D, weights_ptr + begin, GROUP, GROUP, BLOCK_D)
    total = tl.full([ROWS, 1], 1.0, tl.float32)
    for start in range(first + 1, last + 1, AT_ONCE):
        begin = 2 * GROUP * start  # as `slot` says
        parts_ptr, logs_ptr = partial_ptr + begin * BLOCK_D, weights_ptr + begin
        results, weights = (), ()
        new_m = m
        for i in tl.static_range(AT_ONCE):
            result, weight = _load_part(
                parts_ptr + i * (2 * GROUP * BLOCK_D), logs_ptr + i * (2 * GROUP),
                tl.minimum(last + 1 - start - i, 1) * GROUP, GROUP, BLOCK_D,
            )  # fmt: skip
            new_m = tl.maximum(new_m, weight)
            results += (result,)  # type: ignore[assignment]
            weights += (weight,)  # type: ignore[assignment]
        shrink = tl.exp2(m - new_m)
        acc, total, m = acc * shrink, total * shrink, new_m
        for i in tl.static_range(AT_ONCE):
            weight = tl.exp2(weights[i] - m)
            acc += weight * results[i]
            total += weight
    _store_heads(out_ptr, acc * (1.0 / total), GROUP, HEAD_DIM, ROWS, BLOCK_D)


@triton.jit
def _load_part(partial_ptr, weights_ptr, rows, GROUP: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load what `_store_part` stored: ([ROWS, BLOCK_D], [ROWS, 1]); no weight from `rows` on."""
    g = tl.arange(0, triton.next_power_of_2(GROUP))[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    inside = g < rows
    result = tl.load(partial_ptr + g * BLOCK_D + d, mask=inside, other=0.0, cache_modifier=".cg")
    return result, tl.load(weights_ptr + g, mask=inside, other=-1e30, cache_modifier=".cg")
