"""Loading of queries for Hopper's attention, and their format for the tensor cores.

Tensor cores multiply FP8 by FP8 and bytes by bytes only. So for keys in 8 bits queries of prompts
are rounded to their type, with a factor for each row. Decodes lose no time with twice as many MMAs:
their queries are split into the sum of two FP8 numbers, since bfloat16 has eight significant bits
and FP8 four.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
)

from quire.kernels.triton.hopper.hopper_barriers import barriers
from quire.kernels.triton.hopper.hopper_prefill_work import await_free_slot, await_tile
from quire.kernels.triton.launch.gluon_compat import barrier, fetch_rows, seen_as

ROWS = gl.constexpr(64)  # of a warpgroup's MMA
PIECE = gl.constexpr(16)  # rows that are rounded at a time


@gluon.jit
def halved(q):
    """Split q [R, D] into FP8-representable float32 (high, low), and the factor of each row.

    q = (high + low) · factor. A row's largest magnitude is scaled to between 128 and 256. Exact but
    for numbers below 2^-9 of the largest, whose error is 2^-18 of the largest at most.
    """
    wide = q.to(gl.float32)
    largest = gl.max(gl.abs(wide), 1)
    bits = gl.maximum(largest.to(gl.int32, bitcast=True), 0x0D800000) & 0x7F800000
    factor = bits.to(gl.float32, bitcast=True) * (1.0 / 128)
    wide = wide * (1.0 / factor)[:, None]
    # rounded by bit operations: ptxas (CUDA 12.8) miscompiles conversion to FP8 and back
    bits = (wide.to(gl.int32, bitcast=True) + 0x80000) & -0x100000
    high = bits.to(gl.float32, bitcast=True)
    return high, wide - high, factor


@gluon.jit
def rounded(q, dtype: gl.constexpr):
    """Round q [R, D] to FP8 or int8: (codes, the factor of each row), q = codes · factor."""
    wide = q.to(gl.float32)
    bits = gl.max(wide.to(gl.int32, bitcast=True) & 0x7FFFFFFF, 1)  # of NaN if there is one
    if dtype == gl.int8:
        factor = gl.maximum(bits, 0x0D800000).to(gl.float32, bitcast=True) * (1.0 / 127)
        lifted = wide * (1.0 / factor)[:, None] + 12582912.0  # its last bits are the integer
        codes = lifted.to(gl.int32, bitcast=True).to(gl.int8)
    else:
        factor = (gl.maximum(bits, 0x0D800000) & 0x7F800000).to(gl.float32, bitcast=True)
        factor = factor * (1.0 / 128)
        codes = (wide * (1.0 / factor)[:, None]).to(dtype)
    return codes, factor


@gluon.jit
def rows_in_memory(
    head, first_token, num_queries, first_query, stride_token, stride_head,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, LAYOUT: gl.constexpr,
    FIRST=0, COUNT: gl.constexpr = ROWS,
):  # fmt: skip
    """Offsets [COUNT, D] of a warpgroup's rows in memory, and which rows exist [COUNT, 1].

    Rows are a token's query heads of this key head, then the next token's. FIRST: row.
    """
    row = FIRST + gl.arange(0, COUNT, gl.SliceLayout(1, LAYOUT))
    d = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))[None, :]
    query = first_query + row // GROUP
    there = ((query < num_queries) & (row < ROWS // GROUP * GROUP))[:, None]
    token = first_token + gl.minimum(query, gl.maximum(num_queries - 1, 0))
    q_head = head * GROUP + row % GROUP
    return (token * stride_token + q_head * stride_head)[:, None] + d, there


@gluon.jit
def query_ring(dtype: gl.constexpr, HEAD_DIM: gl.constexpr, LAYOUT: gl.constexpr):
    """Memory for both warpgroups' queries; in 8 bits twice, with barriers and rows' factors."""
    IN_8_BITS: gl.constexpr = dtype.primitive_bitwidth == 8
    smem = gl.allocate_shared_memory(dtype, [4 if IN_8_BITS else 2, ROWS, HEAD_DIM], LAYOUT)
    if IN_8_BITS:
        factors = gl.allocate_shared_memory(
            gl.float32, [4 * ROWS // PIECE, PIECE], gl.SwizzledSharedLayout(1, 1, 1, [0])
        )
        ring = (smem, barriers(2, 1), barriers(2, 2), factors)
    else:
        ring = (smem,)  # type: ignore[assignment]
    return ring


@gluon.jit
def ask_queries(queries, pointers, there, PART: gl.constexpr):
    """Start to load a warpgroup's queries of 16 bits; others are rounded by other warps."""
    if queries[0].dtype.primitive_bitwidth == 16:
        fetch_rows(queries[0].index(PART), pointers, mask=there)
        async_copy.commit_group()


@gluon.jit
def receive_queries(queries, cycle, scale, SCORES: gl.constexpr, PART: gl.constexpr):
    """Wait until the queries are in shared memory; return the scale of each row's scores."""
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    row_scale = gl.full([ROWS], scale, gl.float32, ROW)
    if queries[0].dtype.primitive_bitwidth == 16:
        async_copy.wait_group(0)
        fence_async_shared()
        barrier()
        slot = 0
    else:
        smem, full, empty, factors = queries
        slot = await_tile((smem, full, empty), cycle)
        PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        own = seen_as(factors, gl.float32, [4, ROWS], PLAIN).index(2 * slot + PART)
        row_scale = row_scale * own.load(ROW)
    return row_scale, slot


@gluon.jit
def leave_queries(queries, slot):
    """Let other queries be stored in a slot; after the last MMA of these."""
    if queries[0].dtype.primitive_bitwidth == 8:
        mbarrier.arrive(queries[2].index(slot), count=1)


@gluon.jit
def round_queries(
    q_ptr, queries, cycle, head, first_token, num_queries, first_query, stride_token, stride_head,
    GROUP: gl.constexpr, TOKENS: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """Round the queries of a work item, of both warpgroups, while those still attend to others'.

    Some rows at a time, so that they take few registers; the next ones are loaded early.
    """
    smem, full, empty, factors = queries
    HEAD_DIM: gl.constexpr = smem.shape[2]
    PIECES: gl.constexpr = ROWS // PIECE
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0]
    )
    slot = await_free_slot((smem, full, empty), cycle)
    pieces = seen_as(smem, smem.dtype, [4 * PIECES, PIECE, HEAD_DIM], smem.layout)
    offsets, there = rows_in_memory(
        head, first_token, num_queries, first_query, stride_token, stride_head,
        GROUP, HEAD_DIM, LAYOUT, 0, PIECE,
    )  # fmt: skip
    fetched = gl.load(q_ptr + offsets, mask=there, other=0.0)
    for piece in range(2 * PIECES):
        own = fetched
        following = piece + 1
        skipped = 0 if SPLIT else following // PIECES * (TOKENS // 2)
        offsets, there = rows_in_memory(
            head, first_token, num_queries, first_query + skipped, stride_token, stride_head,
            GROUP, HEAD_DIM, LAYOUT, following % PIECES * PIECE, PIECE,
        )  # fmt: skip
        fetched = gl.load(q_ptr + offsets, mask=there & (following < 2 * PIECES), other=0.0)
        part, rows = 2 * slot + piece // PIECES, piece % PIECES
        codes, factor = rounded(own, smem.dtype)
        pieces.index(part * PIECES + rows).store(codes)
        factors.index(part * PIECES + rows).store(factor)
    fence_async_shared()
    barrier()
    mbarrier.arrive(full.index(slot), count=1)
