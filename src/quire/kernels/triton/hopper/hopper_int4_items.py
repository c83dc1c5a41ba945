"""Work items of `hopper_int4_rows`: tiles, or parts of their k, which programs do in turn.

sizes: M, N, K, the rows and outputs of a tile, and the parts of its k.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quire.kernels.triton.hopper.hopper_int4_ring import STEP


@gluon.jit
def num_items_of(sizes):
    """Work items of all programs."""
    return gl.cdiv(sizes[0], sizes[3]) * gl.cdiv(sizes[1], sizes[4]) * sizes[5]


@gluon.jit
def tile_of(item, sizes):
    """An item's tile, and which part of its k."""
    m_tiles = gl.cdiv(sizes[0], sizes[3])
    SPLIT = sizes[5]
    return item // m_tiles // SPLIT * m_tiles + item % m_tiles, item // m_tiles % SPLIT


@gluon.jit
def start_of(item, sizes):
    """An item, its first row of x, first output, first step of 256 columns, and the last one's end.

    Items with the same W lie side by side.
    """
    ROWS, BLOCK_N, SPLIT = sizes[3], sizes[4], sizes[5]
    m_tiles, steps = gl.cdiv(sizes[0], ROWS), gl.cdiv(sizes[2], STEP)
    part = item // m_tiles % SPLIT
    begin, end = part * steps // SPLIT, (part + 1) * steps // SPLIT
    return item, item % m_tiles * ROWS, item // m_tiles // SPLIT * BLOCK_N, begin, end


@gluon.jit
def step_after(position, sizes):
    """The step after one, as `start_of` gives it: of the same item, or of the next one."""
    item, first, row, step, end = position
    step += 1
    if step == end:
        item, first, row, step, end = start_of(item + gl.num_programs(0), sizes)
    return item, first, row, step, end
