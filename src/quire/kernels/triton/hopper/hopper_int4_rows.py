"""GEMM of more than 64 rows in FP8 with weights of four bits on Hopper, unpacked in registers.

Floor: twice the tensor cores' 16-bit rate. Tiles of 256 rows of x unpack codes seldom: a warp group
unpacks 64 x 64 of them in a third of the time that it multiplies them by 256 rows. Of tiles of 128
rows two fit on a multiprocessor, so that one unpacks while the other multiplies, and fewer rows are
missing in the last one. So it is with 192 rows, multiplied as 128 and 64 since sizes are powers of
two; they leave room for a third stage. Tiles of 128 outputs are faster, those of 64 occupy twice as
many multiprocessors. The rest is as in `hopper_int4_ring`: words and columns of x come through a
ring, a step is 256 columns, and programs may split a tile's k.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
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

from quire.kernels.operands import Int4Words, RoundedRows
from quire.kernels.triton.gemm.int4_rows_config import Int4RowsConfig
from quire.kernels.triton.hopper.hopper_barriers import barriers, invalidate
from quire.kernels.triton.hopper.hopper_fp8_gemm import reduce_parts, store_rows
from quire.kernels.triton.hopper.hopper_gemm import tile_layout, whole_boxes
from quire.kernels.triton.hopper.hopper_gemm_ring import sums_layout
from quire.kernels.triton.hopper.hopper_int4_ring import (
    STEP,
    ask_columns,
    ask_words,
    column_boxes,
    load_groups,
    word_boxes,
)
from quire.kernels.triton.hopper.hopper_int4_to_fp8 import unpack_block
from quire.kernels.triton.launch.gluon_compat import barrier, seen_as
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace


def multiply_rows_int4(
    x: RoundedRows, weight: Int4Words, bias: Tensor | None, config: Int4RowsConfig,
    codebook: str | None = None,
) -> Tensor:  # fmt: skip
    """x [T, K] · weight [N, K]ᵀ → bfloat16 [T, N]. N: a multiple of 8, as TMA requires.

    codebook: `byte_tables` of the weight's, in float16.
    """
    assert (codebook is None) == (weight.codebook is None)
    codes, m, n = x.codes, len(x.codes), len(weight.words)
    if weight.inputs % 256:
        codes = F.pad(codes.view(torch.uint8), (0, -weight.inputs % 256)).view(codes.dtype)
    block_m, block_n = config.block_m, config.block_n
    codes, tiles = whole_boxes(codes, block_m), triton.cdiv(n, block_n) * triton.cdiv(m, block_m)
    space = workspace(codes.device)
    assert 2 * tiles <= NUM_COUNTERS
    assert config.split == 1 or tiles * config.split * block_n * block_m <= NUM_PARTIALS
    out = torch.empty(m, n, dtype=torch.bfloat16, device=codes.device)
    x_boxes, out_boxes = _boxes(codes, out, block_m - config.rest, block_n)
    x_rest, out_rest = _boxes(codes, out, config.rest, block_n)
    hopper_int4_rows_kernel[(tiles * config.split,)](
        x_boxes, x_rest, word_boxes(weight.words, 1, block_n), out_boxes, out_rest,
        x.scale, weight.row_scale, weight.scale, weight.zeros, bias, space.partials,
        space.counters, m, n, weight.inputs, STAGES=config.stages, SPLIT=config.split,
        GROUP=weight.group, GROUP_ROWS=config.group_rows(weight.inputs, weight.group),
        CODEBOOK=codebook, num_warps=config.warps, maxnreg=config.registers, launch_pdl=True,
    )  # fmt: skip
    return out


def _boxes(
    codes: Tensor, out: Tensor, rows: int, block_n: int
) -> tuple[TensorDescriptor | None, TensorDescriptor | None]:
    """Boxes of so many rows of x, and of its results; None for no rows."""
    if not rows:
        return None, None
    boxes = TensorDescriptor.from_tensor(out, [rows, block_n], tile_layout(2))
    return column_boxes(codes, 1, rows), boxes


@gluon.jit(do_not_specialize=["M"])
def hopper_int4_rows_kernel(
    x_desc, rest_desc, w_desc, out_desc, rest_out_desc, x_scale_ptr, row_scale_ptr,
    group_scale_ptr, zero_ptr, bias_ptr, partial_ptr, counter_ptr, M, N, K, STAGES: gl.constexpr,
    SPLIT: gl.constexpr, GROUP: gl.constexpr, GROUP_ROWS: gl.constexpr, CODEBOOK: gl.constexpr,
):  # fmt: skip
    """x [M, K], words [N, K / 8] → out [M, N]. SPLIT programs share a tile's steps.

    Programs of the same W lie side by side. W, its scales and the bias must not be written by the
    previous kernel. rest_desc: boxes of the tile's rows beyond a power of two, or None.
    """
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[1]
    MAIN: gl.constexpr = out_desc.block_type.shape[0]
    REST: gl.constexpr = 0 if rest_desc is None else rest_desc.block_type.shape[2]
    m_tiles = gl.cdiv(M, MAIN + REST)
    program, first = gl.program_id(0) // m_tiles, gl.program_id(0) % m_tiles * (MAIN + REST)
    tile, part = program // SPLIT, program % SPLIT
    steps = gl.cdiv(K, STEP)
    begin, end = part * steps // SPLIT, (part + 1) * steps // SPLIT
    row = tile * BLOCK_N
    ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES, 1, BLOCK_N, 32], w_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, 4, 1, MAIN, 64], x_desc.layout)
    rest_ring = None
    if REST:
        rest_ring = gl.allocate_shared_memory(
            x_desc.dtype, [STAGES, 4, 1, REST, 64], rest_desc.layout
        )
    full = barriers(STAGES, 1)
    fence_async_shared()
    for stage in gl.static_range(STAGES):
        ask_words(w_desc, x_desc, ring, full, row, begin, end, stage, REST_BYTES=256 * REST)
    gdc_launch_dependents()
    scales = load_groups(
        group_scale_ptr, row_scale_ptr, row, begin, end, N, K, 1, BLOCK_N, GROUP, GROUP_ROWS,
        gl.float16, CODEBOOK is not None,
    )  # fmt: skip
    zeros = None
    if zero_ptr is not None:
        zeros = load_groups(
            zero_ptr, None, row, begin, end, N, K, 1, BLOCK_N, GROUP, GROUP_ROWS, gl.float16
        )
    gdc_wait()  # results of the previous kernel are read from here on
    for stage in gl.static_range(STAGES):
        _ask_rows(x_desc, rest_desc, x_ring, rest_ring, full, first, begin, end, stage)
    sums = _multiply(
        x_desc, rest_desc, w_desc, ring, x_ring, rest_ring, scales, zeros, full, row, first, begin,
        end, GROUP, CODEBOOK,
    )  # fmt: skip
    invalidate(full)
    position, tiles = tile * m_tiles + first // (MAIN + REST), gl.num_programs(0) // SPLIT
    complete, acc = True, sums[0]
    if SPLIT > 1:
        complete, acc = reduce_parts(acc, position, part, partial_ptr, counter_ptr, SPLIT)
    if complete:
        store_rows(acc, out_desc, first, row, x_scale_ptr, row_scale_ptr, bias_ptr, M, N)
    if REST:
        complete, acc = True, sums[1]
        if SPLIT > 1:
            partial_ptr += tiles * (SPLIT * BLOCK_N * MAIN)
            counter_ptr += tiles
            complete, acc = reduce_parts(acc, position, part, partial_ptr, counter_ptr, SPLIT)
        if complete:
            store_rows(
                acc, rest_out_desc, first + MAIN, row, x_scale_ptr, row_scale_ptr, bias_ptr, M, N
            )


@gluon.jit
def _ask_rows(x_desc, rest_desc, x_ring, rest_ring, full, first, begin, end, step):
    """Start to load a step's columns of all rows of the tile."""
    ask_columns(x_desc, x_ring, full, first, begin, end, step)
    if rest_desc is not None:
        MAIN: gl.constexpr = x_desc.block_type.shape[2]
        ask_columns(rest_desc, rest_ring, full, first + MAIN, begin, end, step)


@gluon.jit
def _multiply(
    x_desc, rest_desc, w_desc, ring, x_ring, rest_ring, scales, zeros, full, row, first, begin, end,
    GROUP: gl.constexpr, CODEBOOK: gl.constexpr,
):  # fmt: skip
    """A program's steps of its tile: W [BLOCK_N, k] · xᵀ [k, rows] → sums of both parts of rows.

    A step's words are loaded while tensor cores still work on the step before. With two stages and
    few outputs that would hold up the next request of memory.
    """
    STAGES: gl.constexpr = full.shape[0]
    HEIGHT: gl.constexpr = w_desc.block_type.shape[1]
    MAIN: gl.constexpr = x_desc.block_type.shape[2]
    REST: gl.constexpr = 0 if rest_desc is None else rest_desc.block_type.shape[2]
    AHEAD: gl.constexpr = MAIN + REST > 128 and (STAGES > 2 or HEIGHT > 64)
    layout: gl.constexpr = sums_layout(MAIN, gl.num_warps(), x_desc.dtype)
    words_of = seen_as(ring, ring.dtype, [STAGES, HEIGHT, 32], gl.NVMMASharedLayout(128, 32))
    x_blocks = seen_as(x_ring, x_ring.dtype, [STAGES * 4, MAIN, 64], gl.NVMMASharedLayout(64, 8))
    rest_blocks = None
    if REST:
        rest_blocks = seen_as(
            rest_ring, x_ring.dtype, [STAGES * 4, REST, 64], gl.NVMMASharedLayout(64, 8)
        )
    sums = _no_sums(HEIGHT, MAIN, REST, x_desc.dtype)
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 4)
    barrier()  # scales and zeros are there
    words = _load_words(words_of, full, 0, operand)
    last = end - begin - 1
    for step in range(last):
        sums = _add_step(
            sums, words, zeros, scales, x_blocks, rest_blocks, step, STAGES, GROUP, CODEBOOK
        )
        if AHEAD:
            words = _load_words(words_of, full, step + 1, operand)
        sums = _finished(sums)
        barrier()  # all warps have finished the step, so its slot is free
        ask_words(w_desc, x_desc, ring, full, row, begin, end, step + STAGES, REST_BYTES=256 * REST)
        _ask_rows(x_desc, rest_desc, x_ring, rest_ring, full, first, begin, end, step + STAGES)
        if not AHEAD:
            words = _load_words(words_of, full, step + 1, operand)
    sums = _add_step(
        sums, words, zeros, scales, x_blocks, rest_blocks, last, STAGES, GROUP, CODEBOOK
    )
    return _finished(sums)


@gluon.jit
def _no_sums(HEIGHT: gl.constexpr, MAIN: gl.constexpr, REST: gl.constexpr, KIND: gl.constexpr):
    """Zeros [HEIGHT, rows] for each part of rows."""
    layout: gl.constexpr = sums_layout(MAIN, gl.num_warps(), KIND)
    total = gl.zeros([HEIGHT, MAIN], gl.float32, layout)
    if REST == 0:
        return (total,)
    else:
        rest_layout: gl.constexpr = sums_layout(REST, gl.num_warps(), KIND)
        return total, gl.zeros([HEIGHT, REST], gl.float32, rest_layout)


@gluon.jit
def _load_words(words_of, full, step, operand: gl.constexpr):
    """A step's words, once they and its columns of x are there."""
    STAGES: gl.constexpr = full.shape[0]
    mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1)
    return words_of.index(step % STAGES).load(operand)


@gluon.jit
def _add_step(
    sums, words, zeros, scales, x_blocks, rest_blocks, step, STAGES: gl.constexpr,
    GROUP: gl.constexpr, CODEBOOK: gl.constexpr,
):  # fmt: skip
    """Start to add a step's four blocks of 64 columns."""
    block = step % STAGES * 4
    for i in gl.static_range(4):
        a = unpack_block(words, zeros, scales, step, GROUP, CODEBOOK, i)
        total = _add_block(sums[0], a, x_blocks, block + i)
        if rest_blocks is not None:
            sums = (total, _add_block(sums[1], a, rest_blocks, block + i))
        elif i == 1 and x_blocks.shape[1] == 128:  # the first block's registers are needed
            sums = (warpgroup_mma_wait(1, deps=[total]),)
        else:
            sums = (total,)
    return sums


@gluon.jit
def _add_block(total, a, blocks, index):
    """Start to add W [BLOCK_N, 64] times a block of x."""
    layout: gl.constexpr = sums_layout(blocks.shape[1], gl.num_warps(), a.dtype)
    a = gl.convert_layout(a, gl.DotOperandLayout(0, layout, 4))
    return warpgroup_mma(a, blocks.index(index).permute((1, 0)), total, is_async=True)


@gluon.jit
def _finished(sums):
    """Wait for what tensor cores still add."""
    if len(sums) == 1:
        return (warpgroup_mma_wait(0, deps=[sums[0]]),)
    else:
        return warpgroup_mma_wait(0, deps=[sums[0], sums[1]])
