"""Log-probabilities of drawn tokens, computed on a device and read after their copy has arrived.

The same as token_logprobs.py computes on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.core.messages import TokenLogprobs

_ROWS = 32  # at a time, to bound the device memory
_ID = 0xFFFFFFFF  # the bits of a sort key that hold the token id


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of N rows: the drawn token first, then W others."""

    token_ids: Tensor  # int64 [N, 1 + W]
    logprobs: Tensor  # float32 [N, 1 + W]
    ranks: Tensor  # int64 [N]

    def on_host(self) -> Scores:
        """Start the copies of the scores to the host."""
        return Scores(_sent(self.token_ids), _sent(self.logprobs), _sent(self.ranks))

    def report(self, num_logprobs: list[int]) -> list[TokenLogprobs]:
        """TokenLogprobs of each row with its number of top tokens; copies have to have arrived."""
        columns = (self.token_ids.tolist(), self.logprobs.tolist(), self.ranks.tolist())
        return [
            TokenLogprobs(ids[: count + 1], values[: count + 1], rank)
            for count, ids, values, rank in zip(num_logprobs, *columns, strict=True)
        ]


def score(logits: Tensor, rows: Tensor, token_ids: Tensor, width: int) -> Scores:
    """Log-probabilities of tokens [N] in rows int64 [N] of raw logits [S, V] of any float type.

    width: the number of most probable tokens to add. Ties are in the order of token ids.
    """
    width = min(width, logits.shape[1])
    parts = []
    for some, own in zip(torch.split(rows, _ROWS), torch.split(token_ids, _ROWS), strict=True):
        values = logits.index_select(0, some).float()
        parts.append(_score(values, own, _best(values, width)))
    return _joined(parts)


def score_named(logits: Tensor, rows: Tensor, token_ids: Tensor, named: Tensor) -> Scores:
    """As `score`, but followed by the tokens that each row names: int64 [N, W]."""
    columns = (torch.split(values, _ROWS) for values in (rows, token_ids, named))
    parts = [
        _score(logits.index_select(0, some).float(), own, others)
        for some, own, others in zip(*columns, strict=True)
    ]
    return _joined(parts)


_Part = tuple[Tensor, Tensor, Tensor]


def _joined(parts: list[_Part]) -> Scores:
    return Scores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _score(logits: Tensor, token_ids: Tensor, others: Tensor) -> _Part:
    own = token_ids.long().unsqueeze(1)
    ranks = 1 + (logits > logits.gather(1, own)).sum(1)
    ids = torch.cat([own, others], dim=1)
    return ids, logits.log_softmax(-1).gather(1, ids), ranks


def _best(logits: Tensor, width: int) -> Tensor:
    """The ids of the most probable tokens of each row: [N, width]."""
    bits = (logits + 0.0).view(torch.int32)  # a copy in which minus zero equals zero
    bits ^= (bits >> 31) & 0x7FFFFFFF  # the order of floats as that of integers
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = (bits.long() << 32) | (_ID - ids)
    found: Tensor = _ID - (keys.topk(width, dim=1).values & _ID)
    return found


def _sent(values: Tensor) -> Tensor:
    if values.device.type != "cuda":
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)
