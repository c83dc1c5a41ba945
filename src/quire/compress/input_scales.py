"""Scales [K] by which a weight [N, K] is multiplied and its inputs are divided: AWQ, SmoothQuant.

AWQ: inputs that matter get finer steps, by scales s = magnitude^a with a searched on a grid; with
the weights' own magnitude as in the authors' code. (Lin et al., 2024, section 3.2)

SmoothQuant: what is hard to round in activations moves into weights, by
s = largest(|x|)^alpha / largest(|w|)^(1 - alpha). (Xiao et al., 2023, section 4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from quire.compress.code_grids import IntegerGrid
from quire.compress.foldings import Folding
from quire.compress.input_statistics import InputStatistics

_RATIOS = 20  # of exponents between 0 and 1


def best_scale(
    weight: Tensor,
    stats: InputStatistics,
    grid: IntegerGrid,
    folding: Folding,
    loss_of: Callable[[Tensor], float] | None,
) -> Tensor:
    """AWQ's scale.

    loss_of: another weight in its place; None for that of the linear layer's outputs. Of the scales
    tried, that with the least loss. All ones are among them.
    """
    best, least = torch.ones_like(stats.magnitude), float("inf")
    for scale in _candidates(weight, stats, grid, folding):
        scaled = weight * scale
        rounded = grid.numbers(grid.codes(scaled, scales := grid.scales_of(scaled)), scales)
        other = rounded / scale
        loss = stats.loss(other - weight) if loss_of is None else loss_of(other)
        if loss < least:
            best, least = scale, loss
    return best


def _candidates(
    weight: Tensor, stats: InputStatistics, grid: IntegerGrid, folding: Folding
) -> Iterator[Tensor]:
    inputs = stats.magnitude.clamp_min(1e-8)
    groups = grid.groups(weight.abs())
    own = (groups / groups.amax(2, keepdim=True).clamp_min(1e-8)).flatten(1).mean(0)
    for step in range(_RATIOS):
        ratio = step / _RATIOS
        yield _normalized(inputs**ratio, folding)
        yield _normalized(inputs**ratio / (own ** (1.0 - ratio)).clamp_min(1e-8), folding)


def _normalized(scale: Tensor, folding: Folding) -> Tensor:
    """Scales divided by one number, so that neither weights nor inputs grow much on the whole."""
    scale = folding.shared(scale.clamp(1e-4, 1e4))
    return scale / (scale.amax() * scale.amin()).sqrt()


def smoothing_scale(
    weight: Tensor, stats: InputStatistics, folding: Folding, alpha: float
) -> Tensor:
    """SmoothQuant's scale."""
    inputs, own = stats.largest.clamp_min(1e-5), weight.abs().amax(0).clamp_min(1e-5)
    return folding.shared((inputs**alpha / own ** (1.0 - alpha)).clamp(1e-4, 1e4))
