"""mbarriers in shared memory, by which TMA loads and warps signal each other.

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
def invalidate(made):
    """Invalidate barriers; after the last wait of all warps."""
    NUM: gl.constexpr = made.shape[0]
    for i in gl.static_range(NUM):
        mbarrier.invalidate(made.index(i))
