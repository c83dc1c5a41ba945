"""Hopper's decode attention: what a program's work is, and the warp that fetches keys and values.

Owns in which order a program goes through its run of tiles, as a `Plan` gives it, and how the ring
is filled. A crew of programs, one for each key head, goes through the same run side by side: heads
of a token lie next to each other in memory, which is quicker if it is asked for them together.
Tile `at` of all that a program fetches is in slot at % SLOTS, its keys in front of its values.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_wait

from quire.kernels.triton.hopper.hopper_prefill_work import await_room, rows_of
from quire.kernels.triton.launch.gluon_compat import fetch_box


@gluon.jit
def first_row(runs_ptr, crew):
    """A crew's run of tiles, and whose the first ones are: (request, its first, how many)."""
    run = runs_ptr + crew * 10
    return gl.load(run), gl.load(run + 1), (gl.load(run + 2), gl.load(run + 4), gl.load(run + 5))


@gluon.jit
def row_behind(row, tiles_ptr):
    """Whose tiles follow; there must be some."""
    request, first_tile, num_tiles = row
    first_tile += num_tiles
    request += 1
    end = gl.load(tiles_ptr + request + 1)
    while end <= first_tile:  # it has no query, or several
        request += 1
        end = gl.load(tiles_ptr + request + 1)
    return request, first_tile, end - first_tile


@gluon.jit
def oldest_key(
    shared_index_ptr, lens_ptr, request, seq_len, WINDOW: gl.constexpr, HAS_SHARED: gl.constexpr,
    MEMBERS: gl.constexpr,
):  # fmt: skip
    """The first key that is to be seen here."""
    oldest = 0
    if WINDOW > 0:
        oldest = gl.maximum(seq_len - WINDOW, 0)
    if HAS_SHARED:
        place = gl.load(shared_index_ptr + request)
        oldest = gl.load(lens_ptr + place // MEMBERS, mask=place >= 0, other=0)
    return oldest


@gluon.jit
def fetch(
    k_desc, v_desc, ring, block_table_ptr, requests, stride_table, plan_is_fresh,
    NUM_KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr, WINDOW: gl.constexpr,
    PDL: gl.constexpr, HAS_SHARED: gl.constexpr, MEMBERS: gl.constexpr,
):  # fmt: skip
    """Keep the ring filled: a tile of keys and its values in each slot.

    Of what is read only each request's newest key comes from the kernel in front, and the plan may.
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
            slot = await_room(ring, at)
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
