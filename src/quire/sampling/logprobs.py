"""Log-probabilities of the model's own distribution, before any wish changed it.

Owns what is reported for a position: the token itself with its rank, then the most probable
tokens. Does not own how they are drawn, nor how they are shown.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.core.messages import TokenLogprobs
from quire.kernels.cpu.elementwise import PIECE
from quire.sampling.blocks import Rows
from quire.sampling.ranking import ranked


def token_logprobs(
    logits: Tensor, token_ids: list[int], num_logprobs: list[int]
) -> list[TokenLogprobs]:
    """What to report for each row of raw float32 logits [N, V].

    token_ids [N]: the tokens that were drawn or given. num_logprobs [N]: how many of the most
    probable tokens follow the token itself, which may be among them again. They are in descending
    order, ties in that of their ids. A token that cannot occur has -inf.
    """
    size = max(1, PIECE // logits.shape[1])  # which also bounds what it takes of memory
    report: list[TokenLogprobs] = []
    for begin in range(0, len(token_ids), size):
        part = slice(begin, begin + size)
        report += _report(logits[part], token_ids[part], num_logprobs[part])
    return report


def prompt_logprobs(
    logits: Tensor, next_token_ids: list[int], num_logprobs: int
) -> list[TokenLogprobs]:
    """What to report for prompt tokens: raw float32 logits [N, V] and the tokens after them [N]."""
    return token_logprobs(logits, next_token_ids, [num_logprobs] * len(next_token_ids))


def _report(logits: Tensor, token_ids: list[int], num_logprobs: list[int]) -> list[TokenLogprobs]:
    logprobs = torch.log_softmax(logits, dim=-1)
    ids = torch.tensor(token_ids, device=logits.device).unsqueeze(1)  # [N, 1]
    pairs = zip(logits.cpu().numpy(), logits.gather(1, ids).cpu().numpy(), strict=True)
    ranks = [1 + int(np.count_nonzero(row > own)) for row, own in pairs]
    width = min(max(num_logprobs), logits.shape[1])
    if width:
        top, _ = ranked(Rows.of(logits), width)
        ids = torch.cat([ids, torch.from_numpy(top).to(logits.device)], dim=1)
    columns = (ids.tolist(), logprobs.gather(1, ids).tolist(), ranks)
    return [
        TokenLogprobs(row_ids[: count + 1], values[: count + 1], rank)
        for count, row_ids, values, rank in zip(num_logprobs, *columns, strict=True)
    ]
