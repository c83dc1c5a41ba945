"""Draws a token from one uniform number after top-k, top-p and min-p: inverse CDF sampling.

Owns temperature, min-p, top-k, top-p and the draw. The order is vLLM's: temperature; then min-p,
which keeps tokens of at least that share of the most probable one's probability; then top-k; then
top-p, which keeps the smallest set of most probable tokens whose mass reaches its share of what
min-p and top-k left. All three keep the first tokens of the ranking, at least one, so only these
have to be found. A token of probability zero is never drawn.

Weights and masses are integers, as `quire.kernels.sampling_math` makes them: what is drawn does not
depend on how a sum is cut, and the sampler on the GPU draws the same.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Array, Flags, Floats, Ints, Logits
from quire.kernels import sampling_math
from quire.kernels.reference_arrays import BLOCK, few_rows
from quire.sampling.logit_blocks import Rows
from quire.sampling.ranking import ranked
from quire.sampling.sampling_state import RowParams

_GROWTH = 16  # 64 tokens are ranked first, then 1024, then 16384, then all
_UNKNOWN = -1  # mass


def draw_any(rows: Rows, params: RowParams, uniforms: Floats) -> Ints:
    """Token ids [N] drawn from the whole vocabulary. uniforms: one number in [0, 1) per row [N].

    Cumulates in the order of token ids: picks a block by the blocks' masses, then a token in it.
    """
    masses = rows.masses(params.temperature)
    cumulative = masses.cumsum(axis=1)
    target, _ = sampling_math.share_of(cumulative[:, -1], sampling_math.share_bits(uniforms))
    block = _first_above(cumulative, target)
    weights, _ = _weights(rows.open(block[:, None]), rows.peaks, params)
    before: Ints = _at(cumulative, block) - _at(masses, block)
    index = _first_above(weights.cumsum(axis=1), target - before)
    return block * BLOCK + index


def draw_filtered(
    rows: Rows, params: RowParams, totals: Ints, uniforms: Floats, width: int = BLOCK
) -> Ints:
    """Token ids [N] drawn from what top-k, top-p and min-p keep. uniforms: in [0, 1), one per row.

    Cumulates in descending order of logits, ties by ascending id. totals: mass of the whole
    vocabulary [N], -1 where top-k or min-p make it irrelevant. width: number of tokens ranked;
    rows that keep more are drawn again with a longer ranking.
    """
    width = min(width, rows.logits.shape[1])
    ids, logits = ranked(rows, width)
    weights, depth = _weights(logits, rows.peaks, params)
    cumulative = weights.cumsum(axis=1)
    num_candidates = _num_candidates(depth, cumulative, params, totals)
    mass = _at(cumulative, np.minimum(num_candidates, width) - 1)
    target, _ = sampling_math.share_of(mass, sampling_math.share_bits(uniforms))
    tokens = _at(ids, _first_above(cumulative, target))
    rest = np.flatnonzero(num_candidates > width)
    for piece in few_rows(len(rest), width * _GROWTH):
        some = rest[piece]
        wider = rows.select(some), params.select(some), totals[some], uniforms[some]
        tokens[some] = draw_filtered(*wider, width * _GROWTH)
    return tokens


def _num_candidates(depth: Logits, cumulative: Ints, params: RowParams, totals: Ints) -> Ints:
    """The number of tokens that the filters keep: [N]; more than W means more than are ranked.

    depth [N, W]: halvings, in ascending order; cumulative: the running sum of the weights.
    """
    width = depth.shape[1]
    likely = _count(depth <= sampling_math.min_p_depth(params.min_p)[:, None])
    head = np.where(likely < width, np.minimum(likely, params.top_k), params.top_k).astype(np.int64)
    mass = np.where(head <= width, _at(cumulative, np.minimum(head, width) - 1), totals)
    needed = np.where(mass == _UNKNOWN, cumulative[:, -1] + 1, _needed(mass, params.top_p))
    return np.minimum(head, _count(cumulative < needed[:, None]) + 1)


def _needed(mass: Ints, top_p: Floats) -> Ints:
    """The smallest integer mass that reaches the share top_p of a mass: [N]."""
    cut = np.where(top_p < 1.0, top_p, 0.0)
    whole, rest = sampling_math.share_of(np.maximum(mass, 0), sampling_math.share_bits(cut))
    return np.where(top_p < 1.0, whole + (rest > 0), mass)


def _weights(logits: Logits, peaks: Logits, params: RowParams) -> tuple[Ints, Logits]:
    """Integer weights and halvings below the row's peak, of logits [N, W]."""
    depth = sampling_math.halvings(
        logits, peaks[:, None], sampling_math.slope(params.temperature)[:, None]
    )
    return sampling_math.weights(depth).astype(np.int64), depth


def _first_above(cumulative: Ints, target: Ints) -> Ints:
    """The first index [N] where the running sum [N, W] exceeds the target: a token with weight."""
    return _count(cumulative <= target[:, None])


def _count(flags: Flags) -> Ints:
    """The number of true flags in each row: [N, W] → [N]."""
    counts: Ints = np.count_nonzero(flags, axis=1)
    return counts


def _at(values: Array, index: Ints) -> Array:
    """One value of each row: [N, W], [N] → [N]."""
    found: Array = np.take_along_axis(values, index[:, None], axis=1)[:, 0]
    return found
