"""GEMM of more than 64 rows in FP8 with weights of four bits on Hopper, unpacked in registers.

Floor: twice the tensor cores' 16-bit rate. Tiles of 256 rows of x unpack codes seldom: a warp group
unpacks 64 x 64 of them in a third of the time that it multiplies them by 256 rows. Of tiles of 128
rows two fit on a multiprocessor, so that one unpacks while the other multiplies, and fewer rows are
missing in the last one. Tiles of 128 outputs are faster, those of 64 occupy twice as many
multiprocessors. The rest is as in `hopper_int4_ring`: words and columns of x come through a ring, a
step is 256 columns, and programs may split a tile's k.
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
from quire.kernels.triton.launch.gluon_compat import barrier, seen_as
from quire.kernels.triton.launch.workspace import NUM_COUNTERS, NUM_PARTIALS, workspace


def multiply_rows_int4(
    x: RoundedRows, weight: Int4Words, bias: Tensor | None, config: Int4RowsConfig
) -> Tensor:
    """x [T, K] · weight [N, K]ᵀ → bfloat16 [T, N]. N: a multiple of 8, as TMA requires."""
    codes, m, n = x.codes, len(x.codes), len(weight.words)
    if weight.inputs % 256:
        codes = F.pad(codes.view(torch.uint8), (0, -weight.inputs % 256)).view(codes.dtype)
    block_m, block_n = config.block_m, config.block_n
    codes, tiles = whole_boxes(codes, block_m), triton.cdiv(n, block_n) * triton.cdiv(m, block_m)
    space = workspace(codes.device)
    assert tiles <= NUM_COUNTERS
    assert config.split == 1 or tiles * config.split * block_n * block_m <= NUM_PARTIALS
    out = torch.empty(m, n, dtype=torch.bfloat16, device=codes.device)
    hopper_int4_rows_kernel[(tiles * config.split,)](
        column_boxes(codes, 1, block_m), word_boxes(weight.words, 1, block_n),
        TensorDescriptor.from_tensor(out, [block_m, block_n], tile_layout(2)),
        x.scale, weight.row_scale, weight.scale, weight.zeros, bias, space.partials,
        space.counters, m, n, weight.inputs, STAGES=config.stages, SPLIT=config.split,
        GROUP=weight.group, GROUP_ROWS=config.group_rows(weight.inputs, weight.group),
        num_warps=config.warps, maxnreg=config.registers, launch_pdl=True,
    )  # fmt: skip
    return out


@gluon.jit(do_not_specialize=["M"])
def hopper_int4_rows_kernel(
    x_desc, w_desc, out_desc, x_scale_ptr, row_scale_ptr, group_scale_ptr, zero_ptr, bias_ptr,
    partial_ptr, counter_ptr, M, N, K, STAGES: gl.constexpr, SPLIT: gl.constexpr,
    GROUP: gl.constexpr, GROUP_ROWS: gl.constexpr,
):  # fmt: skip
    """x [M, K], words [N, K / 8] → out [M, N]. SPLIT programs share a tile's steps.

    Programs of the same W lie side by side. W, its scales and the bias must not be written by the
    previous kernel.
    """
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[1]
    ROWS: gl.constexpr = out_desc.block_type.shape[0]
    m_tiles = gl.cdiv(M, ROWS)
    program, first = gl.program_id(0) // m_tiles, gl.program_id(0) % m_tiles * ROWS
    tile, part = program // SPLIT, program % SPLIT
    steps = gl.cdiv(K, STEP)
    begin, end = part * steps // SPLIT, (part + 1) * steps // SPLIT
    row = tile * BLOCK_N
    ring = gl.allocate_shared_memory(w_desc.dtype, [STAGES, 1, BLOCK_N, 32], w_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, 4, 1, ROWS, 64], x_desc.layout)
    full = barriers(STAGES, 1)
    fence_async_shared()
    for stage in gl.static_range(STAGES):
        ask_words(w_desc, x_desc, ring, full, row, begin, end, stage)
    gdc_launch_dependents()
    scales = load_groups(
        group_scale_ptr, row_scale_ptr, row, begin, end, N, K, 1, BLOCK_N, GROUP, GROUP_ROWS,
        gl.float16,
    )  # fmt: skip
    zeros = None
    if zero_ptr is not None:
        zeros = load_groups(
            zero_ptr, None, row, begin, end, N, K, 1, BLOCK_N, GROUP, GROUP_ROWS, gl.float16
        )
    gdc_wait()  # results of the previous kernel are read from here on
    for stage in gl.static_range(STAGES):
        ask_columns(x_desc, x_ring, full, first, begin, end, stage)
    acc = _multiply(
        x_desc, w_desc, ring, x_ring, scales, zeros, full, row, first, begin, end, GROUP
    )
    invalidate(full)
    complete = True
    if SPLIT > 1:
        position = tile * m_tiles + first // ROWS
        complete, acc = reduce_parts(acc, position, part, partial_ptr, counter_ptr, SPLIT)
    if complete:
        store_rows(acc, out_desc, first, row, x_scale_ptr, row_scale_ptr, bias_ptr, M, N)


@gluon.jit
def _multiply(
    x_desc, w_desc, ring, x_ring, scales, zeros, full, row, first, begin, end, GROUP: gl.constexpr
):
    """A program's steps of its tile: W [BLOCK_N, k] · xᵀ [k, ROWS]."""
    STAGES: gl.constexpr = full.shape[0]
    HEIGHT: gl.constexpr = w_desc.block_type.shape[1]
    ROWS: gl.constexpr = x_desc.block_type.shape[2]
    layout: gl.constexpr = sums_layout(ROWS, gl.num_warps(), x_desc.dtype)
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 4)
    words_of = seen_as(ring, ring.dtype, [STAGES, HEIGHT, 32], gl.NVMMASharedLayout(128, 32))
    x_blocks = seen_as(x_ring, x_ring.dtype, [STAGES * 4, ROWS, 64], gl.NVMMASharedLayout(64, 8))
    total = gl.zeros([HEIGHT, ROWS], gl.float32, layout)
    barrier()  # scales and zeros are there
    for step in range(end - begin):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        words = words_of.index(slot).load(operand)
        for i in gl.static_range(4):
            a = _block(words, zeros, scales, step, GROUP, i)
            x = x_blocks.index(slot * 4 + i).permute((1, 0))
            total = warpgroup_mma(a, x, total, is_async=True)
            if i == 1 and ROWS == 128:  # the first block's registers are needed
                total = warpgroup_mma_wait(1, deps=[total])
        total = warpgroup_mma_wait(0, deps=[total])
        barrier()  # all warps have finished the step, so its slot is free
        ask_words(w_desc, x_desc, ring, full, row, begin, end, step + STAGES)
        ask_columns(x_desc, x_ring, full, first, begin, end, step + STAGES)
    return total


@gluon.jit
def _block(words, zeros, scales, step, GROUP: gl.constexpr, B: gl.constexpr):
    """Block B of a step's four blocks of 64 columns: e4m3 [rows, 64], from registers alone."""
    layout: gl.constexpr = words.type.layout
    halves = gl.join(
        _unpack(words, zeros, scales, step, GROUP, 2 * B),
        _unpack(words, zeros, scales, step, GROUP, 2 * B + 1),
    )
    return gl.convert_layout(halves.permute((0, 2, 1)).reshape([words.shape[0], 64]), layout)


@gluon.jit
def _unpack(words, zeros, scales, step, GROUP: gl.constexpr, INDEX: gl.constexpr):
    """Words [rows, 32] → e4m3 [rows, 32], columns 32 · INDEX on of a step, times their scales."""
    in_rows: gl.constexpr = gl.SliceLayout(1, words.type.layout)
    group = step * (256 // GROUP) + 32 * INDEX // GROUP
    scale = scales.index(group).load(in_rows)[:, None]
    asm: gl.constexpr = _unpack_asm(INDEX, zeros is not None)
    if zeros is None:
        return gl.inline_asm_elementwise(
            asm, "=r,r,r,r,r,r,r", [words, scale], dtype=gl.float8e4nv, is_pure=True, pack=4
        )
    else:
        zero = zeros.index(group).load(in_rows)[:, None]
        return gl.inline_asm_elementwise(
            asm, "=r,r,r,r,r,r,r,r,r", [words, scale, zero], dtype=gl.float8e4nv, is_pure=True,
            pack=4,
        )  # fmt: skip


@gluon.constexpr_function
def _unpack_asm(index, has_zeros):
    """Codes `index` of two pairs of words as four e4m3: (code - zero) · scale, by float16.

    0x6400 | code is 1024 + code in float16; so are zeros, and 0x6408 stands for 8.
    """
    words, shift = ("$1", "$3") if index < 4 else ("$2", "$4"), 4 * (index % 4)
    zero = "$7" if has_zeros else "z"
    pairs = "".join(
        f"""shr.u32 t, {word}, {shift};
        lop3.b32 t, t, 0x000F000F, 0x64006400, 0xEA;
        sub.rn.f16x2 t, t, {zero};
        mul.rn.f16x2 t, t, $5;
        cvt.rn.satfinite.e4m3x2.f16x2 {half}, t;
        """
        for word, half in zip(words, ("a", "b"), strict=True)
    )
    registers = ".reg .b32 t, z; .reg .b16 a, b; mov.b32 z, 0x64086408;"
    return f"{{ {registers} {pairs} mov.b32 $0, {{a, b}}; }}"
