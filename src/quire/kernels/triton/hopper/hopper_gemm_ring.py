"""Hopper's GEMM of few rows: the ring through which tiles of W are loaded, and the main loops.

The epilogue is in `hopper_gemm.py`.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from quire.kernels.triton.launch.gluon_compat import barrier, fetch_box, seen_as


@gluon.jit
def ring_of(desc, SLOTS: gl.constexpr):
    """Shared memory for so many boxes."""
    shape: gl.constexpr = _slots(SLOTS, desc.block_type.shape)
    return gl.allocate_shared_memory(desc.dtype, shape, desc.layout)


@gluon.constexpr_function
def _slots(slots, box):
    return [slots, *box]


@gluon.jit
def ask_weight(w_desc, x_desc, ring, full, row, begin, end, step):
    """Start to load a step's tiles of W, if there is such a step, and expect those of x, too."""
    STAGES: gl.constexpr = full.shape[0]
    TILES: gl.constexpr = ring.shape[0] // STAGES
    BLOCK_K: gl.constexpr = ring.shape[2]
    w_bytes: gl.constexpr = w_desc.block_type.nbytes
    x_bytes: gl.constexpr = 0 if x_desc is None else x_desc.block_type.nbytes
    stage = step % STAGES
    there = begin + step < end
    mbarrier.expect(full.index(stage), TILES * (w_bytes + x_bytes), pred=there)
    for i in gl.static_range(TILES):
        column = ((begin + step) * TILES + i) * BLOCK_K
        fetch_box(w_desc, [row, column], full.index(stage), ring.index(stage * TILES + i), there)


@gluon.jit
def ask_rows(x_desc, ring, full, begin, end, step):
    """Start to load a step's tiles of x, after the previous kernel has ended."""
    STAGES: gl.constexpr = full.shape[0]
    TILES: gl.constexpr = ring.shape[0] // STAGES
    BLOCK_K: gl.constexpr = ring.shape[2]
    stage = step % STAGES
    there = begin + step < end
    for i in gl.static_range(TILES):
        column = ((begin + step) * TILES + i) * BLOCK_K
        fetch_box(x_desc, [0, column], full.index(stage), ring.index(stage * TILES + i), there)


@gluon.constexpr_function
def sums_layout(block_m, num_warps, kind):
    """The MMA layout of sums [rows of W, tokens] of operands of a type.

    Triton has instructions of at most 224 columns for bytes.
    """
    columns = min(block_m, 128) if kind == gl.int8 else block_m
    instruction = [16, columns, 256 // kind.primitive_bitwidth]
    return gl.NVMMADistributedLayout([3, 0], [num_warps, 1], instruction)


@gluon.constexpr_function
def sums_type(kind):
    """The type of sums of products of a type: those of bytes are exact."""
    return gl.int32 if kind == gl.int8 else gl.float32


@gluon.jit
def multiply_tiles(
    x_desc, w_desc, ring, x_ring, full, row, begin, end, EVERY: gl.constexpr = 0,
):  # fmt: skip
    """A program's steps of its tile, with x in a ring, too: W [BLOCK_N, k] · xᵀ [k, BLOCK_M].

    EVERY: steps after which sums are added in float32, 0 for never; tensor cores accumulate FP8
    with some 14 bits.
    """
    BLOCK_N: gl.constexpr = ring.shape[1]
    BLOCK_M: gl.constexpr = x_ring.shape[1]
    layout: gl.constexpr = sums_layout(BLOCK_M, gl.num_warps(), w_desc.dtype)
    sums = gl.zeros([BLOCK_N, BLOCK_M], sums_type(w_desc.dtype), layout)
    if EVERY == 0:
        return _multiply_steps(
            x_desc, w_desc, ring, x_ring, full, row, begin, end, 0, end - begin, sums
        ).to(gl.float32)
    else:
        total = sums
        for first in range(0, end - begin, EVERY):
            last = gl.minimum(first + EVERY, end - begin)
            total += _multiply_steps(
                x_desc, w_desc, ring, x_ring, full, row, begin, end, first, last, sums
            )
        return total


@gluon.jit
def _multiply_steps(
    x_desc, w_desc, ring, x_ring, full, row, begin, end, first, last, sums
):  # fmt: skip
    STAGES: gl.constexpr = full.shape[0]
    TILES: gl.constexpr = ring.shape[0] // STAGES
    for step in range(first, last):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        for i in gl.static_range(TILES):
            sums = warpgroup_mma(
                ring.index(stage * TILES + i),
                x_ring.index(stage * TILES + i).permute((1, 0)), sums, is_async=True,
            )  # fmt: skip
        sums = warpgroup_mma_wait(TILES, deps=[sums])  # the previous step has ended
        barrier()
        if step > 0:  # and its slot is free
            ask_weight(w_desc, x_desc, ring, full, row, begin, end, step - 1 + STAGES)
            ask_rows(x_desc, x_ring, full, begin, end, step - 1 + STAGES)
    return warpgroup_mma_wait(0, deps=[sums])


@gluon.jit
def multiply_rounding(
    x_ptr, w_desc, ring, full, row, begin, end, M, K, stride_x,
    BLOCK_M: gl.constexpr, CHUNK: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Multiply x in 16 bits by W in FP8 or INT8: x is rounded to it, CHUNK steps at a time."""
    STAGES: gl.constexpr = full.shape[0]
    TILES: gl.constexpr = ring.shape[0] // STAGES
    BLOCK_N: gl.constexpr = ring.shape[1]
    BLOCK_K: gl.constexpr = ring.shape[2]
    PIECES: gl.constexpr = CHUNK * TILES
    kind: gl.constexpr = w_desc.dtype
    warps: gl.constexpr = gl.num_warps()
    layout: gl.constexpr = sums_layout(BLOCK_M, warps, kind)
    across: gl.constexpr = BLOCK_K // 8  # threads that hold a token's columns of a step
    x_layout: gl.constexpr = gl.BlockedLayout(
        [1, 1, 8], [1, 32 // across, across], [1, warps, 1], [2, 1, 0]
    )
    x_shared: gl.constexpr = gl.NVMMASharedLayout(128, 8)
    xs = gl.allocate_shared_memory(kind, [PIECES * BLOCK_M, BLOCK_K], x_shared)
    operands = seen_as(xs, kind, [PIECES, BLOCK_M, BLOCK_K], x_shared)
    pieces = gl.arange(0, PIECES, gl.SliceLayout(1, gl.SliceLayout(2, x_layout)))[:, None, None]
    tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, gl.SliceLayout(2, x_layout)))[None, :, None]
    ks = gl.arange(0, BLOCK_K, gl.SliceLayout(0, gl.SliceLayout(1, x_layout)))[None, None, :]
    columns = pieces * BLOCK_K + ks
    x_ptrs = x_ptr + tokens * stride_x + columns
    num_columns = gl.minimum(K, end * (TILES * BLOCK_K))

    acc = gl.zeros([BLOCK_N, BLOCK_M], sums_type(kind), layout)
    total = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout)
    step = 0
    start = begin * (TILES * BLOCK_K)
    x = gl.load(x_ptrs + start, mask=(tokens < M) & (columns < num_columns - start), other=0.0)
    for first in range(begin, end, CHUNK):
        wide = x.to(gl.float32)
        row_scale = _scale_of(gl.abs(wide), kind)
        taken = _codes_of(wide, row_scale[:, None][None, :, :], kind)
        scale = gl.convert_layout(row_scale, gl.SliceLayout(0, layout))
        xs.store(taken.reshape([PIECES * BLOCK_M, BLOCK_K]))
        fence_async_shared()
        barrier()
        start = (first + CHUNK) * (TILES * BLOCK_K)  # the next chunk is prefetched
        x = gl.load(x_ptrs + start, mask=(tokens < M) & (columns < num_columns - start), other=0.0)
        for i in range(gl.minimum(CHUNK, end - first)):
            mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1)
            for j in gl.static_range(TILES):
                acc = warpgroup_mma(
                    ring.index(step % STAGES * TILES + j),
                    operands.index(i * TILES + j).permute((1, 0)), acc,
                    use_acc=i + j > 0, is_async=True,
                )  # fmt: skip
            acc = warpgroup_mma_wait(TILES, deps=[acc])
            barrier()  # all warps have finished the previous step, so its slot is free
            if step > 0:
                ask_weight(w_desc, None, ring, full, row, begin, end, step - 1 + STAGES)
            if PDL:
                if step == gl.maximum(end - begin - STAGES, 0):
                    gdc_launch_dependents()
            step += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        total += acc.to(gl.float32) * scale[None, :]
        barrier()
    return total


@gluon.jit
def _larger(a, b):
    """The larger number, or NaN if either is."""
    return gl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def _scale_of(size, kind: gl.constexpr):
    """Twin of `row_rounding.scale_of`; size: magnitudes [pieces, tokens, columns]."""
    if kind == gl.int8:
        largest = gl.reduce(gl.reduce(size, 0, _larger), 1, _larger)
        return _larger(largest, 2.0**-100) / 127.0
    else:
        wanted = gl.maximum(gl.max(gl.max(size, axis=0), axis=1) / 448.0, 2.0**-100)
        bits = (wanted.to(gl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
        return bits.to(gl.float32, bitcast=True)


@gluon.jit
def _codes_of(x, scale, kind: gl.constexpr):
    """Twin of `row_rounding.codes_of`."""
    scaled = x * (1.0 / scale)
    if kind == gl.int8:
        return (scaled + 12582912.0).to(gl.int32, bitcast=True).to(gl.int8)
    else:
        return scaled.to(kind)
