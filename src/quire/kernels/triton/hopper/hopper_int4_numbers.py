"""The main loop of Hopper's GEMM of few rows with weights of four bits, unpacked in registers.

Numbers are rounded to bfloat16 as a weight's would be. Products need no scale then, so a program
waits for its tensor cores once in a step. The bits of an integer are a subnormal number in
bfloat16, code · 2^-133, or 16 times that where it lies four bits higher. So a LOP3 takes two codes
out of a word, after a shift for every other pair, and one instruction for two numbers takes off the
zero and multiplies by the scale: 2.3 instructions for two codes. Other codes are in
`hopper_codebooks.py`, the ring in `hopper_int4_ring.py`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quire.kernels.triton.hopper.hopper_codebooks import look_up, make_e2m1
from quire.kernels.triton.hopper.hopper_gemm_ring import sums_layout
from quire.kernels.triton.hopper.hopper_int4_ring import ask_columns, ask_words, own_columns
from quire.kernels.triton.launch.gluon_compat import barrier, seen_as

_EIGHT = gl.constexpr("0x80088008")  # -8 · 2^-133, twice
_SIXTEENTH = gl.constexpr("0x3D803D80")


@gluon.jit
def multiply_numbers(
    x_desc, w_desc, ring, x_ring, scales, zeros, full, row, first, begin, end,
    GROUP: gl.constexpr, CODEBOOK: gl.constexpr, HEAD_DIM: gl.constexpr,
):  # fmt: skip
    """A program's steps of its tile: W [BLOCK_N, k] · xᵀ [k, BLOCK_M]; scales and zeros as bits."""
    PARTS: gl.constexpr = x_desc.block_type.shape[1]
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[2]
    STAGES: gl.constexpr = full.shape[0]
    HEIGHT: gl.constexpr = w_desc.block_type.nbytes // 128
    TOGETHER: gl.constexpr = max(1, 8 // (PARTS * BLOCK_M))  # blocks on the other side of a product
    WIDTH: gl.constexpr = TOGETHER * PARTS * BLOCK_M
    layout: gl.constexpr = sums_layout(WIDTH, gl.num_warps(), gl.bfloat16)
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    words_of = seen_as(ring, ring.dtype, [STAGES, HEIGHT, 32], gl.NVMMASharedLayout(128, 32))
    x_blocks = seen_as(
        x_ring, x_ring.dtype, [STAGES * 4 // TOGETHER, WIDTH, 64], gl.NVMMASharedLayout(128, 16)
    )
    # of the blocks together, the next one's first
    sums = (gl.zeros([HEIGHT, WIDTH], gl.float32, layout),) * TOGETHER
    barrier()  # scales and zeros are there
    for step in range(end - begin):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        words = words_of.index(slot).load(operand)
        for i in gl.static_range(4):
            numbers = _block(words, zeros, scales, step, GROUP, CODEBOOK, i)
            x = x_blocks.index((slot * 4 + i) // TOGETHER).permute((1, 0))
            sums = sums[1:] + (warpgroup_mma(numbers, x, sums[0], is_async=True),)  # noqa: RUF005
        if TOGETHER == 1:
            sums = (warpgroup_mma_wait(0, deps=sums),)
        else:
            sums = warpgroup_mma_wait(0, deps=sums)
        barrier()  # all warps have finished the step, so its slot is free
        ask_words(w_desc, x_desc, ring, full, row, begin, end, step + STAGES, HEAD_DIM)
        ask_columns(x_desc, x_ring, full, first, begin, end, step + STAGES)
    total = sums[0]
    block = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :] // (PARTS * BLOCK_M)
    if TOGETHER > 1:
        total = gl.where(block == 0, sums[0], sums[1])
    if TOGETHER > 2:
        total = gl.where(block < 2, total, gl.where(block == 2, sums[2], sums[3]))
    return own_columns(total * lifts(CODEBOOK)[1], PARTS, BLOCK_M)


@gluon.constexpr_function
def lifts(codebook):
    """(factor of scales, factor of sums): both undo what bits of codes are too small as numbers."""
    if codebook is None:
        return 2.0**112, 2.0**21  # 2^-133
    return (2.0**63, 2.0**63) if codebook == "e2m1" else (1.0, 1.0)  # 2^-126


@gluon.jit
def _block(
    words, zeros, scales, step, GROUP: gl.constexpr, CODEBOOK: gl.constexpr, B: gl.constexpr
):  # fmt: skip
    """Block B of a step's four of 64 columns: bfloat16 [rows, 64] / the second of `lifts`."""
    GROUPS: gl.constexpr = 256 // GROUP
    layout: gl.constexpr = words.type.layout
    in_rows: gl.constexpr = gl.SliceLayout(1, layout)
    first = step * GROUPS + 64 * B // GROUP
    last = step * GROUPS + (64 * B + 32) // GROUP
    scale = _twice(scales.index(first).load(in_rows)[:, None])
    other_scale = scale
    if GROUP == 32:
        other_scale = _twice(scales.index(last).load(in_rows)[:, None])
    if GROUP == 16:  # a word has codes of one of the two groups of each 32 columns
        is_first = gl.arange(0, 32, gl.SliceLayout(0, layout))[None, :] < 16
        second = _twice(scales.index(first + 1).load(in_rows)[:, None])
        third = _twice(scales.index(last).load(in_rows)[:, None])
        fourth = _twice(scales.index(last + 1).load(in_rows)[:, None])
        scale = gl.where(is_first, scale, second)
        other_scale = gl.where(is_first, third, fourth)
    if CODEBOOK == "e2m1":
        one, other = make_e2m1(words, scale, 2 * B), make_e2m1(words, other_scale, 2 * B + 1)
    elif CODEBOOK is not None:
        one, other = look_up(words, scale, other_scale, B, CODEBOOK)
    else:
        zero = _times(scale, _EIGHT)
        other_zero = zero
        if zeros is not None:
            zero = _twice(zeros.index(first).load(in_rows)[:, None])
            other_zero = zero
            if GROUP == 32:
                other_zero = _twice(zeros.index(last).load(in_rows)[:, None])
            other_zero = other_zero << 4
        elif GROUP == 32:
            other_zero = _times(other_scale, _EIGHT)
        one = _numbers(words, scale, zero, 2 * B, zeros is not None)
        other = _numbers(words, _times(other_scale, _SIXTEENTH), other_zero, 2 * B + 1,
                         zeros is not None)  # fmt: skip
    halves = gl.join(one, other)
    return gl.convert_layout(halves.permute((0, 2, 1)).reshape([words.shape[0], 64]), layout)


@gluon.constexpr_function
def _numbers_asm(index, has_zeros):
    """Codes `index` of two words as (code - zero) · scale, two bfloat16.

    $3: the scale; $5: the zero as codes are, or else the product of -8 and the scale.
    """
    word = "$1" if index < 4 else "$2"
    shift = f"shr.u32 t, {word}, 8;" if index % 4 > 1 else f"mov.b32 t, {word};"
    mask = "0x00F000F0" if index % 2 else "0x000F000F"
    if has_zeros:
        last = "sub.rn.bf16x2 t, t, $5;\n        mul.rn.bf16x2 $0, t, $3;"
    else:
        last = "fma.rn.bf16x2 $0, t, $3, $5;"
    return f"""{{
        .reg .b32 t;
        {shift}
        and.b32 t, t, {mask};
        {last}
    }}"""


@gluon.jit
def _numbers(words, scale, zero, INDEX: gl.constexpr, HAS_ZEROS: gl.constexpr):
    """Words [rows, 32] → bfloat16 [rows, 32], columns 32 · INDEX on of a step."""
    asm: gl.constexpr = _numbers_asm(INDEX, HAS_ZEROS)
    return gl.inline_asm_elementwise(
        asm, "=r,r,r,r,r,r,r", [words, scale, zero], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def _twice(bits):
    """16 bits → words that have them twice, as instructions for pairs of numbers take them."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, {$1, $1};", "=r,h", [bits], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.constexpr_function
def _times_asm(by):
    return f"""{{
        .reg .b32 t;
        mov.b32 t, {by};
        mul.rn.bf16x2 $0, $1, t;
    }}"""


@gluon.jit
def _times(pairs, BY: gl.constexpr):
    """Words of two bfloat16 times those of another word."""
    asm: gl.constexpr = _times_asm(BY)
    return gl.inline_asm_elementwise(asm, "=r,r", [pairs], dtype=gl.int32, is_pure=True, pack=1)
