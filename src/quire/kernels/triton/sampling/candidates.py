"""The candidates of top-k, top-p and min-p: the tokens near the peak that they can keep at most.

Tokens are counted and weighed in eight levels of depth, three halvings of weight each but the last.
The levels down to the one where top-k's count or top-p's mass is passed hold all candidates, mostly
fewer than a hundred of a vocabulary. These are listed, and the program that arrives last finds the
sampled token by comparing each with each. More candidates are put into bins, see `top_k_top_p.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.kernels.triton.launch.work_partition import arrive
from quire.kernels.triton.launch.workspace import follow
from quire.kernels.triton.sampling.draw_math import (
    HALVINGS,
    LEVELS,
    bin_of,
    cast_key,
    depth_of,
    level_of,
    load_piece,
    low_float,
    pack,
    packed_logit,
    packed_token,
    share_of,
    share_up,
    uniform_bits,
    weight_of,
    weight_within,
)
from quire.kernels.triton.sampling.top_k_top_p import aim_first

LISTING = tl.constexpr(4)  # what is next for a row, beside the searches of `top_k_top_p.py`
FILLING = tl.constexpr(5)
_AT_ONCE = tl.constexpr(8)  # candidates that the others are compared with


@triton.jit
def weigh_levels(depth, deepest, levels_ptr, PIECE: tl.constexpr):
    """Store a piece's mass and count of each level, in one number: one sum for both."""
    tl.static_assert(PIECE <= 2048, "sums of pieces must fit in 64 bits")
    weight, levels = weight_within(depth, LEVELS, deepest).to(tl.uint64), level_of(depth)
    both = tl.where(weight > 0, weight * (2 * PIECE) + 1, 0)
    for level in range(LEVELS):  # not unrolled: other rows need the registers
        tl.store(levels_ptr + level, tl.sum(tl.where(levels == level, both, 0)))


@triton.jit
def choose_reach(
    levels_ptr, num_pieces, params_row, scales_ptr, aim_ptr, reach_ptr,
    MOST_PIECES: tl.constexpr, PIECE: tl.constexpr, BINS: tl.constexpr, RANKED: tl.constexpr,
):  # fmt: skip
    """Set how deep a row's candidates reach, whether they are listed, and the mass of all tokens.

    The bins' scale, until now the depth of the lowest logit, ends with the candidates.
    """
    level = tl.arange(0, LEVELS)
    piece = tl.arange(0, MOST_PIECES)[:, None]
    index, there = piece * LEVELS + level[None, :], piece < num_pieces
    both = tl.load(levels_ptr + index, there, 0, cache_modifier=".cg")
    mass = tl.sum((both // (2 * PIECE)).to(tl.int64), axis=0)
    count = tl.sum((both % (2 * PIECE)).to(tl.int32), axis=0)
    top_k = tl.load(params_row) >> 32
    top_p = tl.load(params_row + 2).to(tl.uint64)
    total = tl.sum(mass)
    target = tl.where(top_p != 0, share_up(total, top_p), total) - 1
    passed = tl.cumsum(mass) > target
    if tl.sum(count) > top_k:
        passed = tl.cumsum(count) > top_k
    reach = LEVELS - tl.sum(passed.to(tl.int32))
    num = tl.sum(tl.where(level <= reach, count, 0))
    lowest = tl.load(scales_ptr + 1)
    bound = tl.where(reach < LEVELS - 1, HALVINGS * (reach + 1).to(tl.float32), lowest)
    tl.store(scales_ptr + 1, BINS / tl.maximum(tl.minimum(lowest, bound), 1e-20))
    tl.store(reach_ptr, reach)
    tl.store(aim_ptr, tl.where(num <= RANKED, LISTING, FILLING))
    tl.store(aim_ptr + 1, total)


@triton.jit(do_not_specialize=["num_pieces"])
def candidates_kernel(
    logits_ptr, stride, vocab, num_pieces, rows_ptr, params_ptr, tokens_ptr,
    scales_ptr, counters_ptr, positions_ptr,
    bin_masses_ptr, bin_counts_ptr, aims_ptr, reaches_ptr, best_ptr, ranked_ptr,
    RANKED: tl.constexpr, PIECE: tl.constexpr, BINS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """List a filtered row's candidates and sample one, or put them into bins."""
    if PDL:
        follow()
    s, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(rows_ptr + s)
    wanted = tl.load(aims_ptr + 4 * s).to(tl.int32)
    if (row >= 0) & (wanted != 0):
        params_row = params_ptr + row * 4
        logits = logits_ptr + s.to(tl.int64) * stride
        peak, scale = tl.load(scales_ptr + 2 * s), tl.load(scales_ptr + 2 * s + 1)
        slope = low_float(tl.load(params_row + 1))
        deepest = low_float(tl.load(params_row + 1) >> 32)
        counted = (tl.load(params_row) >> 32) < vocab  # top-k filters something
        reach = tl.load(reaches_ptr + s)
        ranked_ptr += s.to(tl.int64) * RANKED
        cursor_ptr = counters_ptr + 2 * s + 1
        for piece in range(part * num_pieces // parts, (part + 1) * num_pieces // parts):
            best = tl.load(best_ptr + s * num_pieces + piece)
            if level_of(depth_of(packed_logit(best), peak, slope)) <= reach:
                tokens, x = load_piece(logits, piece, vocab, PIECE)
                depth = depth_of(x, peak, slope)
                weight = weight_within(depth, reach, deepest)
                if wanted == LISTING:
                    index = tl.atomic_add(cursor_ptr + tokens * 0, 1, weight > 0, sem="relaxed")
                    tl.store(ranked_ptr + index, pack(cast_key(x), tokens), mask=weight > 0)
                else:
                    index = s * BINS + bin_of(depth, scale, BINS)
                    tl.atomic_add(bin_masses_ptr + index, weight, weight > 0, sem="relaxed")
                    weight = tl.where(counted, weight, 0)
                    tl.atomic_add(bin_counts_ptr + index, 1, weight > 0, sem="relaxed")
        if arrive(counters_ptr + 2 * s, parts):
            bits = uniform_bits(tl.load(params_row + 3), tl.load(positions_ptr + s))
            total = tl.load(aims_ptr + 4 * s + 1)
            if wanted == LISTING:
                num = tl.load(cursor_ptr, cache_modifier=".cg")
                token = _rank(ranked_ptr, num, params_row, bits, total, peak, slope, RANKED)
                tl.debug_barrier()  # every thread has read the number before one resets it
                tl.store(cursor_ptr, 0)
                tl.store(tokens_ptr + s, token)
                tl.store(aims_ptr + 4 * s, 0)
            else:
                aim_first(
                    params_row, bits, s, total, bin_masses_ptr, bin_counts_ptr, aims_ptr, BINS
                )


@triton.jit
def _rank(ranked_ptr, num, params_row, bits, total, peak, slope, RANKED: tl.constexpr):
    """The sampled one of `num` packed candidates, in any order; total: the mass of all tokens."""
    i = tl.arange(0, RANKED)
    none = -0x7FFFFFFFFFFFFFFF
    own = tl.load(ranked_ptr + i, i < num, none)  # cached, as all are read again
    weight = tl.where(i < num, weight_of(depth_of(packed_logit(own), peak, slope)), 0)
    rank = tl.zeros([RANKED], tl.int32)
    before = tl.zeros([RANKED], tl.int64)  # the mass of higher ranks
    for start in range(0, num, _AT_ONCE):
        j = start + tl.arange(0, _AT_ONCE)
        others = tl.load(ranked_ptr + j, j < num, none)
        weights = weight_of(depth_of(packed_logit(others), peak, slope))
        higher = others[None, :] > own[:, None]
        rank += tl.sum(higher.to(tl.int32), axis=1)
        before += tl.sum(tl.where(higher, weights[None, :], 0), axis=1)
    top_k = tl.load(params_row) >> 32
    top_p = tl.load(params_row + 2).to(tl.uint64)
    mass = tl.where(num > top_k, tl.sum(tl.where(rank < top_k, weight, 0)), total)
    if top_p != 0:
        in_nucleus = before < share_up(mass, top_p)
        mass = tl.sum(tl.where((rank < top_k) & in_nucleus, weight, 0))
    target = share_of(mass, bits)
    sampled = (before <= target) & (target < before + weight)
    return tl.sum(tl.where(sampled, packed_token(own), 0))
