"""Hopper's prefill attention: what each of the two warpgroups computes.

Owns the products, the softmax and the order in which a warpgroup issues them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quire.kernels.triton.gluon_names import barrier, fetch_rows, seen_as
from quire.kernels.triton.hopper_work import key_tiles, piece_of

ROWS = gl.constexpr(64)  # of a warpgroup's products
LIFT = gl.constexpr(14.0)  # as in fp8_cache.py


@gluon.jit
def attend(
    operands, ring,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, TOKENS: gl.constexpr,
    TILE: gl.constexpr, WINDOW: gl.constexpr, SLOTS: gl.constexpr, SPLIT: gl.constexpr,
    TURNS: gl.constexpr, NARROW: gl.constexpr, FIELDS: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """What one warpgroup does, a tile of queries after the other."""
    (
        q_ptr, out_ptr, q_smem, other, work_ptr, num_tiles_ptr, scale,
        stride_q_token, stride_q_head, stride_out_token,
    ) = operands  # fmt: skip
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    WIDE: gl.constexpr = gl.BlockedLayout(
        [1, 8], [32 * 8 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0]
    )
    OFFSET: gl.constexpr = 0 if SPLIT else PART * (TOKENS // 2)  # of its queries in the tile
    q = q_smem.index(PART)
    if PART == 1:
        _give_turn(PART, TURNS)
    before = 0  # tiles of keys and values of all pieces of work so far
    turn = 0
    num_pieces = gl.load(num_tiles_ptr) * NUM_HEADS
    head, _, first_token, num_queries, seq_len, first_query = piece_of(
        work_ptr, num_pieces, turn, NUM_HEADS, FIELDS
    )
    place, there = _rows(
        head, first_token, num_queries, first_query + OFFSET, stride_q_token, stride_q_head,
        GROUP, HEAD_DIM, WIDE,
    )  # fmt: skip
    fetched = _ask(q, q_ptr + place, there, NARROW)
    while num_queries > 0:
        tiles = key_tiles(first_query, num_queries, seq_len, TOKENS, TILE, WINDOW)
        row_scale = _receive(q, fetched, scale, SCORES, NARROW)
        # looked up here, so that it is there when its queries can be asked for
        next_head, _, next_token, next_queries, next_len, next_query = piece_of(
            work_ptr, num_pieces, turn + 1, NUM_HEADS, FIELDS
        )
        acc, m, total, p, at = _attend_to_keys(
            q, ring, before, tiles, seq_len - num_queries + first_query + OFFSET, row_scale,
            seq_len, GROUP, HEAD_DIM, TILE, WINDOW, SLOTS, SPLIT, TURNS, PART, SCORES, SUMS,
        )  # fmt: skip
        place, there = _rows(
            next_head, next_token, next_queries, next_query + OFFSET, stride_q_token, stride_q_head,
            GROUP, HEAD_DIM, WIDE,
        )  # fmt: skip
        fetched = _ask(q, q_ptr + place, there, NARROW)
        if not SPLIT or tiles[0] < tiles[3] - PART:
            acc = _add_values(ring, at, acc, p, SLOTS)
        if SPLIT:
            acc, total = _merge(acc, m, total, other, turn, SCORES, SUMS, PART)
        if not SPLIT or PART == 0:
            total = gl.convert_layout(gl.maximum(total, 1e-30), gl.SliceLayout(1, SUMS))
            out = gl.convert_layout((acc / total[:, None]).to(out_ptr.dtype.element_ty), WIDE)
            place, there = _rows(
                head, first_token, num_queries, first_query + OFFSET, stride_out_token, HEAD_DIM,
                GROUP, HEAD_DIM, WIDE,
            )  # fmt: skip
            gl.store(out_ptr + place, out, mask=there)
        before += 2 * (tiles[3] - tiles[0])
        turn += 1
        head, first_token, num_queries = next_head, next_token, next_queries
        seq_len, first_query = next_len, next_query


@gluon.jit
def _ask(q, pointers, there, NARROW: gl.constexpr):
    """Have a warpgroup's queries fetched, through registers if they are to be narrowed."""
    if NARROW:
        fetched = gl.load(pointers, mask=there, other=0.0)
    else:
        fetch_rows(q, pointers, mask=there)
        async_copy.commit_group()
        fetched = 0
    return fetched


@gluon.jit
def _receive(q, fetched, scale, SCORES: gl.constexpr, NARROW: gl.constexpr):
    """Wait until the queries are in shared memory; the scale of each row's scores.

    Narrowed to float16 they are divided by a power of two, as `fp8_cache.narrowed` does.
    """
    ONES: gl.constexpr = gl.SliceLayout(1, SCORES)
    row_scale = gl.full([ROWS], scale, gl.float32, ONES)
    if NARROW:
        wide = fetched.to(gl.float32)
        largest = gl.max(gl.maximum(wide, -wide), 1)
        bits = gl.maximum(largest.to(gl.int32, bitcast=True), 0x21800000) & 0x7F800000
        factor = bits.to(gl.float32, bitcast=True)
        q.store((wide * (1.0 / factor)[:, None]).to(gl.float16))
        row_scale = row_scale * gl.convert_layout(factor, ONES)
    else:
        async_copy.wait_group(0)
    fence_async_shared()
    barrier()
    return row_scale


@gluon.jit
def _add_values(ring, at, acc, p, SLOTS: gl.constexpr):
    """acc with the weighted sum of a tile of values whose keys are tile `at`."""
    smem, full, empty = ring
    slot, phase = (at + 1) % SLOTS, (at + 1) // SLOTS & 1
    mbarrier.wait(full.index(slot), phase)
    acc = warpgroup_mma(p, smem.index(slot), acc, is_async=True)
    acc, p = warpgroup_mma_wait(0, deps=[acc, p])
    mbarrier.arrive(empty.index(slot), count=1)
    return acc


@gluon.jit
def _attend_to_keys(
    q, ring, before, tiles, first_position, scale, seq_len,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, TILE: gl.constexpr, WINDOW: gl.constexpr,
    SLOTS: gl.constexpr, SPLIT: gl.constexpr, TURNS: gl.constexpr, PART: gl.constexpr,
    SCORES: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """(Sums of values, maxima, totals) of a warpgroup's rows, the last keys first; and the weights
    of the last tile's values, which are still to be added, with its place in the ring."""
    STEP: gl.constexpr = 2 if SPLIT else 1  # from one of its tiles of keys to the next
    SKIP: gl.constexpr = PART if SPLIT else 0
    smem, full, empty = ring
    begin, full_begin, full_end, end = tiles
    position = first_position + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES)) // GROUP
    acc = gl.zeros([ROWS, HEAD_DIM], gl.float32, SUMS)
    m = gl.full([ROWS], -1e30, gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    at = before + 2 * SKIP  # the tile's keys; its values are next
    tile = end - 1 - SKIP
    p = gl.zeros([ROWS, TILE], q.dtype, gl.DotOperandLayout(0, SUMS, 2))
    if tile >= begin:
        slot, phase = at % SLOTS, at // SLOTS & 1
        mbarrier.wait(full.index(slot), phase)
        scores = warpgroup_mma_wait(0, deps=[_scores(q, smem.index(slot), TILE, SCORES)])
        mbarrier.arrive(empty.index(slot), count=1)
        w, m, total, _ = _softmax(
            scores, m, total, position, tile, scale, q.dtype, TILE, WINDOW, True
        )
        p = gl.convert_layout(w.to(q.dtype), gl.DotOperandLayout(0, SUMS, 2))
        if (tile + 1) * TILE > seq_len:
            slot, phase = (at + 1) % SLOTS, (at + 1) // SLOTS & 1
            mbarrier.wait(full.index(slot), phase)
            _clear(smem, slot, seq_len - tile * TILE, HEAD_DIM, TILE, SLOTS)
        tile -= STEP
        for _ in range(tile, full_end - 1, -STEP):
            acc, m, total, p = _go_on(
                q, ring, at, acc, m, total, p, position, tile, scale,
                TILE, WINDOW, SLOTS, STEP, True, SCORES, SUMS, TURNS, PART,
            )  # fmt: skip
            at += 2 * STEP
            tile -= STEP
        for _ in range(tile, full_begin - 1, -STEP):
            acc, m, total, p = _go_on(
                q, ring, at, acc, m, total, p, position, tile, scale,
                TILE, WINDOW, SLOTS, STEP, False, SCORES, SUMS, TURNS, PART,
            )  # fmt: skip
            at += 2 * STEP
            tile -= STEP
        if WINDOW > 0:
            for _ in range(tile, begin - 1, -STEP):
                acc, m, total, p = _go_on(
                    q, ring, at, acc, m, total, p, position, tile, scale,
                    TILE, WINDOW, SLOTS, STEP, True, SCORES, SUMS, TURNS, PART,
                )  # fmt: skip
                at += 2 * STEP
                tile -= STEP
    return acc, m, total, p, at


@gluon.jit
def _rows(
    head, first_token, num_queries, first_query, stride_token, stride_head,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Where a warpgroup's rows lie, a query's heads of the key head by turns, and which exist."""
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    d = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))[None, :]
    query = first_query + row // GROUP
    there = ((query < num_queries) & (row < ROWS // GROUP * GROUP))[:, None]
    token = first_token + gl.minimum(query, gl.maximum(num_queries - 1, 0))
    q_head = head * GROUP + row % GROUP
    return (token * stride_token + q_head * stride_head)[:, None] + d, there


@gluon.jit
def _scores(q, k, TILE: gl.constexpr, SCORES: gl.constexpr):
    zeros = gl.zeros([ROWS, TILE], gl.float32, SCORES)
    return warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _go_on(
    q, ring, at, acc, m, total, p, position, tile, scale,
    TILE: gl.constexpr, WINDOW: gl.constexpr, SLOTS: gl.constexpr, STEP: gl.constexpr,
    MASKED: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr, TURNS: gl.constexpr,
    PART: gl.constexpr,
):  # fmt: skip
    """The scores and softmax of a tile of keys, and the sum of the values of the one before."""
    smem, full, empty = ring
    v_slot, v_phase = (at + 1) % SLOTS, (at + 1) // SLOTS & 1
    k_slot, k_phase = (at + 2 * STEP) % SLOTS, (at + 2 * STEP) // SLOTS & 1
    mbarrier.wait(full.index(k_slot), k_phase)
    _take_turn(PART, TURNS)
    scores = _scores(q, smem.index(k_slot), TILE, SCORES)
    mbarrier.wait(full.index(v_slot), v_phase)
    acc = warpgroup_mma(p, smem.index(v_slot), acc, is_async=True)
    _give_turn(PART, TURNS)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(empty.index(k_slot), count=1)
    w, m, total, shrink = _softmax(
        scores, m, total, position, tile, scale, q.dtype, TILE, WINDOW, MASKED
    )
    total = _done(total)
    acc, p = warpgroup_mma_wait(0, deps=[acc, p])
    mbarrier.arrive(empty.index(v_slot), count=1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, SUMS))[:, None]
    p = gl.convert_layout(w.to(q.dtype), gl.DotOperandLayout(0, SUMS, 2))
    return acc, m, total, p


@gluon.jit
def _clear(
    smem, slot, there, HEAD_DIM: gl.constexpr, TILE: gl.constexpr, SLOTS: gl.constexpr
):  # fmt: skip
    """Zero the rows from `there` on: unwritten slots may hold NaNs, which zero weights let pass.

    Both warpgroups do, so that neither waits. A tile lies in memory by 64 dimensions at a time, and
    is swizzled only within a row of those.
    """
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
def _softmax(
    scores, m, total, position, tile, scale, dtype: gl.constexpr,
    TILE: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """A tile's weights, the new maximum and total, and by what the old weights shrink."""
    LIFTED: gl.constexpr = LIFT if dtype == gl.float16 else 0.0
    if MASKED:
        key = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(0, scores.type.layout))
        seen = key[None, :] <= position[:, None]
        if WINDOW > 0:
            seen = seen & (key[None, :] > position[:, None] - WINDOW)
        scores = gl.where(seen, scores, -1e38)
    new_m = gl.maximum(m, gl.max(scores, 1) * scale)
    w = exp2(scores * scale[:, None] - (new_m - LIFTED)[:, None])
    shrink = exp2(m - new_m)
    return w, new_m, total * shrink + gl.sum(w, 1), shrink


@gluon.jit
def _merge(
    acc, m, total, other, turn, SCORES: gl.constexpr, SUMS: gl.constexpr, PART: gl.constexpr
):
    """The first warpgroup's sums with the second's, which saw the other half of the keys."""
    other_acc, other_m, other_total, full, empty = other
    if PART == 1:
        mbarrier.wait(empty.index(0), (turn & 1) ^ 1)
        other_acc.store(acc)
        other_m.store(m)
        other_total.store(total)
        mbarrier.arrive(full.index(0), count=1)
    else:
        mbarrier.wait(full.index(0), turn & 1)
        its_m = other_m.load(gl.SliceLayout(1, SCORES))
        new_m = gl.maximum(m, its_m)
        mine, its = exp2(m - new_m), exp2(its_m - new_m)
        total = total * mine + other_total.load(gl.SliceLayout(1, SCORES)) * its
        acc = acc * gl.convert_layout(mine, gl.SliceLayout(1, SUMS))[:, None]
        acc += other_acc.load(SUMS) * gl.convert_layout(its, gl.SliceLayout(1, SUMS))[:, None]
        mbarrier.arrive(empty.index(0), count=1)
    return acc, total


@gluon.jit
def exp2(x):
    """Without the care for results below 2^-126, which here are as good as zero."""
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _done(total):
    """Keep the assembler from waiting for a product before it has worked out `total` >= 0.

    It moves arithmetic across such waits, but not across a barrier, even one never met.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.lt.f32 p, $1, 0f00000000; @p bar.warp.sync -1; mov.b32 $0, $1; }",
        "=f,f", [total], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _take_turn(PART: gl.constexpr, TURNS: gl.constexpr):
    """Wait until the other warpgroup has issued its products; named barriers 8 and 9."""
    if TURNS:
        gl.inline_asm_elementwise(
            "bar.sync $1, 256; mov.b32 $0, $1;", "=r,r", [gl.to_tensor(8 + PART)],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@gluon.jit
def _give_turn(PART: gl.constexpr, TURNS: gl.constexpr):
    """Let the other warpgroup issue its products."""
    if TURNS:
        gl.inline_asm_elementwise(
            "bar.arrive $1, 256; mov.b32 $0, $1;", "=r,r", [gl.to_tensor(9 - PART)],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
