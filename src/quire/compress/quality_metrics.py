"""Loss of a quantized model against its base: perplexity, KL divergence, cosine similarity.

Intervals are those of a block bootstrap over samples: tokens of one sample depend on each other.
(Efron & Tibshirani, 1993; KL divergence and same-top-1 as llama.cpp's `perplexity` has them)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_DRAWS = 2000
_BOUNDS = torch.tensor([0.025, 0.975])
_LEAST = -1e4  # of a log-probability, which may be minus infinity
_MOST_LOSS = 30.0  # whose power is a perplexity, 10^13: larger ones say no more

Interval = tuple[float, float]


@dataclass(slots=True)
class AnswerMetrics:
    """Perplexity, KL divergence and same-top-1 of logits, collected sample by sample."""

    losses: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # base, quantized: [T - 1]
    divergences: list[Tensor] = field(default_factory=list)  # [T]
    same: list[Tensor] = field(default_factory=list)  # [T]

    def add(self, ids: list[int], base: Tensor, quantized: Tensor) -> None:
        """Add a sample. base, quantized: logits [T, V]."""
        right, ours = (each.log_softmax(-1).clamp_min(_LEAST) for each in (base, quantized))
        following = torch.tensor(ids[1:], device=base.device)[:, None]
        base_loss, loss = (-each[:-1].gather(1, following)[:, 0].cpu() for each in (right, ours))
        self.losses.append((base_loss, loss))
        self.divergences.append((right.exp() * (right - ours)).sum(-1).clamp_min(0.0).cpu())
        self.same.append((right.argmax(-1) == ours.argmax(-1)).float().cpu())

    def report(self) -> dict[str, Any]:
        """All figures, as JSON has them."""
        means = (torch.cat(part).mean().item() for part in zip(*self.losses, strict=True))
        base, ours = (min(mean, _MOST_LOSS) for mean in means)
        changes = [ours - base for base, ours in self.losses]
        divergence, low_high = torch.cat(self.divergences), interval(changes)
        return {
            "perplexity": {
                "base": math.exp(base),
                "quantized": math.exp(ours),
                "change": math.expm1(ours - base),
                "change_95": [math.expm1(min(bound, _MOST_LOSS)) for bound in low_high],
            },
            "kl_divergence": {
                "mean": divergence.mean().item(),
                "p99": quantile(divergence, 0.99),
            },
            "same_top_1": {
                "share": torch.cat(self.same).mean().item(),
                "share_95": interval(self.same),
            },
        }


def finite(states: list[Tensor], position: str, figures: dict[str, Any]) -> list[Tensor]:
    """Tensors with zeros for NaN and infinite numbers; their first position is a figure.

    So a model that computes no numbers has a report, by which it is refused.
    """
    is_finite = [bool(state.isfinite().all()) for state in states]
    if all(is_finite):
        return states
    figures.setdefault("not_finite", position)
    return [state.nan_to_num(0.0, 0.0, 0.0) for state in states]


def interval(samples: list[Tensor]) -> Interval:
    """Between what 95 % of means lie if whole samples are drawn anew, with repetition."""
    sums = torch.tensor([sample.sum().item() for sample in samples])
    counts = torch.tensor([float(len(sample)) for sample in samples])
    drawn = torch.randint(
        len(samples), (_DRAWS, len(samples)), generator=torch.Generator().manual_seed(0)
    )
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = means.quantile(_BOUNDS).tolist()
    return low, high


def quantile(values: Tensor, share: float) -> float:
    """A quantile of any number of values [N]."""
    ordered = values.flatten().sort().values
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))].item()


def cosine_similarity(base: list[Tensor], quantized: list[Tensor]) -> dict[str, float]:
    """Cosine similarities of samples' hidden states [T, H]: their mean, and the 1st percentile."""
    found = [F.cosine_similarity(a, b, dim=-1) for a, b in zip(base, quantized, strict=True)]
    cosines = torch.cat(found).cpu()
    return {"mean": cosines.mean().item(), "p1": quantile(cosines, 0.01)}


def pooled_cosine_similarity(
    base: list[Tensor], quantized: list[Tensor], pooling: str
) -> dict[str, float]:
    """Cosine similarities of samples' states [T, H] as embeddings pool them: mean and least.

    pooling: "last" for the last state, "mean" for the mean.
    """
    pooled = [
        [own[-1] if pooling == "last" else own.mean(0) for own in all_of]
        for all_of in (base, quantized)
    ]
    found = [F.cosine_similarity(a, b, dim=0) for a, b in zip(*pooled, strict=True)]
    cosines = torch.stack(found).cpu()
    return {"mean": cosines.mean().item(), "least": cosines.min().item()}
