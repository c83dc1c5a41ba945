"""GEMM of many rows in FP8 or INT8 on Hopper with scales of 128 columns of each token and output.

Floor: twice the tensor cores' 16-bit rate. A step is 128 columns of W and x, loaded through a ring;
its sums are multiplied by both scales and added in float32, which also makes up for the some 14
bits with which tensor cores accumulate FP8. INT8 weights may have one scale for each output alone.
Several programs on a multiprocessor: one multiplies while another adds. Codes of both sides are in
the order of `ops/byte_words.py`, the same for both.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.kernels.byte_operands import ByteWords
from quire.kernels.operands import RoundedRows
from quire.kernels.triton.gemm.block_config import BlockConfig
from quire.kernels.triton.hopper.hopper_barriers import barriers, invalidate
from quire.kernels.triton.hopper.hopper_fp8_gemm import store_rows
from quire.kernels.triton.hopper.hopper_gemm import tile_layout, tiles_of
from quire.kernels.triton.hopper.hopper_gemm_ring import ask_weight, ring_of, sums_layout, sums_type
from quire.kernels.triton.hopper.hopper_split_k import add_parts
from quire.kernels.triton.launch.gluon_compat import barrier, fetch_box, seen_as
from quire.kernels.triton.launch.row_memory import whole_boxes
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace


def multiply_blocks(
    x: RoundedRows, weight: ByteWords, bias: Tensor | None, config: BlockConfig
) -> Tensor:
    """x [T, K] · weight [N, K]ᵀ → bfloat16 [T, N]. N: a multiple of 8, as TMA requires."""
    m, n, k = len(x.codes), len(weight.words), weight.inputs
    block_m, block_n = config.block_m, config.block_n
    codes, rows = weight.words.view(x.codes.dtype), whole_boxes(x.codes, block_m)
    tiles = triton.cdiv(n, block_n) * triton.cdiv(m, block_m)
    space = workspace(codes.device)
    sums = tiles * config.split * block_n * block_m
    assert config.split == 1 or (tiles <= NUM_COUNTERS and sums <= NUM_PARTIALS)
    shares = config.shares(m, space.num_sms)
    out = torch.empty(m, n, dtype=torch.bfloat16, device=codes.device)
    hopper_block_gemm_kernel[(tiles * config.split,)](
        tiles_of(rows, block_m), tiles_of(codes, block_n),
        TensorDescriptor.from_tensor(out, [block_m // shares, block_n], tile_layout(2)),
        x.scale, weight.scale, weight.row_scale, bias, space.partials, space.arrivals, m, n, k,
        STAGES=config.stages, SPLIT=config.split, SHARES=shares, TABLE=config.table(k),
        num_warps=config.warps, maxnreg=config.registers, launch_pdl=True,
    )  # fmt: skip
    return out


@gluon.jit(do_not_specialize=["M"])
def hopper_block_gemm_kernel(
    x_desc, w_desc, out_desc, x_scale_ptr, group_scale_ptr, row_scale_ptr, bias_ptr, partial_ptr,
    arrival_ptr, M, N, K, STAGES: gl.constexpr, SPLIT: gl.constexpr, SHARES: gl.constexpr,
    TABLE: gl.constexpr,
):  # fmt: skip
    """x [M, K], w [N, K] → out [M, N]. SPLIT programs share a tile's steps. TABLE: most steps.

    Programs of the same W lie side by side. W, its scales and the bias must not be written by the
    previous kernel.
    """
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[0]
    m_tiles = gl.cdiv(M, BLOCK_M)
    program, first = gl.program_id(0) // m_tiles, gl.program_id(0) % m_tiles * BLOCK_M
    tile, part = program // SPLIT, program % SPLIT
    steps = gl.cdiv(K, 128)
    begin, end = part * steps // SPLIT, (part + 1) * steps // SPLIT
    row = tile * BLOCK_N
    ring, x_ring, full = ring_of(w_desc, STAGES), ring_of(x_desc, STAGES), barriers(STAGES, 1)
    fence_async_shared()
    for stage in gl.static_range(STAGES):
        ask_weight(w_desc, x_desc, ring, full, row, begin, end, stage)
    gdc_launch_dependents()
    scales = None
    if group_scale_ptr is not None:
        scales = _load_table(group_scale_ptr, row, begin, end, N, TABLE, BLOCK_N)
    gdc_wait()  # results of the previous kernel are read from here on
    for stage in gl.static_range(STAGES):
        _ask_rows(x_desc, x_ring, full, first, begin, end, stage)
    x_scales = _load_table(x_scale_ptr, first, begin, end, M, TABLE, BLOCK_M)
    layout: gl.constexpr = sums_layout(BLOCK_M, gl.num_warps(), w_desc.dtype)
    in_rows: gl.constexpr = gl.SliceLayout(1, layout)
    in_columns: gl.constexpr = gl.SliceLayout(0, layout)
    sums = gl.zeros([BLOCK_N, BLOCK_M], sums_type(w_desc.dtype), layout)
    total = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout)
    barrier()  # scales are there
    for step in range(end - begin):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        sums = warpgroup_mma(
            ring.index(slot), x_ring.index(slot).permute((1, 0)), sums, use_acc=False,
            is_async=True,
        )  # fmt: skip
        by = None
        if scales is not None:
            by = scales.index(step).load(in_rows).to(gl.float32)[:, None]
        of = x_scales.index(step).load(in_columns).to(gl.float32)
        sums = warpgroup_mma_wait(0, deps=[sums])
        barrier()  # all warps have finished the step, so its slot is free
        ask_weight(w_desc, x_desc, ring, full, row, begin, end, step + STAGES)
        _ask_rows(x_desc, x_ring, full, first, begin, end, step + STAGES)
        if by is None:
            total += sums.to(gl.float32) * of[None, :]
        else:
            total += sums.to(gl.float32) * by * of[None, :]
    invalidate(full)
    position = tile * m_tiles + first // BLOCK_M
    complete, token, total = add_parts(
        total, position, part, partial_ptr, arrival_ptr, SPLIT, SHARES
    )
    if complete:
        rows = row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, total.type.layout))
        total = total * gl.load(row_scale_ptr + rows, mask=rows < N, other=0.0)[:, None]
        store_rows(total, out_desc, first + token, row, None, None, bias_ptr, M, N)


@gluon.jit
def _ask_rows(x_desc, x_ring, full, first, begin, end, step):
    """Start to load a step's columns of x, from row `first` on."""
    stage = step % full.shape[0]
    column = (begin + step) * 128
    there = begin + step < end
    fetch_box(x_desc, [first, column], full.index(stage), x_ring.index(stage), there)


@gluon.jit
def _load_table(ptr, first, begin, end, N, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Scales [K / 128, N] of a program's steps and WIDTH columns from `first` on, in shared memory.

    ROWS: a power of two, as many as steps at least.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [gl.num_warps(), 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    memory = gl.allocate_shared_memory(ptr.dtype.element_ty, [ROWS, WIDTH], shared)
    steps = begin + gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    columns = first + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]
    there = (steps < end) & (columns < N)
    memory.store(gl.load(ptr + steps * N + columns, mask=there, other=0.0))
    return seen_as(memory, memory.dtype, [ROWS, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [0]))
