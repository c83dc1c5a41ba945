"""Hopper's prefill attention: a program's work items, and the warps that load keys and values.

Owns which tiles of queries and keys a program processes, and how rings are filled; `hopper_prefill`
allocates them. The tile that a program loads as number `at` is in slot at % SLOTS.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_wait

from quire.kernels.triton.launch.gluon_compat import fetch_box


@gluon.jit
def work_item(work_ptr, num_items, cycle, NUM_HEADS: gl.constexpr, FIELDS: gl.constexpr):
    """A program's work item of one round: key head, request, first token, queries, keys, first
    query.

    An item without queries is the end. Items are in order of length; programs take them in
    alternating directions each round, so that all get about the same. An atomic counter is not
    used: after a branch for one lane ptxas (CUDA 12.8) leaves out barriers of the warp.
    """
    program, programs = gl.program_id(0), gl.num_programs(0)
    item = cycle * programs + program + cycle % 2 * (programs - 1 - 2 * program)
    there = item < num_items
    record = work_ptr + item // NUM_HEADS * FIELDS
    request = gl.load(record, mask=there, other=0)
    first_token = gl.load(record + 1, mask=there, other=0)
    num_queries = gl.load(record + 2, mask=there, other=0)
    seq_len = gl.load(record + 3, mask=there, other=0)
    first_query = gl.load(record + 4, mask=there, other=0)
    return item % NUM_HEADS, request, first_token, num_queries, seq_len, first_query


@gluon.jit
def key_tiles(
    first_query, num_queries, seq_len,
    TOKENS: gl.constexpr, TILE: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """Key tiles: (begin, full_begin, full_end, end); full ones are seen completely."""
    lowest = seq_len - num_queries + first_query
    highest = gl.minimum(lowest + TOKENS, seq_len)  # one beyond the last query's position
    end = (highest + TILE - 1) // TILE
    full_end = gl.minimum((lowest + 1) // TILE, end - 1)  # the last tile is always masked
    begin = 0
    full_begin = 0
    if WINDOW > 0:
        begin = gl.maximum(lowest + 1 - WINDOW, 0) // TILE
        full_begin = gl.minimum((gl.maximum(highest - WINDOW, 0) + TILE - 1) // TILE, full_end)
    return begin, full_begin, full_end, end


@gluon.jit
def fetch(
    k_desc, v_desc, keys, values, work_ptr, num_tiles_ptr, block_table_ptr, stride_table,
    NUM_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr, TOKENS: gl.constexpr, TILE: gl.constexpr,
    WINDOW: gl.constexpr, FIELDS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Keep the rings filled by TMA: a tile of keys, its values, the next tile's keys, ...

    BLOCK_SIZE: 0 where each request's keys are contiguous. PDL: wait for the previous kernel, as
    the next one relies on all.
    """
    if PDL:
        gdc_wait()
    num_items = gl.load(num_tiles_ptr) * NUM_HEADS
    at = 0  # number of tiles so far
    cycle = 0
    head, request, _, num_queries, seq_len, first_query = work_item(
        work_ptr, num_items, cycle, NUM_HEADS, FIELDS
    )
    while num_queries > 0:
        begin, _, _, end = key_tiles(first_query, num_queries, seq_len, TOKENS, TILE, WINDOW)
        table = block_table_ptr + request * stride_table
        for key_tile in range(end - 1, begin - 1, -1):
            rows = rows_of(k_desc, table, key_tile, seq_len, BLOCK_SIZE, TILE)
            fetch_tile(k_desc, rows, head, keys, at, TILE)
            fetch_tile(v_desc, rows, head, values, at, TILE)
            at += 1
        cycle += 1
        head, request, _, num_queries, seq_len, first_query = work_item(
            work_ptr, num_items, cycle, NUM_HEADS, FIELDS
        )


@gluon.jit
def rows_of(desc, table, key_tile, seq_len, BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr):
    """The first cache slot of each box of a key tile; boxes beyond the last block repeat it."""
    BOX: gl.constexpr = desc.block_type.shape[0]
    rows = ()
    for box in gl.static_range(TILE // BOX):
        key = key_tile * TILE + box * BOX
        if BLOCK_SIZE == 0:
            row = gl.load(table) + key
        else:
            block = gl.load(table + gl.minimum(key // BLOCK_SIZE, (seq_len - 1) // BLOCK_SIZE))
            row = block * BLOCK_SIZE + key % BLOCK_SIZE
        rows = rows + (row,)  # type: ignore[assignment]  # noqa: RUF005
    return rows


@gluon.jit
def await_tile(ring, at):
    """Wait until tile `at` is loaded; return its slot."""
    _, full, _ = ring
    SLOTS: gl.constexpr = full.shape[0]
    slot = at % SLOTS
    mbarrier.wait(full.index(slot), at // SLOTS & 1)
    return slot


@gluon.jit
def await_free_slot(ring, at):
    """Wait until the slot for tile `at` is free; return it."""
    _, _, empty = ring
    SLOTS: gl.constexpr = empty.shape[0]
    slot = at % SLOTS
    mbarrier.wait(empty.index(slot), (at // SLOTS & 1) ^ 1)
    return slot


@gluon.jit
def fetch_tile(desc, rows, head, ring, at, TILE: gl.constexpr):
    """Start TMA loads of a tile of TILE keys of one head. rows: first slot of each box."""
    BOX: gl.constexpr = desc.block_type.shape[0]
    HEAD_DIM: gl.constexpr = desc.block_type.shape[1]
    smem, full, _ = ring
    slot = await_free_slot(ring, at)
    tile, filled = smem.index(slot), full.index(slot)
    mbarrier.expect(filled, TILE * HEAD_DIM * desc.dtype.primitive_bitwidth // 8)
    for box in gl.static_range(TILE // BOX):
        fetch_box(desc, [rows[box], head * HEAD_DIM], filled, tile.slice(box * BOX, BOX))
