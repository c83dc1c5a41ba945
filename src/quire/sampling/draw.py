"""One uniform number → one token, by inverting the cumulative distribution.

Owns temperature, the filters and the draw. The order is vLLM's: temperature; then min-p, which
keeps tokens of at least that share of the most probable one's probability; then top-k; then top-p,
which keeps the smallest set of most probable tokens whose mass reaches its share of what min-p and
top-k left. All three keep a head of the ranked tokens, never less than one, so that only the head
has to be found. A token without probability is never drawn.

Weights and masses are probabilities as multiples of the most probable token's, in float64.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from quire.sampling.arrays import Flags, Floats, Ints, Logits
from quire.sampling.blocks import BLOCK, Rows
from quire.sampling.ranking import ranked
from quire.sampling.state import RowParams

_WIDEN = 16  # 64 tokens are ranked first, then 1024, then 16384, then all
_Scalar = TypeVar("_Scalar", bound=np.generic)
_LARGEST = 1.0 - 2.0**-53  # of the uniform numbers


def draw_any(rows: Rows, params: RowParams, uniforms: Floats) -> Ints:
    """Draw from the whole vocabulary, one number in [0, 1) for each row [N]: token ids [N].

    First a block by the blocks' masses, then a token in it: nothing long is summed in order.
    """
    masses = rows.masses(params.temperature)
    cumulative = masses.cumsum(axis=1)
    block = _invert(cumulative, uniforms)
    # where in the block the number fell, as a share of it; it may be off by a rounding
    share = 1.0 - (_at(cumulative, block) - uniforms * cumulative[:, -1]) / _at(masses, block)
    weights = _weights(rows.open(block[:, None]), rows.peaks, params)
    return block * BLOCK + _invert(weights.cumsum(axis=1), np.clip(share, 0.0, _LARGEST))


def draw_filtered(
    rows: Rows, params: RowParams, totals: Floats, uniforms: Floats, width: int = BLOCK
) -> Ints:
    """Draw from what the filters keep, one number in [0, 1) for each row [N]: token ids [N].

    totals: mass of the whole vocabulary [N], infinite where top-k or min-p make it irrelevant.
    width: how many tokens are ranked; where more are kept, it is done again with a longer ranking.
    """
    width = min(width, rows.logits.shape[1])
    ids, logits = ranked(rows, width)
    weights = _weights(logits, rows.peaks, params)
    cumulative = weights.cumsum(axis=1)
    kept = _count_kept(weights, cumulative, params, totals)
    mass = _at(cumulative, np.minimum(kept, width) - 1)
    tokens = _at(ids, _count(cumulative <= (uniforms * mass)[:, None]))
    rest = np.flatnonzero(kept > width)
    if len(rest):
        wider = rows.select(rest), params.select(rest), totals[rest], uniforms[rest]
        tokens[rest] = draw_filtered(*wider, width * _WIDEN)
    return tokens


def _count_kept(weights: Floats, cumulative: Floats, params: RowParams, totals: Floats) -> Ints:
    """How many of the W ranked tokens the filters keep: [N]; more than W: more than are ranked.

    weights [N, W]: in descending order, 1 the first; cumulative: their running sum.
    """
    width = weights.shape[1]
    likely = _count(weights >= params.min_p[:, None])
    head = np.where(likely < width, np.minimum(likely, params.top_k), params.top_k).astype(np.int64)
    mass = np.where(head <= width, _at(cumulative, np.minimum(head, width) - 1), totals)
    reached = _count(cumulative < (params.top_p * mass)[:, None]) + 1
    return np.minimum(head, reached)


def _weights(logits: Logits, peaks: Logits, params: RowParams) -> Floats:
    """[N, W] logits as weights relative to the row's peak."""
    distance = logits.astype(np.float64) - peaks[:, None]
    return np.exp(distance / params.temperature[:, None])


def _invert(cumulative: Floats, uniforms: Floats) -> Ints:
    """The first place [N] where the running sum [N, W] exceeds this share of its end.

    It exists, as u * x < x for the largest u as well; and something of the sum lies there.
    """
    target = uniforms * cumulative[:, -1]
    return _count(cumulative <= target[:, None])


def _count(flags: Flags) -> Ints:
    """How many are true in each row: [N, W] → [N]."""
    counts: Ints = np.count_nonzero(flags, axis=1)
    return counts


def _at(values: npt.NDArray[_Scalar], place: Ints) -> npt.NDArray[_Scalar]:
    """One value of each row: [N, W], [N] → [N]."""
    found: npt.NDArray[_Scalar] = np.take_along_axis(values, place[:, None], axis=1)[:, 0]
    return found
