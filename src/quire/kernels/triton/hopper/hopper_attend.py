"""Hopper's prefill attention: the computation of each of the two warpgroups.

Owns the MMAs, the softmax, and the order in which a warpgroup issues them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quire.kernels.triton.hopper.hopper_prefill_work import await_tile, key_tiles, work_item
from quire.kernels.triton.hopper.hopper_queries import (
    ROWS,
    ask_queries,
    leave_queries,
    receive_queries,
    rows_in_memory,
)
from quire.kernels.triton.hopper.hopper_softmax import done, exp2, operand, packed, softmax
from quire.kernels.triton.launch.gluon_compat import barrier, seen_as


@gluon.jit
def attend(
    operands, rings,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, TOKENS: gl.constexpr,
    TILE: gl.constexpr, WINDOW: gl.constexpr, SPLIT: gl.constexpr, FIELDS: gl.constexpr,
    PART: gl.constexpr,
):  # fmt: skip
    """A warpgroup's loop over work items: attention of one query tile after another."""
    (
        q_ptr, out_ptr, queries, other, work_ptr, num_tiles_ptr, scale,
        stride_q_token, stride_q_head, stride_out_token,
    ) = operands  # fmt: skip
    q_smem = queries[0]
    BITS: gl.constexpr = q_smem.dtype.primitive_bitwidth
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 256 // BITS])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    WIDE: gl.constexpr = gl.BlockedLayout(
        [1, 8], [32 * 8 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0]
    )
    OFFSET: gl.constexpr = 0 if SPLIT else PART * (TOKENS // 2)  # of its first query in the tile
    if PART == 1:
        _pass_ping_pong(PART, SPLIT)
    before = 0  # key tiles of all work items so far
    cycle = 0
    num_items = gl.load(num_tiles_ptr) * NUM_HEADS
    head, _, first_token, num_queries, seq_len, first_query = work_item(
        work_ptr, num_items, cycle, NUM_HEADS, FIELDS
    )
    offsets, there = rows_in_memory(
        head, first_token, num_queries, first_query + OFFSET, stride_q_token, stride_q_head,
        GROUP, HEAD_DIM, WIDE,
    )  # fmt: skip
    ask_queries(queries, q_ptr + offsets, there, PART)
    while num_queries > 0:
        tiles = key_tiles(first_query, num_queries, seq_len, TOKENS, TILE, WINDOW)
        row_scale, q_slot = receive_queries(queries, cycle, scale, SCORES, PART)
        # loaded early, so that it is there when the next queries can be loaded
        next_head, _, next_token, next_queries, next_len, next_query = work_item(
            work_ptr, num_items, cycle + 1, NUM_HEADS, FIELDS
        )
        acc, m, total, p, at = _attend_to_keys(
            q_smem.index(2 * q_slot + PART), rings, before, tiles,
            seq_len - num_queries + first_query + OFFSET, row_scale, seq_len,
            GROUP, HEAD_DIM, TILE, WINDOW, SPLIT, PART, SCORES, SUMS,
        )  # fmt: skip
        leave_queries(queries, q_slot)
        offsets, there = rows_in_memory(
            next_head, next_token, next_queries, next_query + OFFSET, stride_q_token, stride_q_head,
            GROUP, HEAD_DIM, WIDE,
        )  # fmt: skip
        ask_queries(queries, q_ptr + offsets, there, PART)
        if not SPLIT or tiles[0] < tiles[3] - PART:
            acc = _add_values(rings[1], at, acc, p)
        if SPLIT:
            acc, total = _merge(acc, m, total, other, cycle, SCORES, SUMS, PART)
        if not SPLIT or PART == 0:
            total = gl.convert_layout(gl.maximum(total, 1e-30), gl.SliceLayout(1, SUMS))
            out = gl.convert_layout((acc / total[:, None]).to(out_ptr.dtype.element_ty), WIDE)
            offsets, there = rows_in_memory(
                head, first_token, num_queries, first_query + OFFSET, stride_out_token, HEAD_DIM,
                GROUP, HEAD_DIM, WIDE,
            )  # fmt: skip
            gl.store(out_ptr + offsets, out, mask=there)
        before += tiles[3] - tiles[0]
        cycle += 1
        head, first_token, num_queries = next_head, next_token, next_queries
        seq_len, first_query = next_len, next_query


@gluon.jit
def _add_values(values, at, acc, p):
    """acc plus the weighted sum of value tile `at`."""
    smem, _, empty = values
    slot = await_tile(values, at)
    SUMS: gl.constexpr = acc.type.layout
    p = operand(p, smem.dtype, SUMS)
    acc = warpgroup_mma(p, smem.index(slot), acc, is_async=True)
    acc, p = warpgroup_mma_wait(0, deps=[acc, p])
    mbarrier.arrive(empty.index(slot), count=1)
    return acc


@gluon.jit
def _attend_to_keys(
    q, rings, before, tiles, first_position, scale, seq_len,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, TILE: gl.constexpr, WINDOW: gl.constexpr,
    SPLIT: gl.constexpr, PART: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Softmax over a warpgroup's key tiles, from the last to the first.

    Returns (sums of weight · v, maxima, totals), and the weights of the last tile, whose values are
    still to be added, with the tile's number in the ring.
    """
    STEP: gl.constexpr = 2 if SPLIT else 1  # between its key tiles
    SKIP: gl.constexpr = PART if SPLIT else 0
    keys, values, key_scales = rings
    begin, full_begin, full_end, end = tiles
    position = first_position + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES)) // GROUP
    acc = gl.zeros([ROWS, HEAD_DIM], gl.float32, SUMS)
    m = gl.full([ROWS], -1e30, gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    at = before + SKIP
    tile = end - 1 - SKIP
    dtype: gl.constexpr = values[0].dtype
    p = packed(gl.zeros([ROWS, TILE], gl.float32, SCORES), dtype)
    if tile >= begin:
        slot = await_tile(keys, at)
        scores = warpgroup_mma_wait(0, deps=[_scores(q, keys[0].index(slot), SCORES)])
        scores = _scaled(scores, key_scales, slot)
        mbarrier.arrive(keys[2].index(slot), count=1)
        w, m, total, _ = softmax(scores, m, total, position, tile, scale, dtype, TILE, WINDOW, True)
        p = packed(w, dtype)
        if (tile + 1) * TILE > seq_len:
            clear_unwritten(
                values[0], await_tile(values, at), seq_len - tile * TILE, HEAD_DIM, TILE
            )
        tile -= STEP
        for _ in range(tile, full_end - 1, -STEP):
            acc, m, total, p = _go_on(
                q, rings, at, acc, m, total, p, position, tile, scale,
                TILE, WINDOW, SPLIT, True, SCORES, SUMS, PART,
            )  # fmt: skip
            at += STEP
            tile -= STEP
        for _ in range(tile, full_begin - 1, -STEP):
            acc, m, total, p = _go_on(
                q, rings, at, acc, m, total, p, position, tile, scale,
                TILE, WINDOW, SPLIT, False, SCORES, SUMS, PART,
            )  # fmt: skip
            at += STEP
            tile -= STEP
        if WINDOW > 0:
            for _ in range(tile, begin - 1, -STEP):
                acc, m, total, p = _go_on(
                    q, rings, at, acc, m, total, p, position, tile, scale,
                    TILE, WINDOW, SPLIT, True, SCORES, SUMS, PART,
                )  # fmt: skip
                at += STEP
                tile -= STEP
    return acc, m, total, p, at


@gluon.jit
def _scores(q, k, SCORES: gl.constexpr):
    """Start to compute q · kᵀ; for int8 in int32.

    Sums do not start at the bits of 1.5 · 2^23, which would make them float32 without conversion:
    writing these to registers delays the MMAs, and the other warpgroup's after them.
    """
    TILE: gl.constexpr = k.shape[0]
    SUM: gl.constexpr = gl.int32 if k.dtype == gl.int8 else gl.float32
    start = gl.zeros([ROWS, TILE], SUM, SCORES)
    return warpgroup_mma(q, k.permute((1, 0)), start, use_acc=False, is_async=True)


@gluon.jit
def _scaled(scores, key_scales, slot):
    """Scores of `_scores` in float32, times the scales of the keys if these are in int8."""
    if scores.dtype == gl.int32:
        own = key_scales.index(slot).load(gl.SliceLayout(0, scores.type.layout))
        scaled = scores.to(gl.float32) * own[None, :]
    else:
        scaled = scores
    return scaled


@gluon.jit
def _go_on(
    q, rings, at, acc, m, total, p, position, tile, scale,
    TILE: gl.constexpr, WINDOW: gl.constexpr, SPLIT: gl.constexpr, MASKED: gl.constexpr,
    SCORES: gl.constexpr, SUMS: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Scores and softmax of a key tile, and the weighted sum of the previous tile's values."""
    keys, values, key_scales = rings
    dtype: gl.constexpr = values[0].dtype
    k_slot = await_tile(keys, at + (2 if SPLIT else 1))
    _await_ping_pong(PART, SPLIT)
    scores = _scores(q, keys[0].index(k_slot), SCORES)
    v_slot = await_tile(values, at)
    p = operand(p, dtype, SUMS)
    acc = warpgroup_mma(p, values[0].index(v_slot), acc, is_async=True)
    _pass_ping_pong(PART, SPLIT)
    scores = _scaled(warpgroup_mma_wait(1, deps=[scores]), key_scales, k_slot)
    mbarrier.arrive(keys[2].index(k_slot), count=1)
    w, m, total, shrink = softmax(
        scores, m, total, position, tile, scale, dtype, TILE, WINDOW, MASKED
    )
    total = done(total)
    acc, p = warpgroup_mma_wait(0, deps=[acc, p])
    mbarrier.arrive(values[2].index(v_slot), count=1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, SUMS))[:, None]
    return acc, m, total, packed(w, dtype)


@gluon.jit
def clear_unwritten(smem, slot, there, HEAD_DIM: gl.constexpr, TILE: gl.constexpr):
    """Zero rows of a value tile from `there` on: unwritten slots may hold NaN, and 0 · NaN is NaN.

    Both warpgroups do it, so that neither waits. A tile is stored 64 dimensions at a time and
    swizzled only within rows of those.
    """
    SLOTS: gl.constexpr = smem.shape[0]
    PARTS: gl.constexpr = HEAD_DIM // 64
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [1, 4], [1, 0])
    lines = seen_as(smem, smem.dtype, [SLOTS * PARTS * TILE, 1, 64], PLAIN)
    eights = seen_as(smem, smem.dtype, [SLOTS * PARTS * TILE // 8, 8, 64], PLAIN)
    for part in gl.static_range(PARTS):
        first = (slot * PARTS + part) * TILE
        for row in range(there, (there + 7) // 8 * 8):
            lines.index(first + row).store(gl.zeros([1, 64], smem.dtype, LAYOUT))
        for eight in range((there + 7) // 8, TILE // 8):
            eights.index(first // 8 + eight).store(gl.zeros([8, 64], smem.dtype, LAYOUT))
    fence_async_shared()
    barrier()


@gluon.jit
def _merge(
    acc, m, total, other, cycle, SCORES: gl.constexpr, SUMS: gl.constexpr, PART: gl.constexpr
):
    """Merge the sums of both warpgroups, which had different key tiles, in the first one."""
    other_acc, other_m, other_total, full, empty = other
    if PART == 1:
        mbarrier.wait(empty.index(0), (cycle & 1) ^ 1)
        other_acc.store(acc)
        other_m.store(m)
        other_total.store(total)
        mbarrier.arrive(full.index(0), count=1)
    else:
        mbarrier.wait(full.index(0), cycle & 1)
        others_m = other_m.load(gl.SliceLayout(1, SCORES))
        new_m = gl.maximum(m, others_m)
        own, others = exp2(m - new_m), exp2(others_m - new_m)
        total = total * own + other_total.load(gl.SliceLayout(1, SCORES)) * others
        acc = acc * gl.convert_layout(own, gl.SliceLayout(1, SUMS))[:, None]
        acc += other_acc.load(SUMS) * gl.convert_layout(others, gl.SliceLayout(1, SUMS))[:, None]
        mbarrier.arrive(empty.index(0), count=1)
    return acc, total


@gluon.jit
def _await_ping_pong(PART: gl.constexpr, SPLIT: gl.constexpr):
    """Wait until the other warpgroup has issued its MMAs; by named barriers 8 and 9."""
    if not SPLIT:
        gl.inline_asm_elementwise(
            "bar.sync $1, 256; mov.b32 $0, $1;", "=r,r", [gl.to_tensor(8 + PART)],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@gluon.jit
def _pass_ping_pong(PART: gl.constexpr, SPLIT: gl.constexpr):
    """Let the other warpgroup issue its MMAs."""
    if not SPLIT:
        gl.inline_asm_elementwise(
            "bar.arrive $1, 256; mov.b32 $0, $1;", "=r,r", [gl.to_tensor(9 - PART)],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
