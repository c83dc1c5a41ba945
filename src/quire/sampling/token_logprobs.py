"""Log-probabilities of the model's raw distribution, before logits processors.

Owns what is reported for a position: its token with the rank, then the most probable tokens, or
those that the request names.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Floats, Ints, Logits
from quire.core.messages import TokenLogprobs
from quire.kernels import reference_arrays, sampling_math
from quire.sampling.logit_blocks import Rows
from quire.sampling.ranking import ranked


def token_logprobs(
    logits: Logits, token_ids: list[int], num_logprobs: list[int]
) -> list[TokenLogprobs]:
    """TokenLogprobs for each row of raw float32 logits [N, V].

    token_ids [N]: the tokens that were drawn or given. num_logprobs [N]: how many of the most
    probable tokens follow the token itself, which may be among them again. They are in descending
    order, ties in that of their ids. A token that cannot occur has -inf.
    """
    report: list[TokenLogprobs] = []
    for part in reference_arrays.few_rows(*logits.shape):  # to bound the memory
        report += _report(logits[part], token_ids[part], num_logprobs[part])
    return report


def with_named(logits: Logits, found: TokenLogprobs, named: Ints) -> TokenLogprobs:
    """The log-probability of a position's own token, followed by those of `named` [N].

    logits: raw float32 [1, V]. found: of the position, without any other token.
    """
    logprobs = _logprobs(Rows.of(logits), named[None]).tolist()[0]
    return TokenLogprobs(
        [*found.token_ids, *named.tolist()], [*found.logprobs, *logprobs], found.rank
    )


def _report(logits: Logits, token_ids: list[int], num_logprobs: list[int]) -> list[TokenLogprobs]:
    rows = Rows.of(logits)
    ids = np.array(token_ids, np.int64)[:, None]  # [N, 1]
    own = np.take_along_axis(logits, ids, axis=1)
    ranks = [1 + int(np.count_nonzero(row > x)) for row, x in zip(logits, own, strict=True)]
    if width := min(max(num_logprobs), logits.shape[1]):
        ids = np.concatenate([ids, ranked(rows, width)[0]], axis=1)
    columns = (ids.tolist(), _logprobs(rows, ids).tolist(), ranks)
    return [
        TokenLogprobs(row_ids[: count + 1], values[: count + 1], rank)
        for count, row_ids, values, rank in zip(num_logprobs, *columns, strict=True)
    ]


def _logprobs(rows: Rows, ids: Ints) -> Floats:
    """The log-softmax at these tokens [N, K], to 2e-6: exactly summed weights need one pass."""
    with np.errstate(divide="ignore", invalid="ignore"):  # rows that failed
        totals = rows.masses(np.ones(len(rows))).sum(axis=1) / sampling_math.ONE
        bases = rows.peaks + np.log(totals)  # float64
        logprobs: Floats = np.take_along_axis(rows.logits, ids, axis=1) - bases[:, None]
    return logprobs
