"""The main loop of Hopper's GEMM of few rows with bytes, or with pairs of NF4's codes.

Bytes become numbers by `hopper_byte_codes`, pairs by `hopper_codebooks`. The ring is
`hopper_int4_ring`'s.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quire.kernels.triton.hopper.hopper_byte_codes import dequantize
from quire.kernels.triton.hopper.hopper_codebooks import is_byte, load_pairs
from quire.kernels.triton.hopper.hopper_gemm_ring import sums_layout
from quire.kernels.triton.hopper.hopper_int4_ring import ask_columns, ask_words, own_columns
from quire.kernels.triton.launch.gluon_compat import barrier, seen_as


@gluon.jit
def _block(
    words, zeros, scales, pairs, step, GROUP: gl.constexpr, SCALED: gl.constexpr,
    CODEBOOK: gl.constexpr, B: gl.constexpr,
):  # fmt: skip
    """Block B of a step's four blocks of 64 columns: bfloat16 [rows, 64], from registers alone."""
    GROUPS: gl.constexpr = 256 // GROUP
    layout: gl.constexpr = words.type.layout
    in_rows: gl.constexpr = gl.SliceLayout(1, layout)
    first = step * GROUPS + 64 * B // GROUP
    last = step * GROUPS + (64 * B + 32) // GROUP
    zero, other_zero, scale, other_scale = None, None, None, None
    if zeros is not None:
        zero = zeros.index(first).load(in_rows)[:, None]
        other_zero = zero
        if GROUP == 32:
            other_zero = zeros.index(last).load(in_rows)[:, None]
    if SCALED and scales is not None:
        scale = scales.index(first).load(in_rows).to(gl.bfloat16)[:, None]
        other_scale = scale
        if GROUP == 32:
            other_scale = scales.index(last).load(in_rows).to(gl.bfloat16)[:, None]
    if is_byte(CODEBOOK):
        one, other = dequantize(words, zero, other_zero, scale, other_scale, B % 2, CODEBOOK)
    else:
        one, other = load_pairs(words, pairs, B)
    halves = gl.join(one, other)
    return gl.convert_layout(halves.permute((0, 2, 1)).reshape([words.shape[0], 64]), layout)


@gluon.jit
def multiply_codes(
    x_desc, w_desc, ring, x_ring, scales, zeros, pairs, full, row, first, begin, end,
    GROUP: gl.constexpr, SCALED: gl.constexpr, CODEBOOK: gl.constexpr,
):  # fmt: skip
    """A program's steps of its tile: W [BLOCK_N, k] · xᵀ [k, BLOCK_M].

    SCALED: scales multiply the codes, in bfloat16, not the sums of a group in float32; so it has to
    be for groups of 32, and with many rows of x, for which there are no registers for two sums.
    pairs: of NF4, as `store_pairs` returns it.
    """
    PARTS: gl.constexpr = x_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = ring.shape[len(ring.shape) - 2]
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[2]
    STAGES: gl.constexpr = full.shape[0]
    WORDS: gl.constexpr = len(ring.shape) - 3  # for 8 columns: of eight bits two
    HEIGHT: gl.constexpr = PARTS * BLOCK_N
    TOGETHER: gl.constexpr = max(1, 8 // (PARTS * BLOCK_M))  # blocks on the other side of a product
    WIDTH: gl.constexpr = TOGETHER * PARTS * BLOCK_M
    SUMS: gl.constexpr = 4 if TOGETHER > 1 else 1 if SCALED else min(4, 256 // GROUP)  # of a step
    layout: gl.constexpr = sums_layout(WIDTH, gl.num_warps(), gl.bfloat16)
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    words_of = seen_as(
        ring, ring.dtype, [STAGES * WORDS, HEIGHT, 32], gl.NVMMASharedLayout(128, 32)
    )
    x_blocks = seen_as(
        x_ring, x_ring.dtype, [STAGES * 4 // TOGETHER, WIDTH, 64], gl.NVMMASharedLayout(128, 16)
    )
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :] // BLOCK_M
    total = gl.zeros([HEIGHT, WIDTH], gl.float32, layout)
    barrier()  # scales, zeros and pairs are there
    for step in range(end - begin):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        words = words_of.index(slot * WORDS).load(operand)
        if SUMS == 1:
            gl.static_assert(WORDS == 2)
            for i in gl.static_range(4):
                if i == 2:
                    words = words_of.index(2 * slot + 1).load(operand)
                a = _block(words, zeros, scales, pairs, step, GROUP, SCALED, CODEBOOK, i)
                x = x_blocks.index(slot * 4 + i).permute((1, 0))
                total = warpgroup_mma(a, x, total, is_async=True)
            total = warpgroup_mma_wait(0, deps=[total])
        else:
            latter, sums = words, ()
            if WORDS == 2:
                latter = words_of.index(slot * WORDS + 1).load(operand)
            for i in gl.static_range(SUMS):
                first_or_last = words if 2 * i < SUMS else latter
                blocks = first_or_last, zeros, scales, pairs, x_blocks, step, slot
                own = _sum(blocks, total, i, SUMS, TOGETHER, GROUP, SCALED, CODEBOOK)
                sums = sums + (own,)  # type: ignore[assignment]  # noqa: RUF005
            block = column // PARTS
            for i in gl.static_range(SUMS):
                own = sums[i]
                total = _added(total, own, i, SUMS, scales, step, block, TOGETHER, GROUP, SCALED)
        barrier()  # all warps have finished the step, so its slot is free
        ask_words(w_desc, x_desc, ring, full, row, begin, end, step + STAGES)
        ask_columns(x_desc, x_ring, full, first, begin, end, step + STAGES)
    return own_columns(total, PARTS, BLOCK_M)


@gluon.jit
def _sum(
    blocks, total, INDEX: gl.constexpr, SUMS: gl.constexpr, TOGETHER: gl.constexpr,
    GROUP: gl.constexpr, SCALED: gl.constexpr, CODEBOOK: gl.constexpr,
):  # fmt: skip
    """Start sum INDEX of a step's SUMS."""
    words, zeros, scales, pairs, x_blocks, step, slot = blocks
    sums = total  # what the first MMA overwrites
    for i in gl.static_range(4 // SUMS):
        # named by no constexpr, which a loop may not define again
        a = _block(
            words, zeros, scales, pairs, step, GROUP, SCALED, CODEBOOK, INDEX * 4 // SUMS + i
        )
        x = x_blocks.index((slot * 4 + INDEX * 4 // SUMS + i) // TOGETHER).permute((1, 0))
        sums = warpgroup_mma(a, x, sums, use_acc=i > 0, is_async=True)
    return sums


@gluon.jit
def _added(
    total, sums, INDEX: gl.constexpr, SUMS: gl.constexpr, scales, step, block,
    TOGETHER: gl.constexpr, GROUP: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """Wait for sum INDEX and add it to the total, times its group's scale."""
    layout: gl.constexpr = total.type.layout
    LEFT: gl.constexpr = 4 - (INDEX + 1) * 4 // SUMS  # MMAs started since
    by = gl.full([1, 1], 1.0, gl.float32, layout)
    if not SCALED:
        group = step * (256 // GROUP) + INDEX * (256 // SUMS) // GROUP
        by = scales.index(group).load(gl.SliceLayout(1, layout)).to(gl.float32)[:, None]
    if TOGETHER > 1:
        by = gl.where(block == INDEX % TOGETHER, by, 0.0)
    return total + warpgroup_mma_wait(LEFT, deps=[sums]) * by
