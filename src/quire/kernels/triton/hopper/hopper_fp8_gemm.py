"""Split-K GEMM of 17 to 256 rows in FP8 or INT8 on Hopper, with W and x loaded through a ring.

Floor: the bytes of W, or twice the tensor cores' 16-bit rate; up to 128 rows the first takes
longer. PyTorch's kernel has tiles of 128 by 128 there, of which a weight with 4,096 rows has 32,
for 132 multiprocessors. Here programs split a tile's k until all multiprocessors have work, and W
is prefetched before the previous kernel has ended. A row of x has one scale, applied after the
loop.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.operands import RoundedRows
from quire.kernels.triton.gemm.split_k_config import shares_of
from quire.kernels.triton.hopper.hopper_barriers import barriers, invalidate
from quire.kernels.triton.hopper.hopper_gemm import tile_layout, tiles_of
from quire.kernels.triton.hopper.hopper_gemm_ring import ask_rows, ask_weight, multiply_tiles
from quire.kernels.triton.hopper.hopper_split_k import add_parts
from quire.kernels.triton.launch.gemm_config import RingConfig, tile_rows
from quire.kernels.triton.launch.gemm_operands import GemmOperands
from quire.kernels.triton.launch.gluon_compat import barrier, store_box
from quire.kernels.triton.launch.row_memory import whole_boxes
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace

MOST_ROWS = 256  # columns of an MMA
_RING_BYTES = 225 * 1024  # bytes of shared memory for rings, for each multiprocessor
# after which sums are added in float32: tensor cores accumulate FP8 with some 14 bits
COLUMNS = 512


def multiply_rows(
    x: RoundedRows, codes: Tensor, scale: Tensor, bias: Tensor | None, config: RingConfig
) -> Tensor:
    """x [T <= 256, K] · codes [N, K]ᵀ, both with a scale for each row → bfloat16 [T, N]."""
    exact = codes.dtype == torch.int8
    out = torch.empty(len(x.codes), len(codes), dtype=torch.bfloat16, device=codes.device)
    # with more rows there are no registers for second sums
    every = COLUMNS // (128 * config.tiles) if len(out) <= 128 and not exact else 0
    operands = GemmOperands(x.codes, x.scale, codes, scale, bias, out)
    _launch(operands, config, every)
    return out


def multiply_few(operands: GemmOperands) -> None:
    """Compute the result of at most 256 rows, each sum in the order of k."""
    x, weight = operands.x, operands.weight
    config = _in_order(len(x), weight, workspace(x.device).num_sms)
    _launch(operands, config, every=0)


def _in_order(rows: int, weight: Tensor, num_sms: int) -> RingConfig:
    """The config of `multiply_few`, which does not split k.

    A program has all of a multiprocessor's shared memory. It has half where there are more tiles
    than multiprocessors, unless x has few rows and W long ones: then prefetching counts more.
    """
    block_m = tile_rows(rows)
    is_long = rows <= 16 and weight.shape[1] * weight.itemsize > 4096
    each = 1 if triton.cdiv(len(weight), 64) <= num_sms or is_long else 2
    slots = _RING_BYTES // each // (128 * (64 + block_m))
    tiles = 4 if slots >= 20 else 2 if slots >= 7 else 1
    return RingConfig(block_n=64, stages=slots // tiles, tiles=tiles)


def _launch(operands: GemmOperands, config: RingConfig, every: int) -> None:
    """Launch the kernel. N and K: multiples of 16 bytes, as TMA requires."""
    x, x_scale, weight, scale, bias, out = operands
    (m, k), n = x.shape, len(weight)
    block_m, tiles = tile_rows(m), triton.cdiv(n, config.block_n)
    space = workspace(weight.device)
    assert m <= MOST_ROWS
    assert tiles <= NUM_COUNTERS
    assert config.split == 1 or tiles * config.split * config.block_n * block_m <= NUM_PARTIALS
    shares = shares_of(config.split, block_m, 1, space.num_sms)
    boxes = TensorDescriptor.from_tensor(out, [block_m // shares, config.block_n], tile_layout(2))
    hopper_fp8_gemm_kernel[(tiles * config.split,)](
        tiles_of(whole_boxes(x, block_m), block_m), tiles_of(weight, config.block_n), boxes,
        x_scale, scale, bias, space.partials, space.arrivals, m, n, k, STAGES=config.stages,
        TILES=config.tiles, SPLIT=config.split, SHARES=shares, EVERY=every,
        num_warps=config.warps, launch_pdl=True,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["M"])
def hopper_fp8_gemm_kernel(
    x_desc, w_desc, out_desc, x_scale_ptr, w_scale_ptr, bias_ptr, partial_ptr, arrival_ptr, M, N, K,
    STAGES: gl.constexpr, TILES: gl.constexpr, SPLIT: gl.constexpr, SHARES: gl.constexpr,
    EVERY: gl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] → out [M, N]. A step is TILES tiles, SPLIT programs share a tile's steps.

    W, its scales and the bias must not be written by the previous kernel.
    """
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = w_desc.block_type.shape[1]
    tile, part = gl.program_id(0) // SPLIT, gl.program_id(0) % SPLIT
    steps = gl.cdiv(K, TILES * BLOCK_K)
    begin, end = part * steps // SPLIT, (part + 1) * steps // SPLIT
    ring = gl.allocate_shared_memory(
        w_desc.dtype, [STAGES * TILES, BLOCK_N, BLOCK_K], w_desc.layout
    )
    x_ring = gl.allocate_shared_memory(
        x_desc.dtype, [STAGES * TILES, BLOCK_M, BLOCK_K], x_desc.layout
    )
    full = barriers(STAGES, 1)
    fence_async_shared()
    for stage in gl.static_range(STAGES):
        ask_weight(w_desc, x_desc, ring, full, tile * BLOCK_N, begin, end, stage)
    gdc_launch_dependents()
    gdc_wait()  # results of the previous kernel are read from here on
    for stage in gl.static_range(STAGES):
        ask_rows(x_desc, x_ring, full, begin, end, stage)
    acc = multiply_tiles(x_desc, w_desc, ring, x_ring, full, tile * BLOCK_N, begin, end, EVERY)
    invalidate(full)
    complete, first, acc = add_parts(acc, tile, part, partial_ptr, arrival_ptr, SPLIT, SHARES)
    if complete:
        store_rows(acc, out_desc, first, tile * BLOCK_N, x_scale_ptr, w_scale_ptr, bias_ptr, M, N)


@gluon.jit
def store_rows(acc, out_desc, first, row, x_scale_ptr, w_scale_ptr, bias_ptr, M, N):
    """Store sums [rows of W from `row` on, tokens from `first` on] times scales, plus bias."""
    layout: gl.constexpr = acc.type.layout
    rows = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout))
    tokens = first + gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout))
    if w_scale_ptr is not None:
        by = gl.load(w_scale_ptr + rows, mask=rows < N, other=0.0)
        acc = acc * by[:, None]
        acc = acc * gl.load(x_scale_ptr + tokens, mask=tokens < M, other=0.0)[None, :]
    if bias_ptr is not None:
        acc += gl.load(bias_ptr + rows, mask=rows < N, other=0.0).to(gl.float32)[:, None]
    out = gl.allocate_shared_memory(out_desc.dtype, out_desc.block_type.shape, out_desc.layout)
    barrier()  # out may reuse the ring's memory, which all warps must have finished with
    out.permute((1, 0)).store(acc.to(out_desc.dtype))
    fence_async_shared()
    barrier()
    store_box(out_desc, [first, row], out)  # TMA clips at M and N
    tma.store_wait(0)
