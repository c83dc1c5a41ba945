"""Top-k and top-p without a sort: finds the token at which a running sum passes a target.

For rows with too many candidates to compare each with each, see `candidates.py`. The order is
descending by logit, then ascending by id. The sums of all bins are known, and so is the bin that
contains the token. That bin's tokens are listed, and the program that arrives last finds the token
by bisecting the logits' bits. There are up to three such searches: top-k's target
is a count; top-p's is a fraction of the mass up to top-k's token; and the sampled token's is a
uniform fraction of the mass up to top-p's token. Only candidates are in bins.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.kernels.triton.launch.work_partition import arrive
from quire.kernels.triton.launch.workspace import follow
from quire.kernels.triton.sampling.draw_math import (
    bin_of,
    cast_key,
    depth_of,
    load_piece,
    low_float,
    packed_logit,
    share_of,
    share_up,
    uniform_bits,
    weight_within,
)

# what is searched for a row; 0: nothing
TOP_K = tl.constexpr(1)
TOP_P = tl.constexpr(2)
DRAWN = tl.constexpr(3)


@triton.jit
def aim_first(
    params_ptr, bits, s, total, bin_masses_ptr, bin_counts_ptr, aims_ptr, BINS: tl.constexpr
):
    """Set a row's first search, when all bins are filled; total: the mass of all tokens."""
    index = s * BINS + tl.arange(0, BINS)
    masses = tl.load(bin_masses_ptr + index, cache_modifier=".cg")
    counts = tl.load(bin_counts_ptr + index, cache_modifier=".cg").to(tl.int64)
    top_k = tl.load(params_ptr) >> 32
    if tl.sum(counts) > top_k:  # counts are 0 where top-k filters nothing
        _aim(counts, masses, top_k - 1, TOP_K, aims_ptr + 4 * s)
    else:
        _aim_next(0, total, masses, params_ptr, bits, aims_ptr + 4 * s)


@triton.jit
def _aim_next(found, mass, masses, params_ptr, bits, aim_ptr):
    """Set a row's next search after `found` was found, which leaves `mass`."""
    top_p = tl.load(params_ptr + 2).to(tl.uint64)
    if (found < TOP_P) & (top_p != 0):
        _aim(masses, masses, share_up(mass, top_p) - 1, TOP_P, aim_ptr)
    else:
        _aim(masses, masses, share_of(mass, bits), DRAWN, aim_ptr)


@triton.jit
def _aim(amounts, masses, target, wanted, aim_ptr):
    """Store a search (an aim): for the bin in which the running sum of amounts passes the target.

    Fields: what is wanted, the bin, the rest of the target within the bin, the mass before the bin.
    """
    before = tl.cumsum(amounts) <= target
    tl.store(aim_ptr, wanted)
    tl.store(aim_ptr + 1, tl.sum(before.to(tl.int32)))
    tl.store(aim_ptr + 2, target - tl.sum(tl.where(before, amounts, 0)))
    tl.store(aim_ptr + 3, tl.sum(tl.where(before, masses, 0)))


@triton.jit(do_not_specialize=["num_pieces"])
def open_bin_kernel(
    logits_ptr, stride, vocab, num_pieces, rows_ptr, params_ptr, tokens_ptr,
    scales_ptr, counters_ptr, positions_ptr,
    bin_masses_ptr, bin_counts_ptr, aims_ptr, reaches_ptr, best_ptr, listed_ptr,
    LISTED: tl.constexpr, PIECE: tl.constexpr, BINS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """List the tokens of the searched bin, find the token, and set the next search."""
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
        reach = tl.load(reaches_ptr + s)
        chosen = tl.load(aims_ptr + 4 * s + 1).to(tl.int32)
        cursor_ptr = counters_ptr + 2 * s + 1
        for piece in range(part * num_pieces // parts, (part + 1) * num_pieces // parts):
            best = tl.load(best_ptr + s * num_pieces + piece)
            top = depth_of(packed_logit(best), peak, slope)
            if bin_of(top, scale, BINS) <= chosen:
                tokens, x = load_piece(logits, piece, vocab, PIECE)
                _, weight = _weigh_in(x, chosen, peak, slope, reach, deepest, scale, BINS)
                hit = weight > 0
                index = tl.atomic_add(cursor_ptr + tokens * 0, 1, hit, sem="relaxed")
                fits = hit & (index < LISTED)
                tl.store(listed_ptr + s.to(tl.int64) * LISTED + index, tokens, mask=fits)
        if arrive(counters_ptr + 2 * s, parts):
            num = tl.load(cursor_ptr, cache_modifier=".cg")
            tl.debug_barrier()  # every thread reads it before one resets it
            tl.store(cursor_ptr, 0)
            if num <= LISTED:
                i = tl.arange(0, LISTED)
                index = listed_ptr + s.to(tl.int64) * LISTED + i
                tokens = tl.load(index, i < num, 0, cache_modifier=".cg")
                x = tl.load(logits + tokens, i < num, float("-inf")).to(tl.float32)
                key, weight = _weigh_in(x, chosen, peak, slope, reach, deepest, scale, BINS)
                low = tl.min(tl.where(weight > 0, key, 0x7FFFFFFF)).to(tl.int64)
                high = tl.max(tl.where(weight > 0, key, -0x80000000)).to(tl.int64)
                token, mass = _find(
                    low, high, wanted, aims_ptr + 4 * s, tokens, key, weight, logits, vocab,
                    num_pieces, chosen, peak, slope, reach, deepest, scale, PIECE, BINS, False,
                )  # fmt: skip
            else:
                low, high = tl.full([], -0x80000000, tl.int64), tl.full([], 0x7FFFFFFF, tl.int64)
                token, mass = _find(
                    low, high, wanted, aims_ptr + 4 * s, 0, 0, 0, logits, vocab,
                    num_pieces, chosen, peak, slope, reach, deepest, scale, PIECE, BINS, True,
                )  # fmt: skip
            i = s * BINS + tl.arange(0, BINS)
            if wanted == DRAWN:
                tl.store(tokens_ptr + s, token)
                tl.store(aims_ptr + 4 * s, 0)
                tl.store(bin_masses_ptr + i, tl.zeros([BINS], tl.int64))
                tl.store(bin_counts_ptr + i, tl.zeros([BINS], tl.int32))
            else:
                masses = tl.load(bin_masses_ptr + i, cache_modifier=".cg")
                bits = uniform_bits(tl.load(params_row + 3), tl.load(positions_ptr + s))
                _aim_next(wanted, mass, masses, params_row, bits, aims_ptr + 4 * s)


@triton.jit
def _weigh_in(x, chosen, peak, slope, reach, deepest, scale, BINS: tl.constexpr):
    """Keys of logits x, and weights, 0 outside of the bin `chosen`."""
    depth = depth_of(x, peak, slope)
    weight = weight_within(depth, reach, deepest)
    return cast_key(x), tl.where(bin_of(depth, scale, BINS) == chosen, weight, 0)


@triton.jit
def _find(
    low, high, wanted, aim_ptr, tokens, key, weight, logits_ptr, vocab,
    num_pieces, chosen, peak, slope, reach, deepest, scale,
    PIECE: tl.constexpr, BINS: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """The bin's token at which the running sum passes the target, and all mass up to it.

    low, high: bounds of its key. The bin's tokens are given or, with SCAN, read again at every
    step: rare and slow, for any number of tokens.
    """
    target = tl.load(aim_ptr + 2)
    while low < high:  # the highest key at which the sum passes the target
        middle = high - (high - low) // 2
        mass, count, _ = _sums(
            middle, 0x7FFFFFFF, vocab, tokens, key, weight, logits_ptr, vocab,
            num_pieces, chosen, peak, slope, reach, deepest, scale, PIECE, BINS, SCAN,
        )  # fmt: skip
        if tl.where(wanted == TOP_K, count, mass) > target:
            low = middle
        else:
            high = middle - 1
    above_mass, above_count, _ = _sums(
        low + 1, 0x7FFFFFFF, vocab, tokens, key, weight, logits_ptr, vocab,
        num_pieces, chosen, peak, slope, reach, deepest, scale, PIECE, BINS, SCAN,
    )  # fmt: skip
    _, _, own = _sums(
        low, low, vocab, tokens, key, weight, logits_ptr, vocab,
        num_pieces, chosen, peak, slope, reach, deepest, scale, PIECE, BINS, SCAN,
    )  # fmt: skip
    unit = tl.where(wanted == TOP_K, 1, own)
    passed = tl.where(wanted == TOP_K, above_count, above_mass)
    index = (target - passed) // unit  # its rank among tokens of equal logits
    first = tl.full([], 0, tl.int64)
    last = first + vocab - 1
    if wanted != DRAWN:
        last = first
    while first < last:
        middle = first + (last - first) // 2
        _, count, _ = _sums(
            low, low, middle, tokens, key, weight, logits_ptr, vocab,
            num_pieces, chosen, peak, slope, reach, deepest, scale, PIECE, BINS, SCAN,
        )  # fmt: skip
        if count > index:
            last = middle
        else:
            first = middle + 1
    return first.to(tl.int32), tl.load(aim_ptr + 3) + above_mass + (index + 1) * own


@triton.jit
def _sums(
    low, high, last, tokens, key, weight, logits_ptr, vocab,
    num_pieces, chosen, peak, slope, reach, deepest, scale,
    PIECE: tl.constexpr, BINS: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """Mass, count and largest weight of a bin's tokens with keys in [low, high], ids <= last."""
    if SCAN:
        mass = tl.zeros([PIECE], tl.int64)
        count = tl.zeros([PIECE], tl.int64)
        most = tl.zeros([PIECE], tl.int64)
        for piece in range(num_pieces):
            ids, x = load_piece(logits_ptr, piece, vocab, PIECE)
            keys, weights = _weigh_in(x, chosen, peak, slope, reach, deepest, scale, BINS)
            inside = (keys >= low) & (keys <= high) & (ids <= last) & (weights > 0)
            mass += tl.where(inside, weights, 0)
            count += inside.to(tl.int64)
            most = tl.maximum(most, tl.where(inside, weights, 0))
    else:
        inside = (key >= low) & (key <= high) & (tokens <= last) & (weight > 0)
        mass = tl.where(inside, weight, 0)
        count = inside.to(tl.int64)
        most = mass
    return tl.sum(mass), tl.sum(count), tl.max(most)
