"""How a line of equal work units is shared among the programs of a grid.

T units in a row are cut into G consecutive, equal runs, one a program (G <= T). Units belong to
tiles (a stretch of an output), so a run may end inside a tile; its programs then leave partial
results, and the one that arrives last combines them in order. Every program does the same amount of
work whatever the tiles' sizes, which neither one program a tile nor a fixed split can offer. (The
idea is Stream-K's: Osama et al., 2023.)
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def run_begin(program, num_programs, num_units):
    """First unit of a program's run; the next program's is its end.

    Units times programs stay below 2^31 (64 million keys of eight heads); a division of 64 bits
    takes as long as a load.
    """
    return program * num_units // num_programs


@triton.jit
def owner(unit, num_programs, num_units):
    """The program whose run holds a unit."""
    return ((unit + 1) * num_programs - 1) // num_units


@triton.jit
def slot(program, first):
    """Where a program leaves its part of a tile, whose first program is `first`.

    A run has at most two tiles that are not its own alone: one begun by an earlier program, and one
    that it begins itself.
    """
    return 2 * program + (program == first)


@triton.jit
def arrive(counter_ptr, num_parts):
    """Tell that this program's part is in memory; True for the last to come, who resets it.

    The barrier orders all threads' stores before the one thread's release; the acquire lets the
    last one read what the others stored.
    """
    tl.debug_barrier()
    ticket = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    is_last = ticket == num_parts - 1
    if is_last:
        tl.store(counter_ptr, 0)
    return is_last
