"""Loading of queries for Hopper's prefill attention, and their format for the tensor cores.

Tensor cores multiply FP8 by FP8 only. So for keys in FP8 a query is split into the sum of two FP8
numbers: bfloat16 has eight significant bits and FP8 four.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared

from quire.kernels.triton.launch.gluon_compat import barrier, fetch_rows

ROWS = gl.constexpr(64)  # of a warpgroup's MMA


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
def rows_in_memory(
    head, first_token, num_queries, first_query, stride_token, stride_head,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Offsets [ROWS, D] of a warpgroup's rows in memory, and which rows exist [ROWS, 1].

    Rows are a token's query heads of this key head, then the next token's.
    """
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    d = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))[None, :]
    query = first_query + row // GROUP
    there = ((query < num_queries) & (row < ROWS // GROUP * GROUP))[:, None]
    token = first_token + gl.minimum(query, gl.maximum(num_queries - 1, 0))
    q_head = head * GROUP + row % GROUP
    return (token * stride_token + q_head * stride_head)[:, None] + d, there


@gluon.jit
def ask_queries(q_smem, pointers, there, PART: gl.constexpr):
    """Start to load a warpgroup's queries to q_smem, or to registers if they are to be split."""
    if q_smem.shape[0] == 4:
        fetched = gl.load(pointers, mask=there, other=0.0)
    else:
        fetch_rows(q_smem.index(PART), pointers, mask=there)
        async_copy.commit_group()
        fetched = 0
    return fetched


@gluon.jit
def receive_queries(q_smem, fetched, scale, SCORES: gl.constexpr, PART: gl.constexpr):
    """Wait until the queries are in shared memory; return the scale of each row's scores."""
    ONES: gl.constexpr = gl.SliceLayout(1, SCORES)
    row_scale = gl.full([ROWS], scale, gl.float32, ONES)
    if q_smem.shape[0] == 4:
        high, low, factor = halved(fetched)
        q_smem.index(2 * PART).store(low.to(q_smem.dtype))  # multiplied first, while sums are small
        q_smem.index(2 * PART + 1).store(high.to(q_smem.dtype))
        row_scale = row_scale * gl.convert_layout(factor, ONES)
    else:
        async_copy.wait_group(0)
    fence_async_shared()
    barrier()
    return row_scale
