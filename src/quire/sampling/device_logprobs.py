"""Log-probabilities of sampled tokens, computed on the device and read when they have arrived.

They are those of token_logprobs.py, which has them as soon as it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.core.messages import TokenLogprobs

_ROWS = 32  # at a time: what this takes of the device's memory is bounded
_ID = 0xFFFFFFFF  # the bits of a key that are no logit's


@dataclass(frozen=True, slots=True)
class Scores:
    """Of N rows, each token's own first, then the most probable ones."""

    token_ids: Tensor  # int64 [N, 1 + W]
    logprobs: Tensor  # float32 [N, 1 + W]
    ranks: Tensor  # int64 [N]

    def on_host(self) -> Scores:
        """Start their copies to the host."""
        return Scores(_sent(self.token_ids), _sent(self.logprobs), _sent(self.ranks))

    def waited_for(self) -> Scores:
        """On the host, now."""
        return Scores(self.token_ids.cpu(), self.logprobs.cpu(), self.ranks.cpu())

    def report(self, num_logprobs: list[int]) -> list[TokenLogprobs]:
        """Log-probabilities to report for each row, so many of the most probable; on the host."""
        columns = (self.token_ids.tolist(), self.logprobs.tolist(), self.ranks.tolist())
        return [
            TokenLogprobs(ids[: count + 1], values[: count + 1], rank)
            for count, ids, values, rank in zip(num_logprobs, *columns, strict=True)
        ]


def score(logits: Tensor, rows: Tensor, token_ids: Tensor, width: int) -> Scores:
    """Scores of tokens [N] by these rows, int64 [N], of raw logits [S, V] of any float type.

    width: how many of the most probable tokens are wanted. Ties are in the order of their ids.
    """
    width = min(width, logits.shape[1])
    parts = [
        _score(logits.index_select(0, some).float(), own.long().unsqueeze(1), width)
        for some, own in zip(torch.split(rows, _ROWS), torch.split(token_ids, _ROWS), strict=True)
    ]
    return Scores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _score(logits: Tensor, own: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    ranks = 1 + (logits > logits.gather(1, own)).sum(1)
    ids = torch.cat([own, _best(logits, width)], dim=1)
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
