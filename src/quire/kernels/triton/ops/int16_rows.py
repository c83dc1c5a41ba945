"""Activations in INT16: which weights of four bits take them, and memory for them."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.operands import Int4Words, Int16Rows, ResidualState, Rows


def int16_for(x: Rows | ResidualState, weight: Int4Words) -> Int16Rows | None:
    """x in INT16, if it came with them and the weight takes them."""
    int16 = x.int16 if isinstance(x, ResidualState) else x
    if not isinstance(int16, Int16Rows) or not takes_int16(weight):
        return None
    return int16 if weight.zeros is None or int16.sums is not None else None


def takes_int16(weight: Int4Words) -> bool:
    """Whether rows in INT16 serve a weight: see `hopper_int16_rows`."""
    if weight.inputs % 256 or weight.group < 64:
        return False
    return weight.codebook is None and weight.permutation is None


def empty_int16(out: Tensor, *, sums: bool) -> Int16Rows:
    """Uninitialised rows in INT16, of out's shape [M, N], with their sums or not."""
    m, n = out.shape
    codes = torch.empty(m, 2, n, dtype=torch.int8, device=out.device)
    scale = torch.empty(n // 64, m, dtype=torch.float32, device=out.device)
    return Int16Rows(codes, scale, torch.empty_like(scale) if sums else None)
