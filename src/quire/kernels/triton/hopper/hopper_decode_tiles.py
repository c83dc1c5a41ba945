"""Hopper's decode attention: MMAs and softmax of a tile of keys and values.

Owns the layouts of queries, keys, values and weights for the tensor cores. Keys are the rows of the
first MMA and the query heads of a key head its columns, two for each head: for the most common four
heads that is the least number of columns that the hardware has. In the second MMA the dimensions of
values are the rows, and every other column is unused. FP8 values go through registers, where they
are converted, and so do keys and values in INT8. Scales of those are loaded a tile ahead.
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

from quire.kernels.triton.attention.kv_codes import (
    FP8_TO_FLOAT16,
    INT8_TO_FLOAT16,
    LEAST_SCALE,
    LIFT,
)
from quire.kernels.triton.hopper.hopper_prefill_work import await_tile
from quire.kernels.triton.hopper.hopper_queries import halved
from quire.kernels.triton.hopper.hopper_softmax import exp2
from quire.kernels.triton.launch.gluon_compat import barrier, seen_as


@gluon.constexpr_function
def _by_head(head_dim):
    """Threads that hold [query heads, dimensions]: all dimensions of a head in one warp."""
    return gl.BlockedLayout([1, 4], [128 // head_dim, head_dim // 4], [4, 1], [1, 0])


@gluon.jit
def load_query(
    q_ptr, there, stride_head, GROUP: gl.constexpr, GROUPS: gl.constexpr, HEAD_DIM: gl.constexpr
):
    """The query heads of one key head, [GROUPS, HEAD_DIM], zeros beyond GROUP."""
    LAYOUT: gl.constexpr = _by_head(HEAD_DIM)
    g = gl.arange(0, GROUPS, gl.SliceLayout(1, LAYOUT))[:, None]
    d = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))[None, :]
    return gl.load(q_ptr + g * stride_head + d, mask=(g < GROUP) & there & (d >= 0), other=0.0)


@gluon.jit
def leave_query(q, q_smem, INT8: gl.constexpr):
    """Store q [GROUPS, D] as two rows a head, whose sum is q / factor; return the factors.

    INT8: whether keys are; then of each 16 dimensions the even ones come first, as in `_operand`.
    """
    if q_smem.dtype == q.dtype:
        high, low = q, gl.zeros_like(q)
        factor = gl.full([q.shape[0]], 1.0, gl.float32, gl.SliceLayout(1, q.type.layout))
    elif INT8:
        wide = q.to(gl.float32)
        bits = gl.maximum(gl.max(gl.abs(wide), 1).to(gl.int32, bitcast=True), 0x21800000)
        factor = (bits & 0x7F800000).to(gl.float32, bitcast=True)  # as `scale_to_float16` has it
        high, low = wide * (1.0 / factor)[:, None], gl.zeros_like(wide)
    else:
        high, low, factor = halved(q)
    if INT8:
        pairs = high.reshape([q.shape[0], q.shape[1] // 16, 8, 2]).permute(0, 1, 3, 2)
        high = gl.convert_layout(pairs.reshape([q.shape[0], q.shape[1]]), low.type.layout)
    both = gl.join(high.to(q_smem.dtype), low.to(q_smem.dtype))
    q_smem.store(both.permute(0, 2, 1).reshape([2 * q.shape[0], q.shape[1]]))
    fence_async_shared()
    barrier()
    return factor


@gluon.jit
def attend_to_keys(
    ring, at, q_smem, p_smem, row_scale, tile_begin, tile_end, oldest, seq_len, scale_ptrs, head,
    table_ptr,
    NUM_KV_HEADS: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """Online softmax over some of a request's tiles: (weighted mean of v, log2 of its weight).

    float32 [GROUPS, D] and [GROUPS]. at: the first tile's number in the ring. row_scale [GROUPS]:
    of each query's scores, times log2(e). scale_ptrs, table_ptr: scales of keys and values in INT8,
    and the request's blocks. Every tile holds at least one visible key, so the maximum is finite.
    """
    smem, _, empty = ring
    TILE: gl.constexpr = smem.shape[1]
    COLUMNS: gl.constexpr = 2 * GROUPS
    BYTES: gl.constexpr = smem.dtype.primitive_bitwidth // 8
    INT8: gl.constexpr = scale_ptrs[0] is not None
    DEPTH: gl.constexpr = 16 if INT8 else 32 // BYTES
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, DEPTH])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    WORDS: gl.constexpr = HEAD_DIM * BYTES // 2  # of 16 bits: a number, or a pair of codes
    words = seen_as(
        smem, gl.int16, [smem.shape[0], TILE, WORDS],
        gl.NVMMASharedLayout(min(128, 2 * WORDS), 16, 2),
    )  # fmt: skip
    s = _summed(gl.zeros([TILE, COLUMNS], gl.float32, SCORES))
    acc = _summed(gl.zeros([HEAD_DIM, COLUMNS], gl.float32, SUMS))
    QUERIES: gl.constexpr = gl.SliceLayout(0, s.type.layout)
    SUM_QUERIES: gl.constexpr = gl.SliceLayout(0, acc.type.layout)
    row_scale = gl.convert_layout(row_scale, QUERIES)
    m = gl.full([GROUPS], float("-inf"), gl.float32, QUERIES)
    start = oldest // TILE
    key = gl.arange(0, TILE, gl.SliceLayout(1, s.type.layout))
    scales, blocks = (), ()
    if INT8:
        own = (start + tile_begin) * TILE + key
        blocks = gl.load(table_ptr + own // BLOCK_SIZE, mask=own < seq_len, other=0)
        scales = _scales(scale_ptrs, head, blocks, own, seq_len, NUM_KV_HEADS, BLOCK_SIZE)
        own += TILE
        blocks = gl.load(table_ptr + own // BLOCK_SIZE, mask=own < seq_len, other=0)
    for tile in range(start + tile_begin, start + tile_end):
        following = ()
        if INT8:  # loaded early, so that they are there when the next tile is
            own = (tile + 1) * TILE + key
            following = _scales(scale_ptrs, head, blocks, own, seq_len, NUM_KV_HEADS, BLOCK_SIZE)
            own += TILE
            blocks = gl.load(table_ptr + own // BLOCK_SIZE, mask=own < seq_len, other=0)
        slot = await_tile(ring, at)
        keys, values = words.index(2 * slot), words.index(2 * slot + 1)
        first, behind = oldest - tile * TILE, seq_len - tile * TILE
        if not INT8:  # whose codes are no NaNs
            keys = smem.index(2 * slot)
            if (first > 0) | (behind < TILE):
                _clear_unseen(values, first, behind)
        if BYTES == 2:
            values = smem.index(2 * slot + 1)
        acc, s, m = _add_tile(
            keys, values, empty.index(slot), q_smem, p_smem, row_scale, scales,
            acc, s, m, first, behind, SCORES, SUMS,
        )  # fmt: skip
        scales = following
        at += 1
    total = gl.sum(s, 0)
    acc = acc * gl.convert_layout(1.0 / total, SUM_QUERIES)[None, :]
    LAYOUT: gl.constexpr = _by_head(HEAD_DIM)
    if BYTES == 1:  # as `_operand` has them
        result = acc.reshape([HEAD_DIM // 16, 2, 8, GROUPS]).permute(3, 0, 2, 1)
    else:
        result = acc.permute(1, 0)
    result = gl.convert_layout(result.reshape([GROUPS, HEAD_DIM]), LAYOUT)
    return result, m + gl.log2(total)


@gluon.jit
def _add_tile(
    keys, values, emptied, q_smem, p_smem, row_scale, scales, acc, s, m, first, behind,
    SCORES: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Add a tile to sums [D, GROUPS] of values, those [TILE, GROUPS] of weights, and maxima.

    keys [TILE, D]; values [TILE, D], or pairs of codes [TILE, D / 2], in INT8 as keys are, too;
    emptied: the barrier to signal once both are read. Keys in [first, behind) are visible. scales:
    of keys and values in INT8, else empty.
    """
    HEAD_DIM: gl.constexpr = acc.shape[0]
    TILE: gl.constexpr = s.shape[0]
    GROUPS: gl.constexpr = acc.shape[1]
    PAIRS: gl.constexpr = values.shape[1] < HEAD_DIM
    INT8: gl.constexpr = keys.shape[1] < HEAD_DIM
    parts = gl.zeros([TILE, 2 * GROUPS], gl.float32, SCORES)
    if INT8:
        codes = keys.load(_key_layout(HEAD_DIM, TILE))
        keys = _key_operand(codes, gl.DotOperandLayout(0, SCORES, 2))
    parts = warpgroup_mma(keys, q_smem.permute((1, 0)), parts, use_acc=False, is_async=True)
    if PAIRS:
        pairs = values.permute((1, 0)).load(_pairs_layout(HEAD_DIM, TILE))
    parts = warpgroup_mma_wait(0, deps=[parts])
    if PAIRS:
        mbarrier.arrive(emptied, count=1)
    scores = _summed(parts) * row_scale[None, :]
    if INT8:
        key_scale, value_scale = scales
        scores = scores * key_scale[:, None] + gl.log2(value_scale)[:, None]
    key = gl.arange(0, TILE, gl.SliceLayout(1, s.type.layout))
    scores = gl.where(((key >= first) & (key < behind))[:, None], scores, float("-inf"))
    new_m = gl.maximum(m, gl.max(scores, 0))
    p = exp2(scores - (new_m - LIFT)[None, :])
    shrink = exp2(m - new_m)
    share = p
    if INT8:  # as in `kv_codes.py`
        share = p * (1.0 / value_scale)[:, None]
    weights = p.to(p_smem.dtype)
    weights = gl.join(weights, weights).reshape([TILE, 2 * GROUPS])  # for both columns of a head
    p_smem.store(weights.permute(1, 0))
    fence_async_shared()
    barrier()
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    v = _operand(pairs, OPERAND, INT8) if PAIRS else values.permute((1, 0))
    sums = gl.zeros([HEAD_DIM, 2 * GROUPS], gl.float32, SUMS)
    sums = warpgroup_mma(v, p_smem.permute((1, 0)), sums, use_acc=False, is_async=True)
    sums = warpgroup_mma_wait(0, deps=[sums])
    if not PAIRS:
        mbarrier.arrive(emptied, count=1)
    sums = gl.split(sums.reshape([HEAD_DIM, GROUPS, 2]))[0]
    by = gl.convert_layout(shrink, gl.SliceLayout(0, acc.type.layout))
    return acc * by[None, :] + sums, s * shrink[None, :] + share, new_m


@gluon.jit
def _scales(
    scale_ptrs, head, blocks, key, seq_len, NUM_KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr
):
    """Scales of a tile's keys and values of one head, float32 [TILE] each; as `load_scales`."""
    offset = (blocks.to(gl.int64) * BLOCK_SIZE + key % BLOCK_SIZE) * NUM_KV_HEADS + head
    there = key < seq_len
    key_scale = gl.load(scale_ptrs[0] + offset, mask=there, other=1.0).to(gl.float32)
    value_scale = gl.load(scale_ptrs[1] + offset, mask=there, other=1.0).to(gl.float32)
    return key_scale, gl.where(value_scale == 0.0, LEAST_SCALE, value_scale)


@gluon.jit
def _clear_unseen(values, first, behind):
    """Zero values before `first` and from `behind` on: unwritten slots may hold NaN."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    key = gl.arange(0, values.shape[0], gl.SliceLayout(1, LAYOUT))
    seen = (key >= first) & (key < behind)
    values.store(gl.where(seen[:, None], values.load(LAYOUT), 0))
    fence_async_shared()
    barrier()


@gluon.jit
def _summed(parts):
    """[R, 2 · GROUPS] → [R, GROUPS], sums of each query's two columns."""
    high, low = gl.split(parts.reshape([parts.shape[0], parts.shape[1] // 2, 2]))
    return high + low


@gluon.jit
def _key_operand(pairs, LAYOUT: gl.constexpr):
    """Converted keys [TILE, D]; of each 16 dimensions the even ones come first."""
    TILE: gl.constexpr = pairs.shape[0]
    HALF: gl.constexpr = pairs.shape[1]
    even, odd = _codes_to_float16(pairs, True)
    keys = gl.join(even, odd).reshape([TILE, HALF // 8, 8, 2])
    return gl.convert_layout(keys.permute(0, 1, 3, 2).reshape([TILE, 2 * HALF]), LAYOUT)


@gluon.jit
def _operand(pairs, LAYOUT: gl.constexpr, INT8: gl.constexpr):
    """Converted values [D, TILE]; of each 16 dimensions the even ones come first."""
    HALF: gl.constexpr = pairs.shape[0]
    TILE: gl.constexpr = pairs.shape[1]
    even, odd = _codes_to_float16(pairs, INT8)
    values = gl.join(even, odd).reshape([HALF // 8, 8, TILE, 2])
    return gl.convert_layout(values.permute(0, 3, 1, 2).reshape([2 * HALF, TILE]), LAYOUT)


@gluon.jit
def _codes_to_float16(pairs, INT8: gl.constexpr):
    """Pairs of codes as int16 → float16 of the first ones, of the second ones."""
    return gl.inline_asm_elementwise(
        INT8_TO_FLOAT16 if INT8 else FP8_TO_FLOAT16,
        "=r,=r,r",
        [pairs],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )


@gluon.constexpr_function
def _pairs_layout(head_dim, tile):
    """A layout of pairs of values [D / 2, keys], as `ldmatrix` transposes them; converted and
    joined by `_operand`, they are in the layout of an MMA operand."""
    registers = [[0, 1], [0, 8], [0, 16], [0, 32]]
    registers += ([[0, 64]] if tile == 128 else []) + ([[32, 0]] if head_dim == 128 else [])
    lanes, warps = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], [[8, 0], [16, 0]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [head_dim // 2, tile])


@gluon.constexpr_function
def _key_layout(head_dim, tile):
    """Threads that hold pairs of keys [keys, D / 2], as `ldmatrix` loads them; converted and
    joined by `_key_operand`, they lie as an MMA's operand."""
    registers = [[0, 1], [8, 0], [0, 8], [0, 16]]
    registers += ([[0, 32]] if head_dim == 128 else []) + ([[64, 0]] if tile == 128 else [])
    lanes, warps = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [tile, head_dim // 2])
