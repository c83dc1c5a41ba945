"""The main loop of Hopper's GEMM of few rows with four-bit integers and x in INT16 (`Int16Rows`).

Tensor cores sum products of bytes exactly. Codes become bytes four at a time: PRMT brings codes of
adjacent columns together, and a LOP3 leaves 16 times the code less 8. That takes five instructions
for eight codes, and half as many products; in bfloat16 (`hopper_int4_ring`, whose tiles, parts and
words these are) it takes eleven.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quire.kernels.triton.hopper.hopper_gemm_ring import sums_layout
from quire.kernels.triton.hopper.hopper_int4_ring import ask_columns, ask_words
from quire.kernels.triton.launch.gluon_compat import barrier, seen_as

BLOCK = gl.constexpr(64)  # columns that share a scale of x
MOST = gl.constexpr(16256.0)  # the largest number of two bytes, 127 * 128
LEAST = gl.constexpr(0x0D800000)  # 2^-100, as the bits of a float32
ROUNDS = gl.constexpr(12582912.0)  # 1.5 * 2^23: the last bits of a sum with it are an integer
ROUNDS_BITS = gl.constexpr(0x4B400000)


@gluon.constexpr_function
def blocks_together(rows, parts):
    """Blocks of columns on the other side of a product, which has 8 columns at least."""
    return max(1, 4 // (parts * rows))


@gluon.jit
def store_int16(x, first, tokens, ptr, scale_ptr, sum_ptr, M, N):
    """Store x [columns, tokens], float32, in bytes int8 [M, 2, N] and scales [N / 64, M].

    first: of the columns of N; they share a scale, and are a multiple of 64, as is N. sum_ptr:
    for the sums of numbers [N / 64, M], or None.
    """
    BLOCKS: gl.constexpr = x.shape[0] // BLOCK
    columns = first + gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    bits = gl.max(gl.abs(x).to(gl.int32, bitcast=True), axis=0)  # NaN is larger than any number
    scale = gl.maximum(bits, LEAST).to(gl.float32, bitcast=True) / MOST
    number = (x * (1.0 / scale)[None, :] + ROUNDS).to(gl.int32, bitcast=True) - ROUNDS_BITS
    high = (number + 64) >> 7
    offsets = (tokens * 2 * N)[None, :] + columns[:, None]
    inside = (tokens < M)[None, :] & (columns < N)[:, None]
    gl.store(ptr + offsets, high.to(gl.int8), mask=inside)
    gl.store(ptr + offsets + N, (number - (high << 7)).to(gl.int8), mask=inside)
    for i in gl.static_range(BLOCKS):
        target = scale_ptr + (first // BLOCK + i) * M + tokens
        gl.store(target, scale, mask=(tokens < M) & (first < N))
    if sum_ptr is not None:
        sums = gl.sum(number.reshape([BLOCKS, BLOCK, x.shape[1]]), axis=1)
        blocks = gl.arange(0, BLOCKS, gl.SliceLayout(1, sums.type.layout))[:, None]
        rows = gl.convert_layout(tokens, gl.SliceLayout(0, sums.type.layout))[None, :]
        targets = sum_ptr + (first // BLOCK + blocks) * M + rows
        gl.store(targets, sums.to(gl.float32), mask=(rows < M) & (first < N))


@gluon.jit
def load_scales(
    ptr, first, begin, end, M, K, PARTS: gl.constexpr, BLOCK_M: gl.constexpr, ROWS: gl.constexpr
):
    """Scales (or sums) [K / 64, M] of x for a program's steps, in shared memory as it reads them.

    A row has those of a product's blocks, parts and tokens; ROWS: a power of two, as many at least.
    """
    TOGETHER: gl.constexpr = blocks_together(BLOCK_M, PARTS)
    WIDTH: gl.constexpr = TOGETHER * PARTS * BLOCK_M
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [gl.num_warps(), 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    memory = gl.allocate_shared_memory(gl.float32, [ROWS, WIDTH], shared)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]
    step = begin + rows * TOGETHER // 4
    block = rows * TOGETHER % 4 + columns // (PARTS * BLOCK_M)
    group = (step * PARTS + columns // BLOCK_M % PARTS) * 4 + block
    token = first + columns % BLOCK_M
    there = (step < end) & (token < M) & (group < K // BLOCK)
    memory.store(gl.load(ptr + group * M + token, mask=there, other=0.0))
    return seen_as(memory, gl.float32, [ROWS, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.constexpr_function
def _bytes_asm(index):
    """Codes `index` of two pairs of words as four s8: 16 times the code less 8."""
    first, second = ("$1", "$3") if index < 4 else ("$2", "$4")
    select = "0x6420" if index % 4 < 2 else "0x7531"
    shift = "shl.b32 t, t, 4;" if index % 2 == 0 else ""
    return f"""{{
        .reg .b32 t;
        prmt.b32 t, {first}, {second}, {select};
        {shift}
        lop3.b32 $0, t, 0x80808080, 0xF0F0F0F0, 0x28;
    }}"""


@gluon.jit
def _bytes(words, INDEX: gl.constexpr):
    """Words [rows, 32] → int8 [rows, 32], columns 32 · INDEX on of a step."""
    asm: gl.constexpr = _bytes_asm(INDEX)
    return gl.inline_asm_elementwise(
        asm, "=r,r,r,r,r", [words], dtype=gl.int8, is_pure=True, pack=4
    )


@gluon.jit
def _started(words, x_blocks, slot, zero, TOGETHER: gl.constexpr, B: gl.constexpr):
    """The product of block B of a step's four blocks of 64 columns, int32; not waited for."""
    layout: gl.constexpr = words.type.layout
    both = gl.join(_bytes(words, 2 * B), _bytes(words, 2 * B + 1))
    a = gl.convert_layout(both.permute((0, 2, 1)).reshape([words.shape[0], 64]), layout)
    x = x_blocks.index((slot * 4 + B) // TOGETHER).permute((1, 0))
    return warpgroup_mma(a, x, zero, use_acc=False, is_async=True)


@gluon.jit
def _whole(sums):
    """Sums [rows, 2 · n] of high and low bytes by turns as sums [rows, n] of numbers."""
    high, low = gl.split(sums.reshape([sums.shape[0], sums.shape[1] // 2, 2]))
    return high * 128 + low


@gluon.jit
def _added(
    total, sums, tables, step, block, TOGETHER: gl.constexpr, GROUP: gl.constexpr,
    B: gl.constexpr,
):  # fmt: skip
    """Wait for block B's sums and add them to the total, times both scales.

    Two blocks at a time are started: sums of more take registers that other programs need.
    """
    scales, zeros, x_scales, x_sums = tables
    in_rows: gl.constexpr = gl.SliceLayout(1, total.type.layout)
    in_columns: gl.constexpr = gl.SliceLayout(0, total.type.layout)
    group = step * (256 // GROUP) + B * BLOCK // GROUP
    row = (step * 4 + B) // TOGETHER
    by = scales.index(group).load(in_rows).to(gl.float32)[:, None] / 16  # as codes are 16 times
    x_by = x_scales.index(row).load(in_columns)[None, :]
    if TOGETHER > 1:
        x_by = gl.where(block == B % TOGETHER, x_by, 0.0)
    whole = _whole(warpgroup_mma_wait(1 if B < 3 else 0, deps=[sums])).to(gl.float32)
    if zeros is not None:  # which are 128 more
        zero = zeros.index(group).load(in_rows).to(gl.float32)[:, None]
        whole += (136.0 - zero) * 16 * x_sums.index(row).load(in_columns)[None, :]
    return total + whole * (by * x_by)


@gluon.jit
def multiply_int16(
    x_desc, w_desc, ring, x_ring, scales, zeros, x_scales, x_sums, full, row, first, begin, end,
    GROUP: gl.constexpr,
):  # fmt: skip
    """A program's steps of its tile: W [BLOCK_N, k] · xᵀ [k, BLOCK_M].

    Rows of x_desc are high bytes and low bytes by turns.
    """
    PARTS: gl.constexpr = w_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = w_desc.block_type.shape[1]
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[2] // 2
    STAGES: gl.constexpr = full.shape[0]
    HEIGHT: gl.constexpr = PARTS * BLOCK_N
    TOGETHER: gl.constexpr = blocks_together(BLOCK_M, PARTS)
    WIDTH: gl.constexpr = 2 * TOGETHER * PARTS * BLOCK_M
    layout: gl.constexpr = sums_layout(WIDTH, gl.num_warps(), gl.int8)
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 4)
    words_of = seen_as(ring, ring.dtype, [STAGES, HEIGHT, 32], gl.NVMMASharedLayout(128, 32))
    x_blocks = seen_as(
        x_ring, x_ring.dtype, [STAGES * 4 // TOGETHER, WIDTH, 64], gl.NVMMASharedLayout(64, 8)
    )
    zero = gl.zeros([HEIGHT, WIDTH], gl.int32, layout)
    total = _whole(zero).to(gl.float32)
    part = gl.arange(0, HEIGHT, gl.SliceLayout(1, total.type.layout))[:, None] // BLOCK_N
    column = gl.arange(0, WIDTH // 2, gl.SliceLayout(0, total.type.layout))[None, :] // BLOCK_M
    block = column // PARTS
    tables = scales, zeros, x_scales, x_sums
    barrier()  # scales are there
    for step in range(end - begin):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        words = words_of.index(slot).load(operand)
        a = _started(words, x_blocks, slot, zero, TOGETHER, 0)
        b = _started(words, x_blocks, slot, zero, TOGETHER, 1)
        total = _added(total, a, tables, step, block, TOGETHER, GROUP, 0)
        c = _started(words, x_blocks, slot, zero, TOGETHER, 2)
        total = _added(total, b, tables, step, block, TOGETHER, GROUP, 1)
        d = _started(words, x_blocks, slot, zero, TOGETHER, 3)
        total = _added(total, c, tables, step, block, TOGETHER, GROUP, 2)
        total = _added(total, d, tables, step, block, TOGETHER, GROUP, 3)
        barrier()  # all warps have finished the step, so its slot is free
        ask_words(w_desc, x_desc, ring, full, row, begin, end, step + STAGES)
        ask_columns(x_desc, x_ring, full, first * 2, begin, end, step + STAGES)
    if PARTS > 1:  # columns of the other parts
        total = gl.where(column % PARTS == part, total, 0.0)
    if PARTS * TOGETHER > 1:
        total = total.reshape([PARTS, BLOCK_N, TOGETHER * PARTS, BLOCK_M])
        total = gl.sum(gl.sum(total, axis=0), axis=1)
    return total
