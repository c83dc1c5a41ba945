"""The ring of Hopper's GEMM of few rows with weights of four bits: words, columns of x, scales.

A step is 256 columns of W for each of PARTS parts of k. A tile has PARTS · BLOCK_N = 64 to 256 rows
for the tensor cores: the same outputs, once for each part, so that few outputs fill them, too. Its
other side has the rows of x, for each part and, where these are fewer than 8, for several blocks of
64 columns. So every product has sums of a row of W with columns that are not its own; they stay in
columns of their own and are left out at the end. It costs no time: W is read once, whatever the
tensor cores do, and x is loaded without the rows that would fill up a tile.

Words of four-bit codes are in the order that `ops/int4_weight.py` describes. They become numbers in
the registers from which tensor cores take their first operand (PTX ISA, wgmma, register fragments):
in `hopper_int4_numbers.py`; codes of eight bits in `hopper_word_codes.py`.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from quire.kernels.triton.launch.gluon_compat import fetch_box, seen_as

STEP = gl.constexpr(256)  # columns of a step, for each part


def word_boxes(words: Tensor, parts: int, block_n: int) -> TensorDescriptor:
    """Boxes [parts, block_n, 32] of words [N, K / 8], seen as [K / 256, N, 32]."""
    (n, width), layout = words.shape, gl.NVMMASharedLayout(128, 32, 3)
    return TensorDescriptor(
        words, [width // 32, n, 32], [32, width, 1], [parts, block_n, 32], layout
    )


def group_boxes(values: Tensor | None, groups: int, block_n: int) -> TensorDescriptor | None:
    """Boxes [groups, block_n] of scales or zeros [K / group, N], if there are such."""
    if values is None:
        return None
    layout = gl.NVMMASharedLayout(0, 8 * values.itemsize, 2)
    return TensorDescriptor.from_tensor(values, [groups, block_n], layout)


def head_boxes(words: Tensor, parts: int, block_n: int, head_dim: int) -> TensorDescriptor:
    """Boxes [1, parts, 2, block_n / 2, 32] of the same words: of both halves of a head."""
    (n, width), half = words.shape, head_dim // 2
    shape, strides = [1, width // 32, n // half, half, 32], [n * width, 32, half * width, width, 1]
    layout = gl.NVMMASharedLayout(128, 32, 5)
    return TensorDescriptor(words, shape, strides, [1, parts, 2, block_n // 2, 32], layout)


def column_boxes(x: Tensor, parts: int, block_m: int) -> TensorDescriptor:
    """Boxes [4, parts, block_m, 64] of x [M, K], seen as [4, K / 256, M, 64]; K: of 256."""
    (m, k), layout = x.shape, gl.NVMMASharedLayout(64 * x.itemsize, 8 * x.itemsize, 4)
    shape, strides = [4, k // 256, m, 64], [64, 256, x.stride(0), 1]
    return TensorDescriptor(x, shape, strides, [4, parts, block_m, 64], layout)


@gluon.jit
def outputs_of(i, row, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Outputs i of a tile from `row` on: in order, or as many of both halves of a head.

    The latter where a tile is less than a head, so that a tile holds pairs for RoPE.
    """
    if HEAD_DIM > BLOCK_N:
        HALF: gl.constexpr = BLOCK_N // 2
        pair = row % HEAD_DIM // 2 + i % HALF
        return row // HEAD_DIM * HEAD_DIM + i // HALF * (HEAD_DIM // 2) + pair
    else:
        return row + i


@gluon.jit
def ask_words(
    w_desc, x_desc, ring, full, row, begin, end, step, HEAD_DIM: gl.constexpr = 0
):  # fmt: skip
    """Start to load a step's words [(2,) PARTS, BLOCK_N, 32], and expect its columns of x, too."""
    PARTS: gl.constexpr = x_desc.block_type.shape[1]
    num_bytes: gl.constexpr = w_desc.block_type.nbytes + x_desc.block_type.nbytes
    stage = step % full.shape[0]
    there = begin + step < end
    mbarrier.expect(full.index(stage), num_bytes, pred=there)
    target = ring.index(stage)
    if len(w_desc.block_type.shape) == 5:  # both halves of a head
        corner = [0, (begin + step) * PARTS, row // HEAD_DIM * 2, row % HEAD_DIM // 2, 0]
        fetch_box(w_desc, corner, full.index(stage), target, there)
    elif len(w_desc.block_type.shape) == 4:  # codes of eight bits
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
def read_groups(
    ptr, row, begin, end, N, K, PARTS: gl.constexpr, BLOCK_N: gl.constexpr, GROUP: gl.constexpr,
    ROWS: gl.constexpr, HEAD_DIM: gl.constexpr,
):  # fmt: skip
    """A program's scales (or zeros) [ROWS, PARTS * BLOCK_N] as they lie in memory."""
    GROUPS: gl.constexpr = 256 // GROUP
    layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [gl.num_warps(), 1], [1, 0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, PARTS * BLOCK_N, gl.SliceLayout(0, layout))[None, :]
    step = begin + rows // GROUPS
    group = (step * PARTS + columns // BLOCK_N) * GROUPS + rows % GROUPS
    output = outputs_of(columns % BLOCK_N, row, BLOCK_N, HEAD_DIM)
    there = (step < end) & (output < N) & (group < gl.cdiv(K, STEP) * GROUPS)
    return gl.load(ptr + group * N + output, mask=there, other=0)


@gluon.jit
def load_groups(
    ptr, row, begin, end, N, K, PARTS: gl.constexpr, BLOCK_N: gl.constexpr, GROUP: gl.constexpr,
    ROWS: gl.constexpr, LIFT: gl.constexpr, HEAD_DIM: gl.constexpr, values=None,
):  # fmt: skip
    """A program's scales (or zeros) [K / GROUP, N] in shared memory, as its steps read them.

    Row s · 256 / GROUP + g has those of group g of step s, for each part and output; ROWS: a power
    of two, as many at least. LIFT: a factor of scales that multiply numbers, as bits of bfloat16; 0
    for zeros of four bits, which are bytes, as they are. None: scales that multiply sums, or codes
    of eight bits, whose zeros become bfloat16. values: what `read_groups` has read, or None.
    """
    WIDTH: gl.constexpr = PARTS * BLOCK_N
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    is_zero: gl.constexpr = LIFT is None and ptr.dtype.element_ty == gl.int8
    own: gl.constexpr = gl.bfloat16 if is_zero else ptr.dtype.element_ty
    kind: gl.constexpr = own if LIFT is None else gl.int16
    memory = gl.allocate_shared_memory(kind, [ROWS, WIDTH], shared)
    if values is None:
        values = read_groups(
            ptr, row, begin, end, N, K, PARTS, BLOCK_N, GROUP, ROWS, HEAD_DIM
        )  # fmt: skip
    if LIFT is None:
        if is_zero:
            values = values.to(gl.float32).to(gl.bfloat16)
    elif LIFT == 0:
        values = values.to(gl.int16)
    else:
        if GROUP == 16:
            values = values.to(gl.float8e4nv, bitcast=True)
        elif ptr.dtype.element_ty == gl.uint8:  # exponents; bfloat16 has all, 0 is subnormal
            bits = values.to(gl.int16)
            least = gl.where(bits == 0, 0x40, bits << 7)
            values = gl.where(bits == 255, 0x7FC0, least).to(gl.int16).to(gl.bfloat16, bitcast=True)
        scaled = (values.to(gl.bfloat16).to(gl.float32) * LIFT).to(gl.bfloat16)
        values = scaled.to(gl.int16, bitcast=True)
    memory.store(values)
    return seen_as(memory, memory.dtype, [ROWS, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def own_columns(total, PARTS: gl.constexpr, BLOCK_M: gl.constexpr):
    """Sums [PARTS · outputs, columns of a product] → [outputs, BLOCK_M]: each row's own columns.

    Sums of several blocks of columns, side by side, are added.
    """
    HEIGHT: gl.constexpr = total.shape[0]
    WIDTH: gl.constexpr = total.shape[1]
    layout: gl.constexpr = total.type.layout
    if PARTS > 1:  # columns of the other parts
        part = gl.arange(0, HEIGHT, gl.SliceLayout(1, layout))[:, None] // (HEIGHT // PARTS)
        column = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :] // BLOCK_M
        total = gl.where(column % PARTS == part, total, 0.0)
    if WIDTH > BLOCK_M:
        total = total.reshape([PARTS, HEIGHT // PARTS, WIDTH // BLOCK_M, BLOCK_M])
        total = gl.sum(gl.sum(total, axis=0), axis=1)
    return total
