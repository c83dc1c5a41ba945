"""Hopper's prefill attention: what a program's work is, and the warps that fetch keys and values.

Owns which tiles of queries and keys a program takes, and how rings are filled; not their memory,
which `hopper_prefill.py` allots. Tile `at` of all that a program fetches is in slot at % SLOTS.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from quire.kernels.triton.launch.gluon_compat import barrier, fetch_box


@gluon.jit
def piece_of(work_ptr, num_pieces, turn, NUM_HEADS: gl.constexpr, FIELDS: gl.constexpr):
    """A program's next piece of work: key head, request, first token, queries, keys, first query.

    One without queries is the end. Pieces come in order of length; programs take them forwards and
    backwards by turns, so that each gets as much. None draws them by an atomic: with the first lane
    alone in a branch ptxas (CUDA 12.8) leaves out the barriers of a warp behind it.
    """
    program, programs = gl.program_id(0), gl.num_programs(0)
    piece = turn * programs + program + turn % 2 * (programs - 1 - 2 * program)
    there = piece < num_pieces
    record = work_ptr + piece // NUM_HEADS * FIELDS
    request = gl.load(record, mask=there, other=0)
    first_token = gl.load(record + 1, mask=there, other=0)
    num_queries = gl.load(record + 2, mask=there, other=0)
    seq_len = gl.load(record + 3, mask=there, other=0)
    first_query = gl.load(record + 4, mask=there, other=0)
    return piece % NUM_HEADS, request, first_token, num_queries, seq_len, first_query


@gluon.jit
def key_tiles(
    first_query, num_queries, seq_len,
    TOKENS: gl.constexpr, TILE: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """(begin, full_begin, full_end, end) of the tiles of keys; of the full ones all is seen."""
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
    WINDOW: gl.constexpr, FIELDS: gl.constexpr,
):  # fmt: skip
    """Keep rings filled by the copy engine: a tile of keys, its values, the next tile's keys."""
    num_pieces = gl.load(num_tiles_ptr) * NUM_HEADS
    at = 0  # tiles so far
    turn = 0
    head, request, _, num_queries, seq_len, first_query = piece_of(
        work_ptr, num_pieces, turn, NUM_HEADS, FIELDS
    )
    while num_queries > 0:
        begin, _, _, end = key_tiles(first_query, num_queries, seq_len, TOKENS, TILE, WINDOW)
        table = block_table_ptr + request * stride_table
        for key_tile in range(end - 1, begin - 1, -1):
            rows = rows_of(k_desc, table, key_tile, seq_len, BLOCK_SIZE, TILE)
            fetch_tile(k_desc, rows, head, keys, at, TILE)
            fetch_tile(v_desc, rows, head, values, at, TILE)
            at += 1
        turn += 1
        head, request, _, num_queries, seq_len, first_query = piece_of(
            work_ptr, num_pieces, turn, NUM_HEADS, FIELDS
        )


@gluon.jit
def widen(
    codes, values, work_ptr, num_tiles_ptr,
    NUM_HEADS: gl.constexpr, TOKENS: gl.constexpr, TILE: gl.constexpr, WINDOW: gl.constexpr,
    FIELDS: gl.constexpr,
):  # fmt: skip
    """Make 16-bit tiles of values of a ring of FP8 tiles."""
    num_pieces = gl.load(num_tiles_ptr) * NUM_HEADS
    at = 0
    turn = 0
    _, _, _, num_queries, seq_len, first_query = piece_of(
        work_ptr, num_pieces, turn, NUM_HEADS, FIELDS
    )
    while num_queries > 0:
        begin, _, _, end = key_tiles(first_query, num_queries, seq_len, TOKENS, TILE, WINDOW)
        for _ in range(end - begin):
            code_slot, slot = await_tile(codes, at), await_room(values, at)
            _widen_tile(codes[0].index(code_slot), values[0].index(slot), TILE)
            mbarrier.arrive(values[1].index(slot), count=1)
            mbarrier.arrive(codes[2].index(code_slot), count=1)
            at += 1
        turn += 1
        _, _, _, num_queries, seq_len, first_query = piece_of(
            work_ptr, num_pieces, turn, NUM_HEADS, FIELDS
        )


@gluon.jit
def rows_of(desc, table, key_tile, seq_len, BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr):
    """Where each box of a tile of keys begins in the cache; past the last block, again that one."""
    BOX: gl.constexpr = desc.block_type.shape[0]
    last_block = (seq_len - 1) // BLOCK_SIZE
    rows = ()
    for box in gl.static_range(TILE // BOX):
        key = key_tile * TILE + box * BOX
        block = gl.load(table + gl.minimum(key // BLOCK_SIZE, last_block))
        rows = rows + (block * BLOCK_SIZE + key % BLOCK_SIZE,)  # type: ignore[assignment]  # noqa: RUF005
    return rows


@gluon.jit
def await_tile(ring, at):
    """The slot that tile `at` is in, once it is there."""
    _, full, _ = ring
    SLOTS: gl.constexpr = full.shape[0]
    slot = at % SLOTS
    mbarrier.wait(full.index(slot), at // SLOTS & 1)
    return slot


@gluon.jit
def await_room(ring, at):
    """The slot that tile `at` is to be put in, once it is free."""
    _, _, empty = ring
    SLOTS: gl.constexpr = empty.shape[0]
    slot = at % SLOTS
    mbarrier.wait(empty.index(slot), (at // SLOTS & 1) ^ 1)
    return slot


@gluon.jit
def fetch_tile(desc, rows, head, ring, at, TILE: gl.constexpr):
    """Have a tile of TILE keys of one head fetched from where its boxes begin in the cache."""
    BOX: gl.constexpr = desc.block_type.shape[0]
    HEAD_DIM: gl.constexpr = desc.block_type.shape[1]
    smem, full, _ = ring
    slot = await_room(ring, at)
    tile, filled = smem.index(slot), full.index(slot)
    mbarrier.expect(filled, TILE * HEAD_DIM * desc.dtype.primitive_bitwidth // 8)
    for box in gl.static_range(TILE // BOX):
        fetch_box(desc, [rows[box], head * HEAD_DIM], filled, tile.slice(box * BOX, BOX))


@gluon.jit
def _widen_tile(codes, tile, TILE: gl.constexpr):
    """Write codes [TILE, D] as float16, which is exact, where the tensor cores read them."""
    ROWS: gl.constexpr = 64
    HEAD_DIM: gl.constexpr = tile.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout(  # eight: no two threads write to one bank
        [1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0]
    )
    for part in gl.static_range(TILE // ROWS):
        narrow = codes.slice(part * ROWS, ROWS).load(LAYOUT)
        tile.slice(part * ROWS, ROWS).store(narrow.to(gl.float16))
    fence_async_shared()
    barrier()
