"""GEMM of many rows in bfloat16 with weights of a byte each on Hopper, dequantized in registers.

Floor: the tensor cores' 16-bit rate. Tiles of 256 rows of x dequantize codes seldom. A step is 128
columns of W and x, loaded through a ring; the last product of a step is in flight while the first
codes of the next become numbers. The split of k is as in `hopper_fp8_gemm`.
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
from quire.kernels.triton.gemm.byte_rows_config import ByteRowsConfig
from quire.kernels.triton.hopper.hopper_barriers import barriers, invalidate
from quire.kernels.triton.hopper.hopper_byte_codes import dequantize
from quire.kernels.triton.hopper.hopper_fp8_gemm import reduce_parts, store_rows
from quire.kernels.triton.hopper.hopper_gemm import tile_layout
from quire.kernels.triton.hopper.hopper_gemm_ring import sums_layout
from quire.kernels.triton.hopper.hopper_int4_ring import (
    ask_columns,
    ask_words,
    load_groups,
    word_boxes,
)
from quire.kernels.triton.launch.gluon_compat import barrier, seen_as
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace


def multiply_byte_rows(
    x: Tensor, weight: ByteWords, bias: Tensor | None, config: ByteRowsConfig
) -> Tensor:
    """x [T, K] · weight [N, K]ᵀ → bfloat16 [T, N]. N: a multiple of 8; K: whole steps of 256."""
    m, n, block_m, block_n = len(x), len(weight.words), config.block_m, config.block_n
    tiles = triton.cdiv(n, block_n) * triton.cdiv(m, block_m)
    sums = tiles * config.split * block_n * block_m
    assert config.split == 1 or (tiles <= NUM_COUNTERS and sums <= NUM_PARTIALS)
    space = workspace(x.device)
    out = torch.empty(m, n, dtype=torch.bfloat16, device=x.device)
    hopper_byte_rows_kernel[(tiles * config.split,)](
        _column_boxes(x, block_m), word_boxes(weight.words, 1, block_n),
        TensorDescriptor.from_tensor(out, [block_m, block_n], tile_layout(2)),
        weight.row_scale, weight.scale, weight.zeros, bias, space.partials, space.counters, m, n,
        weight.inputs, STAGES=config.stages, SPLIT=config.split, GROUP=weight.group,
        GROUP_ROWS=config.group_rows(weight.inputs, weight.group), CODES=weight.codes,
        num_warps=config.warps, launch_pdl=True,
    )  # fmt: skip
    return out


def _column_boxes(x: Tensor, block_m: int) -> TensorDescriptor:
    """Boxes [2, 1, block_m, 64] of x [M, K], seen as [2, K / 128, M, 64]."""
    (m, k), layout = x.shape, gl.NVMMASharedLayout(128, 16, 4)
    shape, strides = [2, k // 128, m, 64], [64, 128, x.stride(0), 1]
    return TensorDescriptor(x, shape, strides, [2, 1, block_m, 64], layout)


@gluon.jit(do_not_specialize=["M"])
def hopper_byte_rows_kernel(
    x_desc, w_desc, out_desc, row_scale_ptr, group_scale_ptr, zero_ptr, bias_ptr, partial_ptr,
    counter_ptr, M, N, K, STAGES: gl.constexpr, SPLIT: gl.constexpr, GROUP: gl.constexpr,
    GROUP_ROWS: gl.constexpr, CODES: gl.constexpr,
):  # fmt: skip
    """x [M, K], words [N, K / 4] → out [M, N]. SPLIT programs share a tile's steps of 256 columns.

    Programs of the same W lie side by side. W, its scales and the bias must not be written by the
    previous kernel.
    """
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[1]
    ROWS: gl.constexpr = out_desc.block_type.shape[0]
    m_tiles = gl.cdiv(M, ROWS)
    program, first = gl.program_id(0) // m_tiles, gl.program_id(0) % m_tiles * ROWS
    tile, part = program // SPLIT, program % SPLIT
    steps = gl.cdiv(K, 256)
    begin, end = part * steps // SPLIT, (part + 1) * steps // SPLIT
    row = tile * BLOCK_N
    ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES, 1, BLOCK_N, 32], w_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, 2, 1, ROWS, 64], x_desc.layout)
    full = barriers(STAGES, 1)
    fence_async_shared()
    for stage in gl.static_range(STAGES):
        ask_words(w_desc, x_desc, ring, full, row, 2 * begin, 2 * end, stage)
    gdc_launch_dependents()
    scales, zeros = None, None
    if group_scale_ptr is not None:
        scales = load_groups(
            group_scale_ptr, row, begin, end, N, K, 1, BLOCK_N, GROUP, GROUP_ROWS,
            gl.bfloat16,
        )  # fmt: skip
    if zero_ptr is not None:
        zeros = load_groups(
            zero_ptr, row, begin, end, N, K, 1, BLOCK_N, GROUP, GROUP_ROWS, gl.bfloat16
        )
    gdc_wait()  # results of the previous kernel are read from here on
    for stage in gl.static_range(STAGES):
        ask_columns(x_desc, x_ring, full, first, 2 * begin, 2 * end, stage)
    acc = _multiply(
        x_desc, w_desc, ring, x_ring, scales, zeros, full, row, first, 2 * begin, 2 * end, GROUP,
        CODES,
    )  # fmt: skip
    invalidate(full)
    complete = True
    if SPLIT > 1:
        position = tile * m_tiles + first // ROWS
        complete, acc = reduce_parts(acc, position, part, partial_ptr, counter_ptr, SPLIT)
    if complete:
        rows = row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, acc.type.layout))
        acc = acc * gl.load(row_scale_ptr + rows, mask=rows < N, other=0.0)[:, None]
        store_rows(acc, out_desc, first, row, None, None, bias_ptr, M, N)


@gluon.jit
def _multiply(
    x_desc, w_desc, ring, x_ring, scales, zeros, full, row, first, begin, end,
    GROUP: gl.constexpr, CODES: gl.constexpr,
):  # fmt: skip
    """A program's steps of its tile: W [BLOCK_N, k] · xᵀ [k, ROWS]."""
    STAGES: gl.constexpr = full.shape[0]
    HEIGHT: gl.constexpr = w_desc.block_type.shape[1]
    ROWS: gl.constexpr = x_desc.block_type.shape[2]
    layout: gl.constexpr = sums_layout(ROWS, gl.num_warps(), gl.bfloat16)
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    words_of = seen_as(ring, ring.dtype, [STAGES, HEIGHT, 32], gl.NVMMASharedLayout(128, 32))
    x_blocks = seen_as(x_ring, x_ring.dtype, [STAGES * 2, ROWS, 64], gl.NVMMASharedLayout(128, 16))
    total = gl.zeros([HEIGHT, ROWS], gl.float32, layout)
    barrier()  # scales and zeros are there
    for step in range(end - begin):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        words = words_of.index(slot).load(operand)
        a = _numbers(words, zeros, scales, step, GROUP, CODES, 0)
        total = warpgroup_mma(a, x_blocks.index(slot * 2).permute((1, 0)), total, is_async=True)
        total = warpgroup_mma_wait(1, deps=[total])  # the previous step has ended
        barrier()
        if step > 0:  # and its slot is free
            ask_words(w_desc, x_desc, ring, full, row, begin, end, step - 1 + STAGES)
            ask_columns(x_desc, x_ring, full, first, begin, end, step - 1 + STAGES)
        b = _numbers(words, zeros, scales, step, GROUP, CODES, 1)
        total = warpgroup_mma(b, x_blocks.index(slot * 2 + 1).permute((1, 0)), total, is_async=True)
        total = warpgroup_mma_wait(1, deps=[total])  # the first numbers' registers are needed
    return warpgroup_mma_wait(0, deps=[total])


@gluon.jit
def _numbers(words, zeros, scales, step, GROUP: gl.constexpr, CODES: gl.constexpr, B: gl.constexpr):
    """Block B of a step's two blocks of 64 columns: bfloat16 [rows, 64], from registers alone."""
    layout: gl.constexpr = words.type.layout
    in_rows: gl.constexpr = gl.SliceLayout(1, layout)
    first = step * (128 // GROUP) + 64 * B // GROUP
    last = step * (128 // GROUP) + (64 * B + 32) // GROUP
    zero, other_zero, scale, other_scale = None, None, None, None
    if zeros is not None:
        zero = zeros.index(first).load(in_rows)[:, None]
        other_zero = zeros.index(last).load(in_rows)[:, None]
    if scales is not None:
        scale = scales.index(first).load(in_rows).to(gl.bfloat16)[:, None]
        other_scale = scale
        if GROUP == 32:
            other_scale = scales.index(last).load(in_rows).to(gl.bfloat16)[:, None]
    one, other = dequantize(words, zero, other_zero, scale, other_scale, B, CODES)
    halves = gl.join(one, other)
    return gl.convert_layout(halves.permute((0, 2, 1)).reshape([words.shape[0], 64]), layout)
