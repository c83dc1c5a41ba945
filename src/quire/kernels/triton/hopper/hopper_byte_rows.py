"""GEMM of many rows in bfloat16 with weights of a byte each on Hopper, dequantized in registers.

Floor: the tensor cores' 16-bit rate. Tiles of 256 rows of x dequantize codes seldom. Codes come
through a ring in steps of 128 columns, x through one of its own in blocks of 64 or 128: small ones
of many rows, so that more of x is on its way. A block's products are in flight while codes of the
next become numbers. The split of k is in `hopper_split_k`.
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
from quire.kernels.triton.hopper.hopper_fp8_gemm import store_rows
from quire.kernels.triton.hopper.hopper_gemm import tile_layout
from quire.kernels.triton.hopper.hopper_gemm_ring import ring_of, sums_layout
from quire.kernels.triton.hopper.hopper_int4_ring import group_boxes, word_boxes
from quire.kernels.triton.hopper.hopper_split_k import add_parts
from quire.kernels.triton.launch.gluon_compat import barrier, fetch_box, seen_as
from quire.kernels.triton.launch.row_memory import whole_boxes
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace


def multiply_byte_rows(
    x: Tensor, weight: ByteWords, bias: Tensor | None, config: ByteRowsConfig
) -> Tensor:
    """x [T, K] · weight [N, K]ᵀ → bfloat16 [T, N]. K: whole steps of 256.

    N: a multiple of 8; of 16 if there are zeros, as TMA requires.
    """
    m, n, block_m, block_n = len(x), len(weight.words), config.block_m, config.block_n
    tiles = triton.cdiv(n, block_n) * triton.cdiv(m, block_m)
    sums = tiles * config.split * block_n * block_m
    assert config.split <= triton.cdiv(weight.inputs, 256)  # the kernel takes a step for granted
    assert config.split == 1 or (2 * tiles <= NUM_COUNTERS and sums <= NUM_PARTIALS)
    space, x, rest = workspace(x.device), whole_boxes(x, block_m), config.rest
    shares = config.shares(m, space.num_sms)
    out = torch.empty(m, n, dtype=torch.bfloat16, device=x.device)
    hopper_byte_rows_kernel[(tiles * config.split,)](
        _column_boxes(x, block_m - rest, config.columns),
        _column_boxes(x, rest, config.columns) if rest else None,
        word_boxes(weight.words, 1, block_n),
        group_boxes(weight.scale, 128 // weight.group, block_n),
        group_boxes(weight.zeros, 128 // weight.group, block_n),
        _out_boxes(out, (block_m - rest) // shares, block_n),
        _out_boxes(out, rest // shares, block_n) if rest else None,
        weight.row_scale, bias, space.partials, space.arrivals, m, n, weight.inputs,
        STAGES=config.stages, SPLIT=config.split, SHARES=shares, CODES=weight.codes,
        num_warps=config.warps, launch_pdl=True,
    )  # fmt: skip
    return out


def _out_boxes(out: Tensor, rows: int, outputs: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(out, [rows, outputs], tile_layout(2))


def _column_boxes(x: Tensor, block_m: int, columns: int) -> TensorDescriptor:
    """Boxes [columns / 64, block_m, 64] of x [M, K], seen as [K / 64, M, 64]."""
    (m, k), layout = x.shape, gl.NVMMASharedLayout(128, 16, 3)
    box = [columns // 64, block_m, 64]
    return TensorDescriptor(x, [k // 64, m, 64], [64, x.stride(0), 1], box, layout)


@gluon.jit(do_not_specialize=["M"])
def hopper_byte_rows_kernel(
    x_desc, rest_desc, w_desc, scale_desc, zero_desc, out_desc, rest_out_desc, row_scale_ptr,
    bias_ptr, partial_ptr, arrival_ptr, M, N, K, STAGES: gl.constexpr, SPLIT: gl.constexpr,
    SHARES: gl.constexpr, CODES: gl.constexpr,
):  # fmt: skip
    """x [M, K], words [N, K / 4] → out [M, N]. SPLIT programs share a tile's steps of 256 columns.

    Programs of the same W lie side by side. A tile may have more rows than an MMA, or than a power
    of two: the rest come by rest_desc. W, its scales and the bias must not be written by the
    previous kernel.
    """
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[1]
    MAIN: gl.constexpr = x_desc.block_type.shape[1]
    REST: gl.constexpr = 0 if rest_desc is None else rest_desc.block_type.shape[1]
    ROWS: gl.constexpr = MAIN + REST
    m_tiles = gl.cdiv(M, ROWS)
    program, first = gl.program_id(0) // m_tiles, gl.program_id(0) % m_tiles * ROWS
    tile, part = program // SPLIT, program % SPLIT
    steps = gl.cdiv(K, 256)
    begin, end = part * steps // SPLIT, (part + 1) * steps // SPLIT
    row = tile * BLOCK_N
    x_ring, words, rest_ring = ring_of(x_desc, STAGES), ring_of(w_desc, STAGES), None
    if rest_desc is not None:
        rest_ring = ring_of(rest_desc, STAGES)
    x_descs, x_rings = (x_desc, rest_desc), (x_ring, rest_ring)
    scales, zeros = None, None
    if scale_desc is not None:
        scales = ring_of(scale_desc, STAGES)
    if zero_desc is not None:  # TMA stores to multiples of 128 bytes; these may have 64
        zeros = ring_of(zero_desc, STAGES * (127 // zero_desc.block_type.nbytes + 1))
    full = barriers(STAGES, 1)
    SEPARATE: gl.constexpr = x_desc.block_type.shape[0] == 1  # smaller blocks of x than of W
    words_full = full  # one wait for both is quicker
    if SEPARATE:
        words_full = barriers(STAGES, 1)
    x_bytes: gl.constexpr = 0 if SEPARATE else x_desc.block_type.nbytes
    descs, w_ring = (w_desc, scale_desc, zero_desc), (words, scales, zeros, words_full)
    fence_async_shared()
    for stage in gl.static_range(STAGES - 1):
        _ask_words(descs, w_ring, x_bytes, row, 2 * begin, 2 * end, stage)
    gdc_launch_dependents()
    gdc_wait()  # results of the previous kernel are read from here on
    for stage in gl.static_range(STAGES - 1):
        _ask_columns(x_descs, x_rings, full, first, begin, end, stage)
    acc, rest = _multiply(
        x_descs, descs, x_rings, w_ring, full, x_bytes, row, first, begin, end, CODES
    )
    invalidate(full)
    if SEPARATE:
        invalidate(words_full)
    position, tiles = tile * m_tiles + first // ROWS, gl.num_programs(0) // SPLIT
    scales_and_bias = row_scale_ptr, bias_ptr, M, N
    if rest_desc is not None:  # first, as it leaves registers to the larger part
        _finish(
            rest, rest_out_desc, first + MAIN, row, scales_and_bias, position, part,
            partial_ptr + tiles * (SPLIT * BLOCK_N * MAIN), arrival_ptr + tiles, SPLIT, SHARES,
        )  # fmt: skip
    _finish(
        acc, out_desc, first, row, scales_and_bias, position, part, partial_ptr, arrival_ptr,
        SPLIT, SHARES,
    )  # fmt: skip


@gluon.jit
def _finish(
    acc, out_desc, first, row, scales_and_bias, position, part, partial_ptr, arrival_ptr,
    SPLIT: gl.constexpr, SHARES: gl.constexpr,
):  # fmt: skip
    """Store sums [outputs from `row` on, tokens from `first` on] times scales, plus bias."""
    row_scale_ptr, bias_ptr, M, N = scales_and_bias
    complete, token, acc = add_parts(acc, position, part, partial_ptr, arrival_ptr, SPLIT, SHARES)
    if complete:
        rows = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))
        acc = acc * gl.load(row_scale_ptr + rows, mask=rows < N, other=0.0)[:, None]
        store_rows(acc, out_desc, first + token, row, None, None, bias_ptr, M, N)


@gluon.jit
def _ask_words(descs, w_ring, x_bytes: gl.constexpr, row, begin, end, step):
    """Start to load 128 columns' words, scales and zeros, if there is such a step.

    x_bytes: of x to expect, too.
    """
    w_desc, scale_desc, zero_desc = descs
    words, scales, zeros, full = w_ring
    scale_bytes: gl.constexpr = 0 if scale_desc is None else scale_desc.block_type.nbytes
    zero_bytes: gl.constexpr = 0 if zero_desc is None else zero_desc.block_type.nbytes
    slot, there, chunk = step % full.shape[0], begin + step < end, begin + step
    bar = full.index(slot)
    mbarrier.expect(bar, w_desc.block_type.nbytes + scale_bytes + zero_bytes + x_bytes, pred=there)
    fetch_box(w_desc, [chunk, row, 0], bar, words.index(slot), there)
    if scale_desc is not None:
        GROUPS: gl.constexpr = scale_desc.block_type.shape[0]
        fetch_box(scale_desc, [chunk * GROUPS, row], bar, scales.index(slot), there)
    if zero_desc is not None:
        ZEROS: gl.constexpr = zero_desc.block_type.shape[0]
        slot *= zeros.shape[0] // full.shape[0]
        fetch_box(zero_desc, [chunk * ZEROS, row], bar, zeros.index(slot), there)


@gluon.jit
def _ask_columns(x_descs, x_rings, full, first, begin, end, block):
    """Start to load a block of x's columns, if there is such a block in steps of 256."""
    x_desc, rest_desc = x_descs
    x_ring, rest_ring = x_rings
    BLOCKS: gl.constexpr = x_desc.block_type.shape[0]  # of 64 columns
    MAIN: gl.constexpr = x_desc.block_type.shape[1]
    rest_bytes: gl.constexpr = 0 if rest_desc is None else rest_desc.block_type.nbytes
    slot = block % full.shape[0]
    there = begin * 4 + block * BLOCKS < end * 4
    if BLOCKS == 1:
        mbarrier.expect(full.index(slot), x_desc.block_type.nbytes + rest_bytes, pred=there)
    column = begin * 4 + block * BLOCKS
    fetch_box(x_desc, [column, first, 0], full.index(slot), x_ring.index(slot), there)
    if rest_desc is not None:
        corner = [column, first + MAIN, 0]
        fetch_box(rest_desc, corner, full.index(slot), rest_ring.index(slot), there)


@gluon.jit
def _multiply(
    x_descs, descs, x_rings, w_ring, full, x_bytes: gl.constexpr, row, first, begin, end,
    CODES: gl.constexpr,
):  # fmt: skip
    """A program's steps of 256 columns of its tile: W [BLOCK_N, k] · xᵀ [k, ROWS], and the rest's.

    Only one MMA is in flight while codes become numbers, the larger one.
    """
    x_ring, rest_ring = x_rings
    words_ring, scales, zeros, words_full = w_ring
    BLOCKS: gl.constexpr = x_ring.shape[1]
    STAGES: gl.constexpr = full.shape[0]
    HEIGHT: gl.constexpr = words_ring.shape[2]
    ROWS: gl.constexpr = x_ring.shape[2]
    layout: gl.constexpr = sums_layout(ROWS, gl.num_warps(), gl.bfloat16)
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    words_of = seen_as(words_ring, gl.int32, [STAGES, HEIGHT, 32], gl.NVMMASharedLayout(128, 32))
    x_blocks = seen_as(
        x_ring, gl.bfloat16, [STAGES * BLOCKS, ROWS, 64], gl.NVMMASharedLayout(128, 16)
    )
    total = gl.zeros([HEIGHT, ROWS], gl.float32, layout)
    rest = total
    if rest_ring is not None:
        REST: gl.constexpr = rest_ring.shape[2]
        rest_layout: gl.constexpr = sums_layout(REST, gl.num_warps(), gl.bfloat16)
        rest_operand: gl.constexpr = gl.DotOperandLayout(0, rest_layout, 2)
        rest = gl.zeros([HEIGHT, REST], gl.float32, rest_layout)
        rest_blocks = seen_as(
            rest_ring, gl.bfloat16, [STAGES * BLOCKS, REST, 64], gl.NVMMASharedLayout(128, 16)
        )
    steps = 2 * (end - begin)  # of 128 columns
    gl.assume(steps > 0)  # else ptxas may wait for each product
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(words_full.index(slot), step // STAGES & 1)
        words = words_of.index(slot).load(operand)
        zero, scale = ((None, None),) * 2, ((None, None),) * 2
        if zeros is not None:  # read now, as from the next loads on each read would wait
            at_zeros = slot * (zeros.shape[0] // STAGES)
            zero = _of_groups(zeros, at_zeros, operand, 0), _of_groups(zeros, at_zeros, operand, 1)
        if scales is not None:
            scale = _of_groups(scales, slot, operand, 0), _of_groups(scales, slot, operand, 1)
        for half in gl.static_range(2):
            block = 2 * step + half  # of 64 columns
            at, stage = block // BLOCKS, block // BLOCKS % STAGES
            a = _numbers(words, zero[half], scale[half], CODES, half)
            if BLOCKS == 1:
                mbarrier.wait(full.index(stage), at // STAGES & 1)
            own = stage * BLOCKS + half % BLOCKS
            if rest_ring is not None:
                other = rest_blocks.index(own).permute((1, 0))
                rest = warpgroup_mma(gl.convert_layout(a, rest_operand), other, rest, is_async=True)
            total = warpgroup_mma(a, x_blocks.index(own).permute((1, 0)), total, is_async=True)
            if rest_ring is None:  # wait until the previous block has ended
                total = warpgroup_mma_wait(1, deps=[total])
            else:
                rest, total = warpgroup_mma_wait(1, deps=[rest, total])
            if half % BLOCKS == 0:
                barrier()
                # its slot is free, or nothing was there yet
                _ask_columns(x_descs, x_rings, full, first, begin, end, at - 1 + STAGES)
            if half == 0:
                _ask_words(descs, w_ring, x_bytes, row, 2 * begin, 2 * end, step - 1 + STAGES)
    return warpgroup_mma_wait(0, deps=[total]), rest


@gluon.jit
def _numbers(words, zeros, scales, CODES: gl.constexpr, B: gl.constexpr):
    """Block B of two blocks of 64 columns: bfloat16 [rows, 64], from registers alone."""
    layout: gl.constexpr = words.type.layout
    one, other = dequantize(words, zeros[0], zeros[1], scales[0], scales[1], B, CODES)
    halves = gl.join(one, other)
    return gl.convert_layout(halves.permute((0, 2, 1)).reshape([words.shape[0], 64]), layout)


@gluon.jit
def _of_groups(ring, slot, layout: gl.constexpr, B: gl.constexpr):
    """Two times scales or zeros [rows, 1], of columns 64 · B on and of 32 behind them."""
    GROUPS: gl.constexpr = ring.shape[1]
    shape: gl.constexpr = [ring.shape[0] * GROUPS, ring.shape[2]]
    rows = seen_as(ring, ring.dtype, shape, gl.SwizzledSharedLayout(1, 1, 1, [0]))
    first = slot * GROUPS + B * GROUPS // 2
    in_rows: gl.constexpr = gl.SliceLayout(1, layout)
    one = rows.index(first).load(in_rows).to(gl.float32).to(gl.bfloat16)[:, None]
    other = one
    if GROUPS == 4:
        other = rows.index(first + 1).load(in_rows).to(gl.float32).to(gl.bfloat16)[:, None]
    return one, other
