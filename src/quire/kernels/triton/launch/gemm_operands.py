"""The operands of GEMMs whose results are added in one order, or by split k."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class GemmOperands(NamedTuple):
    """out [T, N] = x [T, K] · weight [N, K]ᵀ + bias [N].

    x_scale float32 [T, 1], scale float32 [N]: of operands in eight bits, else None.
    """

    x: Tensor
    x_scale: Tensor | None
    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None
    out: Tensor
