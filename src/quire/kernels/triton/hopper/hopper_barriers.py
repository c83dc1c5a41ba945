"""Barriers in shared memory that the copy engine and warps tell each other by.

Memory that was made a barrier must be invalidated before it becomes anything else (PTX ISA,
mbarrier.inval): a program that gave way to another process came back with the barrier's eight bytes
over what had been written there since. The compiler gives memory to others after its last use, so
each barrier's last use is `invalidate`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def barriers(NUM: gl.constexpr, ARRIVALS: gl.constexpr):
    """So many, each of which is passed after ARRIVALS."""
    made = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def invalidate(made):
    """After everybody's last wait."""
    NUM: gl.constexpr = made.shape[0]
    for i in gl.static_range(NUM):
        mbarrier.invalidate(made.index(i))
