"""Hopper's prefill attention: the warpgroup that converts values in 8 bits to 16 bits.

Values in FP8 become float16, by one instruction for two. Those in INT8 become bfloat16, times their
scales, as they were before they were stored: rounded once, as bfloat16 rounds what a cache in 16
bits has. Keys are multiplied as they are, by queries that this warpgroup rounds to their type.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from quire.kernels.triton.hopper.hopper_prefill_work import (
    await_free_slot,
    await_tile,
    key_tiles,
    work_item,
)
from quire.kernels.triton.hopper.hopper_queries import round_queries
from quire.kernels.triton.launch.gluon_compat import barrier

# Four codes as two pairs of bfloat16, times a scale. A code is d - 128 s, of its last seven bits d
# and its sign bit s. `digits` has the bits 0x4300 | d, the number 128 + d. `less` gets the bits of
# -128 scale, plus s << 7: this adds s to the exponent, so it is -256 scale where s is 1. An FMA
# gives digits * scale + less, rounded once. Operand 7 has 0x4300 more, which `pair - digits` has
# less. Operands 3 to 6 are the same, and so are 7 to 10.
SCALING = tl.constexpr("""
    {
        .reg .b32 pair, digits, less;
        prmt.b32 pair, $2, 0, 0x4140;
        lop3.b32 digits, pair, 0x007F007F, 0x43004300, 0xEA;
        sub.u32 less, pair, digits;
        add.u32 less, less, $7;
        fma.rn.bf16x2 $0, digits, $3, less;
        prmt.b32 pair, $2, 0, 0x4342;
        lop3.b32 digits, pair, 0x007F007F, 0x43004300, 0xEA;
        sub.u32 less, pair, digits;
        add.u32 less, less, $7;
        fma.rn.bf16x2 $1, digits, $3, less;
    }
""")


@gluon.jit
def dequantize_values(
    operands, codes, rings, scale_ptrs, scale_smem, block_table_ptr, stride_table,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, BLOCK_SIZE: gl.constexpr, TOKENS: gl.constexpr,
    TILE: gl.constexpr, WINDOW: gl.constexpr, SPLIT: gl.constexpr, FIELDS: gl.constexpr,
):  # fmt: skip
    """Round queries, and convert a ring of value tiles in 8 bits to a ring in 16 bits.

    In INT8 it also leaves the scales of the keys.
    """
    q_ptr, _, queries, _, work_ptr, num_tiles_ptr, _, stride_q_token, stride_q_head, _ = operands
    values = rings[1]
    INT8: gl.constexpr = codes[0].dtype == gl.int8
    num_items = gl.load(num_tiles_ptr) * NUM_HEADS
    at = 0
    cycle = 0
    head, request, first_token, num_queries, seq_len, first_query = work_item(
        work_ptr, num_items, cycle, NUM_HEADS, FIELDS
    )
    while num_queries > 0:
        begin, _, _, end = key_tiles(first_query, num_queries, seq_len, TOKENS, TILE, WINDOW)
        table = block_table_ptr + request * stride_table
        scales, blocks = (), ()
        if INT8:  # loaded early, so that they are there when the queries are rounded
            blocks = _blocks(table, end - 1, seq_len, BLOCK_SIZE, TILE)
            scales = _scales(
                scale_ptrs, head, blocks, end - 1, seq_len, NUM_HEADS, BLOCK_SIZE, TILE
            )
        round_queries(
            q_ptr, queries, cycle, head, first_token, num_queries, first_query,
            stride_q_token, stride_q_head, GROUP, TOKENS, SPLIT,
        )  # fmt: skip
        if INT8:
            blocks = _blocks(table, end - 2, seq_len, BLOCK_SIZE, TILE)
        for tile in range(end - 1, begin - 1, -1):
            if INT8:
                _leave_scales(scales, rings, scale_smem, at)
                # loaded early, so that they are there when the next tile is
                scales = _scales(
                    scale_ptrs, head, blocks, tile - 1, seq_len, NUM_HEADS, BLOCK_SIZE, TILE
                )
                blocks = _blocks(table, tile - 2, seq_len, BLOCK_SIZE, TILE)
            code_slot, slot = await_tile(codes, at), await_free_slot(values, at)
            _dequantize_tile(codes[0].index(code_slot), values[0].index(slot), scale_smem, at, TILE)
            mbarrier.arrive(values[1].index(slot), count=1)
            mbarrier.arrive(codes[2].index(code_slot), count=1)
            at += 1
        cycle += 1
        head, request, first_token, num_queries, seq_len, first_query = work_item(
            work_ptr, num_items, cycle, NUM_HEADS, FIELDS
        )


@gluon.jit
def _keys(tile, TILE: gl.constexpr):
    return tile * TILE + gl.arange(0, TILE, gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _blocks(table, tile, seq_len, BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr):
    """The block of each key of a tile."""
    key = _keys(tile, TILE)
    return gl.load(table + key // BLOCK_SIZE, mask=(key >= 0) & (key < seq_len), other=0)


@gluon.jit
def _scales(
    scale_ptrs, head, blocks, tile, seq_len,
    NUM_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Scales of a tile's keys and values of one head; 0 behind the last key."""
    key = _keys(tile, TILE)
    there = (key >= 0) & (key < seq_len)
    offset = (blocks.to(gl.int64) * BLOCK_SIZE + key % BLOCK_SIZE) * NUM_HEADS + head
    key_scale = gl.load(scale_ptrs[0] + offset, mask=there, other=0.0)
    value_scale = gl.load(scale_ptrs[1] + offset, mask=there, other=0.0)
    return key_scale.to(gl.float32), value_scale.to(gl.bfloat16)


@gluon.jit
def _leave_scales(scales, rings, scale_smem, at):
    """Store what `_scaled` multiplies scores by, and what `SCALING` multiplies and adds."""
    keys, _, key_scales = rings
    slot = await_free_slot(keys, at)
    key_scales.index(slot).store(scales[0])
    scale_smem.index(at % 2 * 2).store(_twice(scales[1]))
    scale_smem.index(at % 2 * 2 + 1).store(_twice(scales[1] * -128.0) + 0x43004300)
    barrier()
    mbarrier.arrive(keys[1].index(slot), count=1)


@gluon.jit
def _dequantize_tile(codes, tile, scale_smem, at, TILE: gl.constexpr):
    """Store codes [TILE, D] to a tile in shared memory: FP8 as float16 (exact), INT8 scaled."""
    ROWS: gl.constexpr = 64
    LAYOUT: gl.constexpr = _by_eight(tile.shape[1])
    for part in gl.static_range(TILE // ROWS):
        loaded = codes.slice(part * ROWS, ROWS).load(LAYOUT)
        if codes.dtype == gl.int8:
            own, less = scale_smem.index(at % 2 * 2), scale_smem.index(at % 2 * 2 + 1)
            scale = own.slice(part * ROWS, ROWS).load(gl.SliceLayout(1, LAYOUT))
            subtrahend = less.slice(part * ROWS, ROWS).load(gl.SliceLayout(1, LAYOUT))
            numbers = gl.inline_asm_elementwise(
                SCALING, "=r,=r,r,r,r,r,r,r,r,r,r",
                [loaded, scale[:, None], subtrahend[:, None]],
                dtype=gl.bfloat16, is_pure=True, pack=4,
            )  # fmt: skip
        else:
            numbers = loaded.to(gl.float16)
        tile.slice(part * ROWS, ROWS).store(numbers)
    fence_async_shared()
    barrier()


@gluon.jit
def _twice(scale):
    """Scales as bfloat16, twice in a word of 32 bits."""
    bits = scale.to(gl.bfloat16).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
    return bits * 0x10001


@gluon.constexpr_function
def _by_eight(head_dim):
    """Eight adjacent elements of a row in a thread: no bank conflicts."""
    return gl.BlockedLayout([1, 8], [256 // head_dim, head_dim // 8], [4, 1], [1, 0])
