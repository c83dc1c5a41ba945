"""One uniform number → one token, by inverting the cumulative distribution.

Owns temperature, the filters and the draw. The order is vLLM's: temperature; then min-p, which
keeps tokens of at least that share of the most probable one's probability; then top-k; then top-p,
which keeps the smallest set of most probable tokens whose mass reaches its share of what min-p and
top-k left. All three keep a head of the ranked tokens, never less than one, so that only the head
has to be found. Masses are summed in float64. A token without probability is never drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.sampling.ranking import BLOCK, in_blocks, ranked
from quire.sampling.state import RowParams

_WIDEN = 64  # 64 tokens are ranked first, then 4096, then 262144 or all


def relative_weights(logits: Tensor, peaks: Tensor, temperature: Tensor) -> Tensor:
    """Probabilities as multiples of the most probable token's, in place of logits [S, P].

    peaks: the highest logit of each row [S].
    """
    scale = temperature.to(logits.dtype).unsqueeze(1)
    return logits.sub_(peaks.unsqueeze(1)).div_(scale).exp_()


def total_mass(weights: Tensor) -> Tensor:
    """The sum of each row's weights [S, P]: float64 [S]."""
    return _block_sums(weights)[:, -1]


def draw_any(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw from all of the vocabulary: weights float32 [S, P], uniforms float64 [S] → int64 [S].

    The block first, by the blocks' masses, then the token in it: no long running sum is needed.
    """
    cumulative = _block_sums(weights)
    target = uniforms.unsqueeze(1) * cumulative[:, -1:]  # below the last, as uniforms are below 1
    block = torch.searchsorted(cumulative, target, right=True)  # [S, 1]
    before = cumulative.gather(1, (block - 1).clamp(min=0)) * (block > 0)
    rows = torch.arange(len(weights), device=weights.device)
    inside = in_blocks(weights)[rows, block[:, 0]].double().cumsum(-1)  # [S, BLOCK]
    token = torch.searchsorted(inside, target - before, right=True)
    # the block's float32 sum may exceed the exact one: stay at the last token with a weight
    last = torch.searchsorted(inside, inside[:, -1:])
    return (block * BLOCK + torch.minimum(token, last)).squeeze(1)


def _block_sums(weights: Tensor) -> Tensor:
    """The mass of each block and those before it: float64 [S, P / BLOCK].

    torch splits the sum of one long row among threads, and not that of many: sums of short pieces,
    added up in order, are the same in any batch.
    """
    return in_blocks(weights).sum(-1).double().cumsum(-1)


def draw_filtered(
    logits: Tensor, params: RowParams, totals: Tensor, uniforms: Tensor, width: int = BLOCK
) -> Tensor:
    """Draw from the tokens that the filters keep: logits float32 [S, P] → int64 [S].

    totals: mass of all tokens, relative to the most probable one's, float64 [S]; infinite where
    top-k or min-p make it irrelevant. uniforms: float64 [S]. width: how many tokens are ranked;
    rows of which more is kept are drawn again, from a longer ranking.
    """
    width = min(width, logits.shape[1])
    ids = ranked(logits, width)
    head = logits.gather(1, ids).double()
    weights = ((head - head[:, :1]) / params.temperature.unsqueeze(1)).exp_()
    cumulative = weights.cumsum(-1)  # [S, width]
    kept = _count_kept(weights, cumulative, params, totals)
    mass = cumulative.gather(1, kept.clamp(max=width).unsqueeze(1) - 1)
    place = torch.searchsorted(cumulative, uniforms.unsqueeze(1) * mass, right=True)
    tokens = ids.gather(1, place).squeeze(1)
    rest = torch.nonzero(kept > width).squeeze(1)
    if len(rest):
        params = RowParams(*(value[rest] for value in params))
        tokens[rest] = draw_filtered(
            logits[rest], params, totals[rest], uniforms[rest], width * _WIDEN
        )
    return tokens


def _count_kept(weights: Tensor, cumulative: Tensor, params: RowParams, totals: Tensor) -> Tensor:
    """How many of the ranked tokens [S, W] the filters keep: int64 [S]; above W: more than these.

    weights: relative to the first, in descending order.
    """
    width = weights.shape[1]
    likely = (weights >= params.min_p.unsqueeze(1)).sum(-1)
    top_k = params.top_k.long()
    limit = torch.where(likely < width, torch.minimum(likely, top_k), top_k)
    within = cumulative.gather(1, limit.clamp(max=width).unsqueeze(1) - 1).squeeze(1)
    mass = torch.where(limit <= width, within, totals)
    reached = torch.searchsorted(cumulative, (params.top_p * mass).unsqueeze(1)).squeeze(1) + 1
    return torch.minimum(limit, reached)
