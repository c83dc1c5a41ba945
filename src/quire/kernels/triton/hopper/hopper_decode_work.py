"""Hopper's decode attention: a program's work, and the warp that loads keys and values.

Owns the order in which a program processes its run of tiles, as a `Plan` gives it, and how the ring
is filled. A crew of programs, one for each key head, processes the same run at the same time: heads
of a token are adjacent in memory, and loading them together is faster. The tile that a program
loads as number `at` is in slot at % SLOTS, its keys before its values.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_wait

from quire.kernels.triton.hopper.hopper_prefill_work import await_free_slot, rows_of
from quire.kernels.triton.launch.gluon_compat import fetch_box


@gluon.jit
def first_row(runs_ptr, crew):
    """A crew's run of tiles (begin, end), and the first row: (request, first tile, tiles)."""
    run = runs_ptr + crew * 10
    return gl.load(run), gl.load(run + 1), (gl.load(run + 2), gl.load(run + 4), gl.load(run + 5))


@gluon.jit
def row_behind(row, tiles_ptr):
    """The next row, a request with tiles; there must be one."""
    request, first_tile, num_tiles = row
    first_tile += num_tiles
    request += 1
    end = gl.load(tiles_ptr + request + 1)
    while end <= first_tile:  # not a decode: it has no query, or several
        request += 1
        end = gl.load(tiles_ptr + request + 1)
    return request, first_tile, end - first_tile


@gluon.jit
def oldest_key(
    shared_index_ptr, lens_ptr, request, seq_len, WINDOW: gl.constexpr, HAS_SHARED: gl.constexpr,
    MEMBERS: gl.constexpr,
):  # fmt: skip
    """The first key that this kernel attends to."""
    oldest = 0
    if WINDOW > 0:
        oldest = gl.maximum(seq_len - WINDOW, 0)
    if HAS_SHARED:
        member = gl.load(shared_index_ptr + request)
        oldest = gl.load(lens_ptr + member // MEMBERS, mask=member >= 0, other=0)
    return oldest


@gluon.jit
def fetch(
    k_desc, v_desc, ring, block_table_ptr, requests, stride_table, plan_is_fresh,
    NUM_KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr, WINDOW: gl.constexpr,
    PDL: gl.constexpr, HAS_SHARED: gl.constexpr, MEMBERS: gl.constexpr,
):  # fmt: skip
    """Keep the ring filled: a tile of keys and its values in each slot.

    Of the memory read here, the previous kernel writes only each request's newest key and, if
    plan_is_fresh, the plan.
    """
    smem, full, _ = ring
    TILE: gl.constexpr = smem.shape[1]
    BOX: gl.constexpr = k_desc.block_type.shape[0]
    HEAD_DIM: gl.constexpr = k_desc.block_type.shape[1]
    BITS: gl.constexpr = k_desc.dtype.primitive_bitwidth
    seq_lens_ptr, tiles_ptr, runs_ptr, shared_index_ptr, lens_ptr = requests
    if PDL:
        if plan_is_fresh > 0:
            gdc_wait()
    program = gl.program_id(0)
    head = program % NUM_KV_HEADS
    crew = program // NUM_KV_HEADS
    begin, end, row = first_row(runs_ptr, crew)
    seq_len = gl.load(runs_ptr + crew * 10 + 7)
    at = 0
    while begin < end:
        request, first_tile, num_tiles = row
        stop = gl.minimum(end, first_tile + num_tiles)
        oldest = oldest_key(
            shared_index_ptr, lens_ptr, request, seq_len, WINDOW, HAS_SHARED, MEMBERS
        )
        table = block_table_ptr + request * stride_table
        start = oldest // TILE - first_tile
        for tile in range(begin, stop):
            rows = rows_of(k_desc, table, start + tile, seq_len, BLOCK_SIZE, TILE)
            if PDL:
                if (start + tile + 1) * TILE >= seq_len:
                    gdc_wait()
            slot = await_free_slot(ring, at)
            mbarrier.expect(full.index(slot), 2 * TILE * HEAD_DIM * BITS // 8)
            keys, values = smem.index(2 * slot), smem.index(2 * slot + 1)
            for box in gl.static_range(TILE // BOX):
                corner = [rows[box], head * HEAD_DIM]
                fetch_box(k_desc, corner, full.index(slot), keys.slice(box * BOX, BOX))
                fetch_box(v_desc, corner, full.index(slot), values.slice(box * BOX, BOX))
            at += 1
        begin = stop
        if begin < end:
            row = row_behind(row, tiles_ptr)
            seq_len = gl.load(seq_lens_ptr + row[0])
