"""Activations in two bytes a number: which weights of four bits take them, and memory for them."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.operands import Int4Words, ResidualState, Rows, SplitRows


def halves_for(x: Rows | ResidualState, weight: Int4Words) -> SplitRows | None:
    """x in two bytes a number, if it came with them and the weight takes them."""
    halves = x.halves if isinstance(x, ResidualState) else x
    if not isinstance(halves, SplitRows) or not takes_halves(weight):
        return None
    return halves if weight.zeros is None or halves.sums is not None else None


def takes_halves(weight: Int4Words) -> bool:
    """Whether rows in two bytes a number serve a weight: see `hopper_int4_bytes`."""
    if weight.inputs % 256 or weight.group < 64:
        return False
    return weight.codebook is None and weight.permutation is None


def empty_halves(out: Tensor, *, sums: bool) -> SplitRows:
    """Uninitialised rows in two bytes a number, of out's shape [M, N], with their sums or not."""
    m, n = out.shape
    codes = torch.empty(m, 2, n, dtype=torch.int8, device=out.device)
    scale = torch.empty(n // 64, m, dtype=torch.float32, device=out.device)
    return SplitRows(codes, scale, torch.empty_like(scale) if sums else None)
