"""AWQ: inputs that matter get finer steps, by scales that are searched for.

Lin et al., 2024 ("AWQ"): section 3.2, scales s = magnitude^a with a searched on a grid; with the
weights' own magnitude as in the authors' code; then the clipping of each group's extremes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from quire.compress.foldings import Folding
from quire.compress.input_statistics import InputStatistics
from quire.compress.integer_grid import GroupScales, IntegerGrid, limits

_RATIOS = 20  # of exponents between 0 and 1
_SHRINKS = tuple(1.0 - 0.05 * step for step in range(11))
_PIECE = 1 << 22  # elements of a weight whose clipping is searched for at once


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
    """So that neither weights nor inputs grow much on the whole."""
    scale = folding.shared(scale.clamp(1e-4, 1e4))
    return scale / (scale.amax() * scale.amin()).sqrt()


def clipped_scales(weight: Tensor, stats: InputStatistics, grid: IntegerGrid) -> GroupScales:
    """Scales of a weight's groups, each cut off where the loss of its own outputs is least."""
    size = grid.group_size(weight.shape[1])
    blocks = _diagonal_blocks(stats.hessian, size)
    step = max(1, _PIECE // weight.shape[1])
    parts = [_clipped(piece, blocks, grid) for piece in torch.split(weight, step)]
    return GroupScales(*(torch.cat(each) for each in zip(*parts, strict=True)))


def _clipped(weight: Tensor, blocks: Tensor, grid: IntegerGrid) -> tuple[Tensor, Tensor]:
    groups = grid.groups(weight)
    low, high = limits(groups)
    best: GroupScales | None = None
    for shrink in _SHRINKS:
        scales = grid.scales(low * shrink, high * shrink)
        change = grid.groups(grid.numbers(grid.codes(weight, scales), scales)) - groups
        loss = (torch.einsum("ngi,gij->ngj", change, blocks) * change).sum(2)
        if best is None:
            best, least = scales, loss
            continue
        better = loss < least
        least = torch.minimum(loss, least)
        best = GroupScales(
            torch.where(better, scales.scale, best.scale),
            torch.where(better, scales.zero, best.zero),
        )
    assert best is not None
    return best.scale, best.zero


def _diagonal_blocks(hessian: Tensor, size: int) -> Tensor:
    """The blocks [G, size, size] on the diagonal of a matrix [G · size, G · size]."""
    return torch.stack(
        [hessian[at : at + size, at : at + size] for at in range(0, len(hessian), size)]
    )
