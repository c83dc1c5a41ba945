"""Batch-invariant GEMM of many rows on Hopper: each result's terms are added in the order of k.

Floor: the tensor cores' rate, some 700 of 990 TFLOPS in bfloat16 at the power that a card has. One
warp fills a ring of tiles of x and W by TMA, also for the next output tile while one is stored, and
two warpgroups multiply 64 rows of x each. Every program processes several output tiles.
"""

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.triton.hopper.hopper_barriers import barriers, invalidate
from quire.kernels.triton.hopper.hopper_gemm import tile_layout, tiles_of
from quire.kernels.triton.hopper.hopper_gemm_ring import sums_layout, sums_type
from quire.kernels.triton.launch.gemm_operands import GemmOperands
from quire.kernels.triton.launch.gluon_compat import barrier, fetch_box, store_box
from quire.kernels.triton.launch.workspace import workspace

ROWS = 128  # of a tile of x
_IN_LINE = 8  # tiles of rows that share W's columns in the L2 cache


def multiply_many(operands: GemmOperands) -> None:
    """Compute the operands' result. N and K: multiples of 16 bytes, as TMA requires."""
    x, x_scale, weight, scale, bias, out = operands
    (m, k), n = x.shape, len(weight)
    num_sms = workspace(x.device).num_sms
    block_n = _width(m, n, num_sms)
    tiles = triton.cdiv(m, ROWS) * triton.cdiv(n, block_n)
    half = [64, min(block_n, 128)]
    hopper_ordered_gemm_kernel[(min(tiles, num_sms),)](
        tiles_of(x, ROWS), tiles_of(weight, block_n),
        TensorDescriptor.from_tensor(out, half, tile_layout(out.itemsize)),
        x_scale, scale, bias, m, n, k,
        STAGES=4 if block_n == 256 else 6, IN_LINE=_IN_LINE, num_warps=4, launch_pdl=True,
    )  # fmt: skip


def _width(m: int, n: int, num_sms: int) -> int:
    """Rows of W in a tile: 256, which take an eighth less time for each column, unless programs
    then wait longer for the last of them."""

    def time(block_n: int) -> int:
        tiles: int = triton.cdiv(m, ROWS) * triton.cdiv(n, block_n)
        return -(-tiles // num_sms) * block_n

    return 128 if 9 * time(128) < 8 * time(256) else 256


@gluon.jit(do_not_specialize=["M"])
def hopper_ordered_gemm_kernel(
    x_desc, w_desc, out_desc, x_scale_ptr, w_scale_ptr, bias_ptr, M, N, K,
    STAGES: gl.constexpr, IN_LINE: gl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] → out [M, N], which is stored by boxes of [64, at most 128]."""
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = w_desc.block_type.shape[1]
    WIDTH: gl.constexpr = out_desc.block_type.shape[1]
    xs = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    ws = gl.allocate_shared_memory(w_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], w_desc.layout)
    outs = gl.allocate_shared_memory(out_desc.dtype, [2, 64, WIDTH], out_desc.layout)
    ring = (xs, ws, barriers(STAGES, 1), barriers(STAGES, 2))
    fence_async_shared()
    beside = (out_desc, outs, x_scale_ptr, w_scale_ptr, bias_ptr, M, N, K)
    gl.warp_specialize(
        [
            (_multiply, (ring, beside, IN_LINE, 0)),
            (_multiply, (ring, beside, IN_LINE, 1)),
            (_fetch, (x_desc, w_desc, ring, M, N, K, IN_LINE)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
    invalidate(ring[2])
    invalidate(ring[3])


@gluon.jit
def _corner_of_tile(
    tile, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, IN_LINE: gl.constexpr
):
    """First row and column of a tile; adjacent tiles share rows of x or of W."""
    m_tiles, n_tiles = gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N)
    line = tile // (IN_LINE * n_tiles)
    height = gl.minimum(m_tiles - line * IN_LINE, IN_LINE)
    rest = tile % (IN_LINE * n_tiles)
    return (line * IN_LINE + rest % height) * BLOCK_M, rest // height * BLOCK_N


@gluon.jit
def _fetch(x_desc, w_desc, ring, M, N, K, IN_LINE: gl.constexpr):
    """Keep the ring filled, a step's tile of x and of W at a time."""
    xs, ws, full, empty = ring
    STAGES: gl.constexpr = xs.shape[0]
    BLOCK_M: gl.constexpr = xs.shape[1]
    BLOCK_N: gl.constexpr = ws.shape[1]
    BLOCK_K: gl.constexpr = ws.shape[2]
    bytes_of_step: gl.constexpr = x_desc.block_type.nbytes + w_desc.block_type.nbytes
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    at = 0
    gdc_wait()
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row, column = _corner_of_tile(tile, M, N, BLOCK_M, BLOCK_N, IN_LINE)
        for step in range(gl.cdiv(K, BLOCK_K)):
            stage = at % STAGES
            mbarrier.wait(empty.index(stage), (at // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), bytes_of_step)
            fetch_box(x_desc, [row, step * BLOCK_K], full.index(stage), xs.index(stage))
            fetch_box(w_desc, [column, step * BLOCK_K], full.index(stage), ws.index(stage))
            at += 1
    gdc_launch_dependents()


@gluon.jit
def _multiply(ring, beside, IN_LINE: gl.constexpr, PART: gl.constexpr):
    """A warpgroup's main loop: 64 rows of each tile."""
    xs, ws, full, empty = ring
    M, N, K = beside[5], beside[6], beside[7]
    STAGES: gl.constexpr = xs.shape[0]
    BLOCK_M: gl.constexpr = xs.shape[1]
    BLOCK_N: gl.constexpr = ws.shape[1]
    BLOCK_K: gl.constexpr = ws.shape[2]
    layout: gl.constexpr = sums_layout(BLOCK_N, 4, xs.dtype)
    tiles, steps = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N), gl.cdiv(K, BLOCK_K)
    at = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row, column = _corner_of_tile(tile, M, N, BLOCK_M, BLOCK_N, IN_LINE)
        row += 64 * PART
        sums = gl.zeros([64, BLOCK_N], sums_type(xs.dtype), layout)
        for step in range(steps):
            stage = at % STAGES
            mbarrier.wait(full.index(stage), at // STAGES & 1)
            sums = warpgroup_mma(
                xs.index(stage).slice(64 * PART, 64), ws.index(stage).permute((1, 0)), sums,
                is_async=True,
            )  # fmt: skip
            sums = warpgroup_mma_wait(1, deps=[sums])
            if step > 0:  # the previous step has ended
                mbarrier.arrive(empty.index((at - 1) % STAGES), count=1)
            at += 1
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(empty.index((at - 1) % STAGES), count=1)
        _store(sums, row, column, beside, PART)
    tma.store_wait(0)  # shared memory is reused once the program has ended


@gluon.jit
def _store(sums, row, column, beside, PART: gl.constexpr):
    """Store 64 rows of a tile, as many columns at a time as fit in shared memory."""
    WIDTH: gl.constexpr = beside[1].shape[2]
    sums = sums.to(gl.float32)
    if sums.shape[1] == WIDTH:
        _store_box(sums, row, column, beside, PART)
    else:
        first, second = gl.split(sums.reshape([64, 2, WIDTH]).permute(0, 2, 1))
        _store_box(first, row, column, beside, PART)
        _store_box(second, row, column + WIDTH, beside, PART)


@gluon.jit
def _store_box(sums, row, column, beside, PART: gl.constexpr):
    out_desc, outs, x_scale_ptr, w_scale_ptr, bias_ptr, M, N, _ = beside
    layout: gl.constexpr = sums.type.layout
    rows = row + gl.arange(0, 64, gl.SliceLayout(1, layout))
    columns = column + gl.arange(0, sums.shape[1], gl.SliceLayout(0, layout))
    if w_scale_ptr is not None:
        sums = sums * gl.load(w_scale_ptr + columns, mask=columns < N, other=0.0)[None, :]
        sums = sums * gl.load(x_scale_ptr + rows, mask=rows < M, other=0.0)[:, None]
    if bias_ptr is not None:
        bias = gl.load(bias_ptr + columns, mask=columns < N, other=0.0)
        sums += bias.to(gl.float32)[None, :]
    tma.store_wait(0)  # of what was stored from there before
    barrier()
    outs.index(PART).store(sums.to(out_desc.dtype))
    fence_async_shared()
    barrier()
    store_box(out_desc, [row, column], outs.index(PART))  # TMA clips at M and N
