"""Split K on Hopper: how programs that share a tile add up their partial sums.

Floor: a tile's sums are written and read by all of its programs at once. Where they share the
tokens (a reduce-scatter), each of them adds up some, and waits until the others have written
theirs. Else the last one to arrive adds up all, which takes as many times longer; it waits for
none, for any number of parts.

Those who wait hold their multiprocessors. So the others must come to run beside them, see
`shares_of`: programs begin in the order of their ids, and of the next kernel none begins before all
of this one have (PDL).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quire.kernels.triton.launch.gluon_compat import barrier

_LAP = gl.constexpr(256)  # see `_arrive`; more than any SPLIT


@gluon.jit
def add_parts(
    acc, tile, part, partial_ptr, arrival_ptr, SPLIT: gl.constexpr, SHARES: gl.constexpr
):  # fmt: skip
    """Add up partial sums [N, M] of a tile's SPLIT programs, in order of k.

    Returns whether this program has sums to store, their first token in the tile, and the sums: of
    M / SHARES tokens.
    """
    if SPLIT == 1:
        return True, 0, acc
    elif SHARES == 1:
        complete, total = _reduce_parts(acc, tile, part, partial_ptr, arrival_ptr, SPLIT)
        return complete, 0, total
    else:
        total = _share_parts(acc, tile, part, partial_ptr, arrival_ptr, SPLIT)
        return True, part * total.shape[1], total


@gluon.jit
def _share_parts(acc, tile, part, partial_ptr, arrival_ptr, SPLIT: gl.constexpr):
    """Swap partial sums with the other programs: the sum of this one's share of tokens."""
    N: gl.constexpr = acc.shape[0]
    WIDTH: gl.constexpr = acc.shape[1] // SPLIT
    shares = columns_of(_by_threads(acc), SPLIT)
    own = shares[0]
    layout: gl.constexpr = own.type.layout
    rows = gl.arange(0, N, gl.SliceLayout(1, layout))
    tokens = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    size: gl.constexpr = N * WIDTH
    ptrs = partial_ptr + tile * (SPLIT * SPLIT * size) + rows[:, None] * WIDTH + tokens[None, :]
    for other in gl.static_range(SPLIT):
        if other != part:
            gl.store(ptrs + (other * SPLIT + part) * size, shares[other])
        own = gl.where(other == part, shares[other], own)
    meet(arrival_ptr + tile, SPLIT)
    ptrs += part * (SPLIT * size)
    if SPLIT == 2:  # both orders of two give the same sum
        own += gl.load(ptrs + (1 - part) * size, cache_modifier=".cg")
    else:
        total = gl.zeros([N, WIDTH], gl.float32, layout)
        for other in gl.static_range(SPLIT):
            there = (tokens >= 0)[None, :] & (rows >= 0)[:, None] & (other != part)
            sums = gl.load(ptrs + other * size, mask=there, cache_modifier=".cg")
            total += gl.where(other == part, own, sums)
        own = total
    return _by_tokens(own, _narrower(acc.type.layout, WIDTH))


@gluon.jit
def _reduce_parts(acc, tile, part, partial_ptr, arrival_ptr, SPLIT: gl.constexpr):
    """Store this program's partial sums; the last program returns the sum of all."""
    own = _by_threads(acc)
    layout: gl.constexpr = own.type.layout
    BLOCK_N: gl.constexpr = own.shape[0]
    BLOCK_M: gl.constexpr = own.shape[1]
    rows = gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout))
    size: gl.constexpr = BLOCK_N * BLOCK_M
    part_ptrs = partial_ptr + tile * (SPLIT * size) + rows[:, None] * BLOCK_M + tokens[None, :]
    gl.store(part_ptrs + part * size, own)
    _, arrived = _arrive(arrival_ptr + tile, SPLIT)
    complete = arrived == SPLIT
    if complete:
        if SPLIT == 2:  # both orders of two give the same sum
            own += gl.load(part_ptrs + (1 - part) * size, cache_modifier=".cg")
        else:
            own = gl.load(part_ptrs, cache_modifier=".cg")
            for other in range(1, SPLIT):
                own += gl.load(part_ptrs + other * size, cache_modifier=".cg")
    return complete, _by_tokens(own, _narrower(acc.type.layout, BLOCK_M))


@gluon.jit
def meet(arrival_ptr, SPLIT: gl.constexpr):
    """A barrier of a tile's SPLIT programs (CTAs), each of which sees what all wrote before."""
    before, arrived = _arrive(arrival_ptr, SPLIT)
    while arrived < SPLIT:
        arrived = gl.atomic_add(arrival_ptr, 0, sem="acquire", scope="gpu") - before


@gluon.jit
def _arrive(arrival_ptr, SPLIT: gl.constexpr):
    """Count this program among those of a tile, which see what each wrote before.

    Returns the count before all of them, and how many have come. It goes up by _LAP with each
    launch, whatever its SPLIT, and is never reset: so the last one need not wait until all others
    have seen it.
    """
    barrier()  # all threads' stores precede the one thread's release
    ticket = gl.atomic_add(arrival_ptr, 1, sem="acq_rel", scope="gpu")
    before = ticket & -_LAP
    arrived = ticket - before + 1
    if arrived == SPLIT:
        gl.atomic_add(arrival_ptr, _LAP - SPLIT, sem="relaxed", scope="gpu")
    return before, arrived


@gluon.jit
def columns_of(sums, SHARES: gl.constexpr):
    """Equal shares of the columns; no number moves to another thread."""
    if SHARES == 1:
        return (sums,)
    else:
        N: gl.constexpr = sums.shape[0]
        WIDTH: gl.constexpr = sums.shape[1] // 2
        first, second = gl.split(sums.reshape([N, 2, WIDTH]).permute(0, 2, 1))
        return columns_of(first, SHARES // 2) + columns_of(second, SHARES // 2)


@gluon.constexpr_function
def _narrower(layout, columns):
    """The MMA's layout of so many columns, or fewer."""
    rows, most, depth = layout.instr_shape
    return gl.NVMMADistributedLayout(
        layout.version, layout.warps_per_cta, [rows, min(most, columns), depth]
    )


@gluon.jit
def _by_threads(acc):
    """Sums [N, M] with the four that a thread has of 16 tokens side by side: 16 bytes in memory.

    In an MMA's layout a thread has two of each eight.
    """
    N: gl.constexpr = acc.shape[0]
    M: gl.constexpr = acc.shape[1]
    if M < 16:
        return acc
    else:
        sums = acc.reshape([N, M // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([N, M])
        return gl.convert_layout(sums, _fours(N, M, gl.num_warps()))


@gluon.jit
def _by_tokens(own, layout: gl.constexpr):
    """The inverse of `_by_threads`, in an MMA's layout."""
    N: gl.constexpr = own.shape[0]
    M: gl.constexpr = own.shape[1]
    if M < 16:
        return own
    else:
        sums = own.reshape([N, M // 16, 4, 2, 2]).permute((0, 1, 3, 2, 4)).reshape([N, M])
        return gl.convert_layout(sums, layout)


@gluon.constexpr_function
def _fours(n, m, warps):
    """The layout of `_by_threads`: no number moves to another thread."""
    registers = [[0, 1], [0, 2]]
    registers += [[0, 16 << i] for i in range((m // 16).bit_length() - 1)] + [[8, 0]]
    registers += [[16 * warps << i, 0] for i in range((n // (16 * warps)).bit_length() - 1)]
    lanes = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]
    rows = [[16 << i, 0] for i in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, rows, [], [n, m])
