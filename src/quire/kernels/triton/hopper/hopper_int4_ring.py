"""The main loop of Hopper's GEMM of few rows with weights of four bits, unpacked in registers.

A step is 256 columns of W for each of PARTS parts of k. A tile has PARTS · BLOCK_N = 64 or 128 rows
for the tensor cores: the same outputs, once for each part, so that few outputs fill them, too. Its
other side has the rows of x, for each part and, where these are fewer than 8, for several blocks of
64 columns. So every product has sums of a row of W with columns that are not its own; they stay in
columns of their own and are left out at the end. It costs no time: W is read once, whatever the
tensor cores do, and x is loaded without the rows that would fill up a tile.

Words of four-bit codes are in the order that `ops/int4_weight.py` describes. A shift and a LOP3
make numbers of two codes, as the tensor cores take their first operand from registers (PTX ISA,
wgmma, register fragments): 0x4300 | code is 128 + code in bfloat16. Numbers of a codebook are
looked up in registers: PRMT picks bytes of eight, so it takes two for each byte of 16 numbers.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from quire.kernels.triton.hopper.hopper_byte_codes import widen
from quire.kernels.triton.hopper.hopper_gemm_ring import sums_layout
from quire.kernels.triton.launch.gluon_compat import barrier, fetch_box, seen_as

STEP = gl.constexpr(256)  # columns of a step, for each part


def word_boxes(words: Tensor, parts: int, block_n: int) -> TensorDescriptor:
    """Boxes [parts, block_n, 32] of words [N, K / 8], seen as [K / 256, N, 32]."""
    (n, width), layout = words.shape, gl.NVMMASharedLayout(128, 32, 3)
    return TensorDescriptor(
        words, [width // 32, n, 32], [32, width, 1], [parts, block_n, 32], layout
    )


def column_boxes(x: Tensor, parts: int, block_m: int) -> TensorDescriptor:
    """Boxes [4, parts, block_m, 64] of x [M, K], seen as [4, K / 256, M, 64]; K: of 256."""
    (m, k), layout = x.shape, gl.NVMMASharedLayout(64 * x.itemsize, 8 * x.itemsize, 4)
    shape, strides = [4, k // 256, m, 64], [64, 256, x.stride(0), 1]
    return TensorDescriptor(x, shape, strides, [4, parts, block_m, 64], layout)


@gluon.jit
def ask_words(w_desc, x_desc, ring, full, row, begin, end, step):
    """Start to load a step's words [(2,) PARTS, BLOCK_N, 32], and expect its columns of x, too."""
    PARTS: gl.constexpr = x_desc.block_type.shape[1]
    num_bytes: gl.constexpr = w_desc.block_type.nbytes + x_desc.block_type.nbytes
    stage = step % full.shape[0]
    there = begin + step < end
    mbarrier.expect(full.index(stage), num_bytes, pred=there)
    target = ring.index(stage)
    if len(w_desc.block_type.shape) == 4:  # codes of eight bits
        corner = [0, (begin + step) * PARTS, row, 0]
        fetch_box(w_desc, corner, full.index(stage), target, there)
    else:
        fetch_box(w_desc, [(begin + step) * PARTS, row, 0], full.index(stage), target, there)


@gluon.jit
def ask_columns(x_desc, x_ring, full, first, begin, end, step):
    """Start to load a step's columns of x [4, PARTS, BLOCK_M, 64], from row `first` on."""
    PARTS: gl.constexpr = x_desc.block_type.shape[1]
    stage = step % full.shape[0]
    target = x_ring.index(stage)
    corner = [0, (begin + step) * PARTS, first, 0]
    fetch_box(x_desc, corner, full.index(stage), target, begin + step < end)


@gluon.jit
def load_groups(
    ptr, row_scale_ptr, row, begin, end, N, K, PARTS: gl.constexpr, BLOCK_N: gl.constexpr,
    GROUP: gl.constexpr, ROWS: gl.constexpr, NUMBERS: gl.constexpr,
    EXPONENTS: gl.constexpr = False,
):  # fmt: skip
    """A program's scales (or zeros) [K / GROUP, N] in shared memory, as its steps read them.

    Row s · 256 / GROUP + g has those of group g of step s, for each part and output; ROWS: a power
    of two, as many at least. Scales are divided by their row's, if there are such. Zeros are bytes;
    in NUMBERS unsigned ones become 128 more (bfloat16) or 1024 more (float16). So are EXPONENTS of
    scales, which become powers of two in bfloat16.
    """
    GROUPS: gl.constexpr = 256 // GROUP
    WIDTH: gl.constexpr = PARTS * BLOCK_N
    layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [gl.num_warps(), 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    IS_BYTE: gl.constexpr = ptr.dtype.element_ty == gl.uint8
    IS_SIGNED: gl.constexpr = ptr.dtype.element_ty == gl.int8
    kind: gl.constexpr = NUMBERS if IS_BYTE or IS_SIGNED else ptr.dtype.element_ty
    memory = gl.allocate_shared_memory(kind, [ROWS, WIDTH], shared)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]
    step = begin + rows // GROUPS
    group = (step * PARTS + columns // BLOCK_N) * GROUPS + rows % GROUPS
    output = row + columns % BLOCK_N
    there = (step < end) & (output < N) & (group < gl.cdiv(K, STEP) * GROUPS)
    values = gl.load(ptr + group * N + output, mask=there, other=0)
    if IS_BYTE:
        bits = values.to(gl.int16)
        if EXPONENTS:  # bfloat16 has them all; the least is subnormal
            least = gl.where(bits == 0, 0x40, bits << 7)
            bits = gl.where(bits == 255, 0x7FC0, least).to(gl.int16)
        else:
            MORE: gl.constexpr = 0x6400 if NUMBERS.fp_mantissa_width == 10 else 0x4300
            bits = bits | MORE
        values = bits.to(NUMBERS, bitcast=True)
    elif IS_SIGNED:
        values = values.to(gl.float32).to(NUMBERS)
    elif row_scale_ptr is not None:
        by_row = gl.load(row_scale_ptr + output, mask=output < N, other=1.0)
        values = (values.to(gl.float32) / by_row).to(kind)
    memory.store(values)
    return seen_as(memory, memory.dtype, [ROWS, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.constexpr_function
def _unpack_asm(index, has_zeros, is_scaled):
    """Codes `index` of two words as two bfloat16: (code - zero), times a scale."""
    word, shift = "$1" if index < 4 else "$2", 4 * (index % 4)
    zero, scale = ("$3" if has_zeros else "z"), ("$4" if has_zeros else "$3")
    multiply = f"mul.rn.bf16x2 t, t, {scale};" if is_scaled else ""
    return f"""{{
        .reg .b32 t, z;
        mov.b32 z, 0x43084308;
        shr.u32 t, {word}, {shift};
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 t, t, {zero};
        {multiply}
        mov.b32 $0, t;
    }}"""


@gluon.jit
def _unpack(words, zero, scale, INDEX: gl.constexpr):
    """Words [rows, 32] → bfloat16 [rows, 32], columns 32 · INDEX on of a step.

    zero [rows, 1]: 128 more than it is, in bfloat16; None for 8. scale [rows, 1], or None for 1.
    """
    asm: gl.constexpr = _unpack_asm(INDEX, zero is not None, scale is not None)
    if zero is None and scale is None:
        return gl.inline_asm_elementwise(
            asm, "=r,r,r", [words], dtype=gl.bfloat16, is_pure=True, pack=2
        )
    elif zero is None:
        return gl.inline_asm_elementwise(
            asm, "=r,r,r,r", [words, scale], dtype=gl.bfloat16, is_pure=True, pack=2
        )
    elif scale is None:
        return gl.inline_asm_elementwise(
            asm, "=r,r,r,r", [words, zero], dtype=gl.bfloat16, is_pure=True, pack=2
        )
    else:
        return gl.inline_asm_elementwise(
            asm, "=r,r,r,r,r", [words, zero, scale], dtype=gl.bfloat16, is_pure=True, pack=2
        )


@gluon.constexpr_function
def _look_up_asm(block, codebook, is_scaled):
    """Four codes of one of two words as two times two bfloat16, times their scales.

    s: the codes as nibbles, their last three bits as PRMT takes them. k: a byte of ones for each
    code of 8 or more, by the signs of the word's bytes and of those four bits to the left. Where
    the last eight numbers are the first ones with a sign (MXFP4), k gives the sign.
    """
    tables = codebook.split()
    low, high = tables[:4], tables[4:]
    word = "$2" if block < 2 else "$3"
    select, mask = ("0x4420", "0xAE8C") if block % 2 == 0 else ("0x4431", "0xBF9D")
    either = """
        prmt.b32 b, {}, {}, s;
        lop3.b32 {}, {}, b, k, 0xD8;"""
    signs = {int(high[i], 16) ^ int(high[i + 2], 16) for i in (0, 1)}
    if low[:2] == low[2:] and signs == {0x80808080}:
        of_low, of_high = "", "lop3.b32 c, c, 0x80808080, k, 0xF8;"
    else:
        of_low = either.format(*low[2:], "a", "a")
        of_high = either.format(*high[2:], "c", "c")
    multiply = "mul.rn.bf16x2 $0, $0, $4; mul.rn.bf16x2 $1, $1, $5;" if is_scaled else ""
    return f"""{{
        .reg .b32 s, k, a, b, c;
        shl.b32 k, {word}, 4;
        prmt.b32 k, {word}, k, {mask};
        prmt.b32 s, {word}, 0, {select};
        and.b32 s, s, 0x7777;
        prmt.b32 a, {low[0]}, {low[1]}, s;
        {of_low}
        prmt.b32 c, {high[0]}, {high[1]}, s;
        {of_high}
        prmt.b32 $0, a, c, 0x6240;
        prmt.b32 $1, a, c, 0x7351;
        {multiply}
    }}"""


@gluon.jit
def _look_up(words, scale, other_scale, BLOCK: gl.constexpr, CODEBOOK: gl.constexpr):
    """Words [rows, 32] → two bfloat16 [rows, 32], columns 64 · BLOCK on and 32 behind them.

    scale, other_scale [rows, 1]: of the two, or None for 1.
    """
    asm: gl.constexpr = _look_up_asm(BLOCK, CODEBOOK, scale is not None)
    if scale is None:
        return gl.inline_asm_elementwise(
            asm, "=&r,=&r,r,r", [words], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=2
        )
    else:
        return gl.inline_asm_elementwise(
            asm, "=&r,=&r,r,r,r,r", [words, scale, other_scale],
            dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip


@gluon.jit
def _block(
    words, zeros, scales, step, GROUP: gl.constexpr, SCALED: gl.constexpr, CODEBOOK: gl.constexpr,
    B: gl.constexpr,
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
    if CODEBOOK is None:
        one = _unpack(words, zero, scale, 2 * B)
        other = _unpack(words, other_zero, other_scale, 2 * B + 1)
    elif CODEBOOK == "int8" or CODEBOOK == "fp8":
        one, other = widen(words, zero, other_zero, scale, other_scale, B % 2, CODEBOOK)
    else:
        one, other = _look_up(words, scale, other_scale, B, CODEBOOK)
    halves = gl.join(one, other)
    return gl.convert_layout(halves.permute((0, 2, 1)).reshape([words.shape[0], 64]), layout)


@gluon.jit
def multiply_int4(
    x_desc, w_desc, ring, x_ring, scales, zeros, full, row, first, begin, end,
    GROUP: gl.constexpr, SCALED: gl.constexpr, CODEBOOK: gl.constexpr,
):  # fmt: skip
    """A program's steps of its tile: W [BLOCK_N, k] · xᵀ [k, BLOCK_M].

    SCALED: scales multiply the codes, in bfloat16, not the sums of a group in float32; so it has to
    be for groups of 32, and with many rows of x, for which there are no registers for two sums.
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
    part = gl.arange(0, HEIGHT, gl.SliceLayout(1, layout))[:, None] // BLOCK_N
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :] // BLOCK_M
    total = gl.zeros([HEIGHT, WIDTH], gl.float32, layout)
    barrier()  # scales and zeros are there
    for step in range(end - begin):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        words = words_of.index(slot * WORDS).load(operand)
        blocks = words, zeros, scales, x_blocks, step, slot
        if SUMS == 1:
            for i in gl.static_range(4):
                if WORDS == 2 and i == 2:
                    words = words_of.index(slot * WORDS + 1).load(operand)
                a = _block(words, zeros, scales, step, GROUP, SCALED, CODEBOOK, i)
                x = x_blocks.index(slot * 4 + i).permute((1, 0))
                total = warpgroup_mma(a, x, total, is_async=True)
            total = warpgroup_mma_wait(0, deps=[total])
        else:
            latter = blocks
            if WORDS == 2:
                words = words_of.index(slot * WORDS + 1).load(operand)
                latter = words, zeros, scales, x_blocks, step, slot
            a = _sum(blocks, total, 0, SUMS, TOGETHER, GROUP, SCALED, CODEBOOK)
            if SUMS == 4:
                b = _sum(blocks, total, 1, SUMS, TOGETHER, GROUP, SCALED, CODEBOOK)
                c = _sum(latter, total, 2, SUMS, TOGETHER, GROUP, SCALED, CODEBOOK)
                d = _sum(latter, total, 3, SUMS, TOGETHER, GROUP, SCALED, CODEBOOK)
            else:
                b = _sum(latter, total, 1, SUMS, TOGETHER, GROUP, SCALED, CODEBOOK)
            block = column // PARTS
            total = _added(total, a, 0, SUMS, scales, step, block, TOGETHER, GROUP, SCALED)
            total = _added(total, b, 1, SUMS, scales, step, block, TOGETHER, GROUP, SCALED)
            if SUMS == 4:
                total = _added(total, c, 2, SUMS, scales, step, block, TOGETHER, GROUP, SCALED)
                total = _added(total, d, 3, SUMS, scales, step, block, TOGETHER, GROUP, SCALED)
        barrier()  # all warps have finished the step, so its slot is free
        ask_words(w_desc, x_desc, ring, full, row, begin, end, step + STAGES)
        ask_columns(x_desc, x_ring, full, first, begin, end, step + STAGES)
    if PARTS > 1:  # columns of the other parts
        total = gl.where(column % PARTS == part, total, 0.0)
    if PARTS * TOGETHER > 1:
        total = total.reshape([PARTS, BLOCK_N, TOGETHER * PARTS, BLOCK_M])
        total = gl.sum(gl.sum(total, axis=0), axis=1)
    return total


@gluon.jit
def _sum(
    blocks, total, INDEX: gl.constexpr, SUMS: gl.constexpr, TOGETHER: gl.constexpr,
    GROUP: gl.constexpr, SCALED: gl.constexpr, CODEBOOK: gl.constexpr,
):  # fmt: skip
    """Start sum INDEX of a step's SUMS."""
    words, zeros, scales, x_blocks, step, slot = blocks
    sums = total  # what the first MMA overwrites
    for i in gl.static_range(4 // SUMS):
        # named by no constexpr, which a loop may not define again
        a = _block(words, zeros, scales, step, GROUP, SCALED, CODEBOOK, INDEX * 4 // SUMS + i)
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
