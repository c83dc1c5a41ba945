"""AWQ: inputs that matter get finer steps, by scales that are searched for.

Lin et al., 2024 ("AWQ"): section 3.2, scales s = magnitude^a with a searched on a grid; with the
weights' own magnitude as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from quire.compress.foldings import Folding
from quire.compress.input_statistics import InputStatistics
from quire.compress.integer_grid import IntegerGrid

_RATIOS = 20  # of exponents between 0 and 1


def best_scale(
    weight: Tensor,
    stats: InputStatistics,
    grid: IntegerGrid,
    folding: Folding,
    loss_of: Callable[[Tensor], float],
) -> Tensor:
    """The scale [K] by which a weight [N, K] is multiplied before it is rounded.

    loss_of: another weight in its place. Of the scales tried, that with the least loss. All ones
    are among them.
    """
    best, least = torch.ones_like(stats.magnitude), float("inf")
    for scale in _candidates(weight, stats, grid, folding):
        scaled = weight * scale
        rounded = grid.numbers(grid.codes(scaled, scales := grid.scales_of(scaled)), scales)
        loss = loss_of(rounded / scale)
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
