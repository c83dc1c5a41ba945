"""mbarriers in shared memory, by which TMA loads and warps signal each other, and rings of tiles.

A barrier must be invalidated before its memory is used for anything else (PTX ISA, mbarrier.inval):
a program that was preempted by another process came back with the barrier's eight bytes over what
had been written there since. The compiler reuses memory after its last use, so each barrier's last
use is `invalidate`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def barriers(NUM: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocate and initialise NUM mbarriers, each of which completes after ARRIVALS arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def tile_ring(
    dtype: gl.constexpr, SLOTS: gl.constexpr, TILE: gl.constexpr, WIDTH: gl.constexpr,
    LAYOUT: gl.constexpr, MAKERS: gl.constexpr = 1, USERS: gl.constexpr = 1,
):  # fmt: skip
    """A ring of tiles [SLOTS, TILE, WIDTH], and barriers for full and for empty slots.

    MAKERS, USERS: arrivals after which a slot is full, or empty.
    """
    smem = gl.allocate_shared_memory(dtype, [SLOTS, TILE, WIDTH], LAYOUT)
    return smem, barriers(SLOTS, MAKERS), barriers(SLOTS, USERS)


@gluon.jit
def invalidate(made):
    """Invalidate barriers; after the last wait of all warps."""
    NUM: gl.constexpr = made.shape[0]
    for i in gl.static_range(NUM):
        mbarrier.invalidate(made.index(i))


@gluon.jit
def invalidate_ring(ring):
    """Invalidate the barriers of a `tile_ring`, or of what begins like one."""
    invalidate(ring[1])
    invalidate(ring[2])
