"""Partition of a sequence of equal work units among the programs of a grid.

T units are cut into G consecutive runs of equal length, one for each program (G <= T). Several
consecutive units make up an output tile, so a run may end inside a tile. The programs of that tile
then store partial results, and the last one to arrive combines them in order. So every program has
the same amount of work whatever the tiles' sizes. (The idea is Stream-K's: Osama et al., 2023.)
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def run_begin(program, num_programs, num_units):
    """First unit of a program's run; the next program's first unit is its end.

    num_units · num_programs must be below 2^31 (64 million keys of eight heads): a 64-bit division
    would take as long as a load.
    """
    return program * num_units // num_programs


@triton.jit
def owner(unit, num_programs, num_units):
    """The program whose run contains a unit."""
    return ((unit + 1) * num_programs - 1) // num_units


@triton.jit
def slot(program, first):
    """Index of a program's partial result of a tile whose first program is `first`.

    A run has at most two tiles that it shares: one that an earlier program began, and one that it
    begins itself.
    """
    return 2 * program + (program == first)


@triton.jit
def arrive(counter_ptr, num_parts):
    """Count this program's partial result as stored; True for the last program.

    The last program also resets the counter to zero.

    The barrier orders all threads' stores before the one thread's release; the acquire lets the
    last one read what the others stored.
    """
    tl.debug_barrier()
    ticket = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    is_last = ticket == num_parts - 1
    if is_last:
        tl.store(counter_ptr, 0)
    return is_last
