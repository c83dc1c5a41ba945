"""Weights and targets for inputs that have errors, so that outputs come nearer to the exact ones.

Li et al., 2025 ("GPTAQ"): outputs should be W x for the inputs x of the model that is not
quantized, not W x̃ for those that rounded layers lead to. Here in closed form, before the weight is
rounded, or as what learned rounding aims at.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.compress.input_statistics import InputStatistics, damped

# of the way to the exact outputs; all of it follows the calibration text too closely
_SHARE = 0.5


def corrected(weight: Tensor, stats: InputStatistics, damping: float) -> Tensor:
    """A weight W [N, K] changed towards the least mean of ||(W + Δ) x̃ - W x||²."""
    lower, failed = torch.linalg.cholesky_ex(damped(stats.hessian, damping))
    if failed or stats.errors is None:  # GPTQ then damps more, or says what is wrong
        return weight
    change = torch.cholesky_solve((weight @ stats.errors).t(), lower).t()
    return weight + _SHARE * change


def corrected_targets(outputs: list[Tensor], exact: list[Tensor]) -> list[Tensor]:
    """The hidden states [T, H] after a decoder layer that it is rounded for, of each sample.

    outputs: those before it is rounded, of inputs with errors. exact: those of exact inputs.
    """
    return [own.lerp(other, _SHARE) for own, other in zip(outputs, exact, strict=True)]
