"""Clipping limits of a weight's groups: the largest numbers lose, the others get finer steps.

Lin et al., 2024 ("AWQ"), the authors' code; here with the loss by all pairs of a group's inputs,
and with a limit for each side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from quire.compress.code_grids import GroupScales, IntegerGrid, limits

_FACTORS = (16 / 15, *(1.0 - 0.05 * step for step in range(11)))  # of extremes
# of the two sides' factors; without it the loss is 0.5 % less, and the search takes twice as long
_MOST_DIFFERENCE = 0.16
_PIECE = 1 << 22  # elements of a weight whose clipping is searched for at once


def clipped_scales(weight: Tensor, hessian: Tensor, grid: IntegerGrid) -> GroupScales:
    """Scales of a weight [N, K], each group cut off where the loss of its own outputs is least.

    hessian: the mean of x xᵀ [K, K] over tokens.
    """
    size = grid.group_size(weight.shape[1])
    blocks = _diagonal_blocks(hessian, size)
    step = max(1, _PIECE // weight.shape[1])
    parts = [_clipped(piece, blocks, grid) for piece in torch.split(weight, step)]
    scale, zero = (torch.cat([getattr(part, name) for part in parts]) for name in ("scale", "zero"))
    return GroupScales(scale, zero)


def _clipped(weight: Tensor, blocks: Tensor, grid: IntegerGrid) -> GroupScales:
    groups = grid.groups(weight)
    lowest, highest = limits(groups)
    low, high, least = lowest, highest, torch.full_like(lowest, math.inf)
    for lower, higher in _pairs(grid):
        tried = lowest * lower, highest * higher
        scales = grid.scales(*tried)
        change = grid.groups(grid.numbers(grid.codes(weight, scales), scales)) - groups
        loss = (torch.einsum("ngi,gij->ngj", change, blocks) * change).sum(2)
        better = loss < least
        least = torch.minimum(loss, least)
        low, high = (torch.where(better, *each) for each in zip(tried, (low, high), strict=True))
    return grid.scales(low, high)


def _pairs(grid: IntegerGrid) -> Iterator[tuple[float, float]]:
    """Factors of the smallest and the largest number. Symmetric scales follow from one of them."""
    most = 0.0 if grid.symmetric else _MOST_DIFFERENCE
    return ((a, b) for a in _FACTORS for b in _FACTORS if abs(a - b) <= most)


def _diagonal_blocks(hessian: Tensor, size: int) -> Tensor:
    """The blocks [G, size, size] on the diagonal of a matrix [G · size, G · size]."""
    return torch.stack(
        [hessian[at : at + size, at : at + size] for at in range(0, len(hessian), size)]
    )
