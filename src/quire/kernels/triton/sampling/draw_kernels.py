"""Sampling on the GPU: the same tokens as the host's sampler, in a fixed number of launches.

Twin of `quire.sampling.Sampler` for temperature, top-k, top-p and min-p. A row of V logits is cut
into pieces. Several programs share a row, and the last to arrive makes the row's decision. There
are six launches, whatever the sampling params:

1. `peaks`: the best token, which is all that a greedy row needs, and the lowest logit;
2. `weigh`: without filters, the mass of each piece, from which the last program samples in order
   of ids; with filters, mass and count of a few levels of depth;
3. `candidates` (in `candidates.py`): the tokens that filters can keep; the sampled one if they are
   few, else mass and count of 1,024 bins of equal depth;
4.-6. `open_bin` (in `top_k_top_p.py`): the last token of top-k, of top-p, and the sampled one, each
   searched in the bin that contains it. Nothing is sorted.

Floor: two reads of the logits without filters (one for greedy rows), over the memory bandwidth, or
the launches, about 1.5 us each. Filters read pieces with candidates once more; where these are
many, each takes two atomic additions and is read up to three times more. Sums are of integers
(`quire.kernels.sampling_math`), so results do not depend on the order of programs. Multiply-adds
are never fused, so weights equal the host's bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.triton.launch.work_partition import arrive
from quire.kernels.triton.launch.workspace import follow, launches_early, workspace
from quire.kernels.triton.sampling.candidates import (
    candidates_kernel,
    choose_reach,
    weigh_levels,
)
from quire.kernels.triton.sampling.draw_math import (
    LEVELS,
    cast_key,
    depth_of,
    load_piece,
    low_float,
    pack,
    packed_logit,
    packed_token,
    share_of,
    uniform_bits,
    weight_of,
)
from quire.kernels.triton.sampling.top_k_top_p import open_bin_kernel

PARAM_WORDS = 4  # int64: flags, top-k; slope, min-p's depth; top-p in units of 2^-64; seed
RANDOM = tl.constexpr(1)  # flag: the row is sampled, not greedy
FILTER = tl.constexpr(2)
FAILED = 1  # status of a row whose logits were not finite


@dataclass(frozen=True, slots=True)
class Cut:
    """Tile sizes. They do not change which tokens are sampled.

    piece: logits of a piece. per_sm: programs for each multiprocessor, at least; finders_per_sm: of
    the last four launches. bins: of the filters. listed: tokens of a bin that fit in registers.
    ranked: candidates that are compared each with each.
    """

    piece: int = 1024
    per_sm: int = 8
    finders_per_sm: int = 4
    bins: int = 1024
    listed: int = 2048
    ranked: int = 256
    warps: int = 4


class Scratch:
    """Memory in which the programs of a row exchange results.

    Counters and bins are zero between calls.
    """

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device, cut: Cut) -> None:
        self.num_pieces = -(-vocab_size // cut.piece)
        self.cut = cut
        shape = (num_rows, self.num_pieces)
        self.best = torch.zeros(shape, dtype=torch.int64, device=device)
        self.masses = torch.zeros(shape, dtype=torch.int64, device=device)
        self.lowest = torch.zeros(shape, device=device)
        self.levels = torch.zeros(*shape, LEVELS.value, dtype=torch.uint64, device=device)
        self.reaches = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self.ranked = torch.zeros(num_rows, cut.ranked, dtype=torch.int64, device=device)
        self.scales = torch.zeros(num_rows, 2, device=device)
        self.bin_masses = torch.zeros(num_rows, cut.bins, dtype=torch.int64, device=device)
        self.bin_counts = torch.zeros(num_rows, cut.bins, dtype=torch.int32, device=device)
        self.aims = torch.zeros(num_rows, 4, dtype=torch.int64, device=device)
        self.listed = torch.zeros(num_rows, cut.listed, dtype=torch.int32, device=device)
        self.counters = torch.zeros(num_rows, 2, dtype=torch.int32, device=device)


def sample(
    logits: Tensor, rows: Tensor, positions: Tensor, params: Tensor, scratch: Scratch
) -> tuple[Tensor, Tensor]:
    """Sample a token for each row of logits [S, V] (any float dtype): token ids, status, int32 [S].

    rows int32 [S]: rows of params int64 [R, PARAM_WORDS], -1 for none (token 0, status 0).
    positions int32 [S]: of the sampled tokens. Status 1: the logits were not finite.
    """
    num_rows, vocab = logits.shape
    assert logits.stride(1) == 1
    assert vocab > 1  # Triton 3.6 cannot compile a choice of one
    tokens = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    status = torch.empty_like(tokens)
    if num_rows == 0:
        return tokens, status
    cut, pieces = scratch.cut, scratch.num_pieces
    assert num_rows <= len(scratch.aims)
    assert pieces * cut.piece >= vocab
    num_sms = workspace(logits.device).num_sms
    grid = (num_rows, min(pieces, -(-cut.per_sm * num_sms // num_rows)))
    finders = (num_rows, min(pieces, -(-cut.finders_per_sm * num_sms // num_rows)))
    common = (logits, logits.stride(0), vocab, pieces, rows, params, tokens)
    notes = (scratch.scales, scratch.counters)
    aims = (scratch.aims, scratch.reaches)
    bins = (scratch.bin_masses, scratch.bin_counts, *aims, scratch.best)
    pdl = launches_early(logits.device)
    sizes = {"PIECE": cut.piece, "PDL": pdl, "launch_pdl": pdl}
    options = {"num_warps": cut.warps, "enable_fp_fusion": False}
    finding = {"BINS": cut.bins, "num_warps": 2 * cut.warps, "enable_fp_fusion": False}
    most = triton.next_power_of_2(pieces)
    peaks_kernel[grid](
        *common, *notes, status, scratch.best, scratch.lowest, MOST_PIECES=most, **sizes, **options
    )
    weigh_kernel[grid](
        *common, *notes, positions, *aims, status, scratch.masses, scratch.levels,
        MOST_PIECES=most, RANKED=cut.ranked, BINS=cut.bins, **sizes, **options,
    )  # fmt: skip
    candidates_kernel[finders](
        *common, *notes, positions, *bins, scratch.ranked, RANKED=cut.ranked, **sizes, **finding
    )
    for _ in range(3):
        open_bin_kernel[finders](
            *common, *notes, positions, *bins, scratch.listed, LISTED=cut.listed,
            **sizes, **finding,
        )  # fmt: skip
    return tokens, status


@triton.jit(do_not_specialize=["num_pieces"])
def peaks_kernel(
    logits_ptr, stride, vocab, num_pieces, rows_ptr, params_ptr, tokens_ptr,
    scales_ptr, counters_ptr, status_ptr, best_ptr, lowest_ptr,
    MOST_PIECES: tl.constexpr, PIECE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The best token of each piece and of the row (the first of equals), its logit, the lowest's
    depth.

    best int64: order-preserving bits of the logit, then the id counted down.
    """
    if PDL:
        follow()
    s, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(rows_ptr + s)
    if row < 0:
        if part == 0:
            tl.store(tokens_ptr + s, 0)
            tl.store(status_ptr + s, 0)
    else:
        for piece in range(part * num_pieces // parts, (part + 1) * num_pieces // parts):
            tokens, x = load_piece(logits_ptr + s.to(tl.int64) * stride, piece, vocab, PIECE)
            x = tl.where(x != x, float("inf"), x)  # NaN makes a row fail as infinity does
            key = cast_key(x)
            top = tl.max(key)
            first = tl.min(tl.where(key == top, tokens, 0x7FFFFFFF))
            tl.store(best_ptr + s * num_pieces + piece, pack(top, first))
            low = tl.min(tl.where(x == float("-inf"), float("inf"), x))
            tl.store(lowest_ptr + s * num_pieces + piece, low)
        if arrive(counters_ptr + 2 * s, parts):
            i = tl.arange(0, MOST_PIECES)
            there, index = i < num_pieces, s * num_pieces + i
            none = -0x7FFFFFFFFFFFFFFF
            best = tl.max(tl.load(best_ptr + index, there, none, cache_modifier=".cg"))
            low = tl.min(tl.load(lowest_ptr + index, there, float("inf"), cache_modifier=".cg"))
            peak = packed_logit(best)
            sound = (peak < float("inf")) & (peak > float("-inf"))
            tl.store(tokens_ptr + s, packed_token(best))
            tl.store(status_ptr + s, tl.where(sound, 0, 1))
            slope = low_float(tl.load(params_ptr + row * 4 + 1))
            tl.store(scales_ptr + 2 * s, peak)  # tokens deeper than 41 have weight 0
            tl.store(scales_ptr + 2 * s + 1, tl.minimum(depth_of(low, peak, slope), 41.0))


@triton.jit(do_not_specialize=["num_pieces"])
def weigh_kernel(
    logits_ptr, stride, vocab, num_pieces, rows_ptr, params_ptr, tokens_ptr,
    scales_ptr, counters_ptr, positions_ptr,
    aims_ptr, reaches_ptr, status_ptr, masses_ptr, levels_ptr,
    MOST_PIECES: tl.constexpr, RANKED: tl.constexpr, PIECE: tl.constexpr, BINS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Without filters: masses of pieces, then the sampled token.

    With: masses and counts of levels, then how deep the candidates reach.
    """
    if PDL:
        follow()
    s, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(rows_ptr + s)
    params_row = params_ptr + tl.maximum(row, 0) * 4
    flags = (tl.load(params_row) & 0xFFFFFFFF).to(tl.int32)
    if (row >= 0) & (flags != 0) & (tl.load(status_ptr + s) == 0):
        logits = logits_ptr + s.to(tl.int64) * stride
        peak, slope = tl.load(scales_ptr + 2 * s), low_float(tl.load(params_row + 1))
        begin, end = part * num_pieces // parts, (part + 1) * num_pieces // parts
        if (flags & FILTER) != 0:
            deepest = low_float(tl.load(params_row + 1) >> 32)
            levels_ptr += s.to(tl.int64) * num_pieces * LEVELS
            for piece in range(begin, end):
                _, x = load_piece(logits, piece, vocab, PIECE)
                depth = depth_of(x, peak, slope)
                weigh_levels(depth, deepest, levels_ptr + piece * LEVELS, PIECE)
            if arrive(counters_ptr + 2 * s, parts):
                choose_reach(
                    levels_ptr, num_pieces, params_row, scales_ptr + 2 * s, aims_ptr + 4 * s,
                    reaches_ptr + s, MOST_PIECES, PIECE, BINS, RANKED,
                )  # fmt: skip
        else:
            for piece in range(begin, end):
                _, x = load_piece(logits, piece, vocab, PIECE)
                mass = tl.sum(weight_of(depth_of(x, peak, slope)))
                tl.store(masses_ptr + s * num_pieces + piece, mass)
            if arrive(counters_ptr + 2 * s, parts):
                bits = uniform_bits(tl.load(params_row + 3), tl.load(positions_ptr + s))
                i = tl.arange(0, MOST_PIECES)
                mass_ptrs = masses_ptr + s * num_pieces + i
                masses = tl.load(mass_ptrs, i < num_pieces, 0, cache_modifier=".cg")
                passed = tl.cumsum(masses)
                target = share_of(tl.sum(masses), bits)
                piece = tl.sum((passed <= target).to(tl.int32))
                rest = target - tl.sum(tl.where(passed <= target, masses, 0))
                _, x = load_piece(logits, piece, vocab, PIECE)
                passed = tl.cumsum(weight_of(depth_of(x, peak, slope)))
                index = tl.sum((passed <= rest).to(tl.int32))
                tl.store(tokens_ptr + s, piece * PIECE + index)
