"""The multiplying warps of `hopper_int4_rows`: a warpgroup for 64 outputs."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from quire.kernels.triton.hopper.hopper_gemm_ring import sums_layout
from quire.kernels.triton.hopper.hopper_int4_items import (
    num_items_of,
    start_of,
    step_after,
    tile_of,
)
from quire.kernels.triton.hopper.hopper_int4_ring import STEP
from quire.kernels.triton.hopper.hopper_split_k import add_parts, columns_of
from quire.kernels.triton.launch.gluon_compat import barrier, fetch_box, store_box


@gluon.jit
def _ask_columns(x_descs, ring, position, block, num_items):
    """Start to load a block of 128 columns of x, if there is such an item."""
    xs, full = ring[1], ring[2]
    item, first, step = position[0], position[1], position[3]
    num_bytes: gl.constexpr = x_descs[0].block_type.nbytes
    rest_bytes: gl.constexpr = x_descs[1].block_type.nbytes if len(xs) > 1 else 0
    slot, there, column = block % full.shape[0], item < num_items, step * STEP + block % 2 * 128
    mbarrier.expect(full.index(slot), num_bytes + rest_bytes, pred=there)
    fetch_box(x_descs[0], [first, column], full.index(slot), xs[0].index(slot), there)
    if len(xs) > 1:
        MAIN: gl.constexpr = xs[0].shape[1]
        fetch_box(x_descs[1], [first + MAIN, column], full.index(slot), xs[1].index(slot), there)


@gluon.jit
def multiply_items(
    ring, x_descs, results, partial_ptr, arrival_ptr, sizes, SPLIT: gl.constexpr,
    SHARES: gl.constexpr,
):  # fmt: skip
    """The multiplying warps: each item's sums W [BLOCK_N, k] · xᵀ [k, rows], and their results."""
    codes, xs, full, empty = ring
    STAGES: gl.constexpr = codes.shape[0]
    MAIN: gl.constexpr = xs[0].shape[1]
    PARTS: gl.constexpr = len(xs)
    num_items = num_items_of(sizes)
    following = start_of(gl.program_id(0), sizes)  # the step of the next block to ask for
    gdc_wait()  # results of the previous kernel are read from here on
    for i in gl.static_range(STAGES):
        _ask_columns(x_descs, ring, following, i, num_items)
        if i % 2 == 1:
            following = step_after(following, sizes)
    count = 0  # of steps of all items
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        start = start_of(item, sizes)
        begin, end = start[3], start[4]
        sums = _no_sums(codes, xs)
        for step in range(begin, end):
            for half in gl.static_range(2):
                block = 2 * count + half
                mbarrier.wait(full.index(block % STAGES), block // STAGES & 1)
                sums = _add_block(sums, codes, xs, block % STAGES)
                if block > 0:  # the previous block's products have ended; all warps meet here
                    if half == 1 or step > begin:
                        mbarrier.arrive(empty.index((block - 1) % STAGES), count=1)
                    _ask_columns(x_descs, ring, following, block - 1 + STAGES, num_items)
                    if (half - 1 + STAGES) % 2 == 1:
                        following = step_after(following, sizes)
            count += 1
        sums = _finished(sums)
        mbarrier.arrive(empty.index((2 * count - 1) % STAGES), count=1)
        tile, part = tile_of(item, sizes)
        for i in gl.static_range(PARTS - 1, -1, -1):  # the small one leaves registers to the other
            tiles = num_items // SPLIT
            own_partial_ptr = partial_ptr + i * tiles * SPLIT * codes.shape[1] * MAIN
            complete, token, acc = add_parts(
                sums[i], tile, part, own_partial_ptr, arrival_ptr + i * tiles, SPLIT, SHARES
            )
            if complete:
                _store(acc, results, start[1] + i * MAIN + token, start[2])
    tma.store_wait(0)


@gluon.jit
def _no_sums(codes, xs):
    """Zeros [BLOCK_N, rows] for each part of rows."""
    if len(xs) == 1:
        return (_zeros(codes, xs[0]),)
    else:
        return _zeros(codes, xs[0]), _zeros(codes, xs[1])


@gluon.jit
def _zeros(codes, x):
    HEIGHT: gl.constexpr = codes.shape[1]
    WIDTH: gl.constexpr = x.shape[1]
    layout: gl.constexpr = sums_layout(WIDTH, gl.num_warps(), codes.dtype)
    return gl.zeros([HEIGHT, WIDTH], gl.float32, layout)


@gluon.jit
def _add_block(sums, codes, xs, slot):
    """Start to add 128 columns' products, and wait for those of the block before."""
    a = codes.index(slot)
    first = warpgroup_mma(a, xs[0].index(slot).permute((1, 0)), sums[0], is_async=True)
    if len(sums) == 1:
        return (warpgroup_mma_wait(1, deps=[first]),)
    else:
        second = warpgroup_mma(a, xs[1].index(slot).permute((1, 0)), sums[1], is_async=True)
        return warpgroup_mma_wait(2, deps=[first, second])


@gluon.jit
def _finished(sums):
    """Wait for what tensor cores still add."""
    if len(sums) == 1:
        return (warpgroup_mma_wait(0, deps=[sums[0]]),)
    else:
        return warpgroup_mma_wait(0, deps=[sums[0], sums[1]])


@gluon.jit
def _store(acc, results, first, row):
    """Store sums [outputs from `row` on, tokens from `first` on] times scales, plus bias."""
    out_desc, outs, x_scale_ptr, row_scale_ptr, bias_ptr, M, N = results
    WIDTH: gl.constexpr = acc.shape[1]
    CHUNK: gl.constexpr = out_desc.block_type.shape[0]
    rows = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))
    tokens = first + gl.arange(0, WIDTH, gl.SliceLayout(0, acc.type.layout))
    acc = acc * gl.load(row_scale_ptr + rows, mask=rows < N, other=0.0)[:, None]
    acc = acc * gl.load(x_scale_ptr + tokens, mask=tokens < M, other=0.0)[None, :]
    if bias_ptr is not None:
        acc += gl.load(bias_ptr + rows, mask=rows < N, other=0.0).to(gl.float32)[:, None]
    chunks = columns_of(acc.to(out_desc.dtype), WIDTH // CHUNK)
    for i in gl.static_range(WIDTH // CHUNK):
        # of what was stored from there before; another part of rows may have ended with this slot
        tma.store_wait(0 if i == 0 else 1)
        barrier()
        outs.index(i % 2).permute((1, 0)).store(chunks[i])
        fence_async_shared()
        barrier()
        store_box(out_desc, [first + CHUNK * i, row], outs.index(i % 2))  # TMA clips at M and N
