"""Clipping limits of a weight's groups: the largest numbers lose, the others get finer steps.

Lin et al., 2024 ("AWQ"), the authors' code; here with the loss by all pairs of a group's inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.compress.integer_grid import GroupScales, IntegerGrid, limits

_FACTORS = (16 / 15, *(1.0 - 0.05 * step for step in range(11)))  # of extremes
_PIECE = 1 << 22  # elements of a weight whose clipping is searched for at once


def clipped_scales(weight: Tensor, hessian: Tensor, grid: IntegerGrid) -> GroupScales:
    """Scales of a weight [N, K], each group cut off where the loss of its own outputs is least.

    hessian: the mean of x xᵀ [K, K] over tokens.
    """
    size = grid.group_size(weight.shape[1])
    blocks = _diagonal_blocks(hessian, size)
    step = max(1, _PIECE // weight.shape[1])
    parts = [_clipped(piece, blocks, grid) for piece in torch.split(weight, step)]
    return GroupScales(*(torch.cat(each) for each in zip(*parts, strict=True)))


def _clipped(weight: Tensor, blocks: Tensor, grid: IntegerGrid) -> tuple[Tensor, Tensor]:
    groups = grid.groups(weight)
    low, high = limits(groups)
    best: GroupScales | None = None
    for factor in _FACTORS:
        scales = grid.scales(low * factor, high * factor)
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
