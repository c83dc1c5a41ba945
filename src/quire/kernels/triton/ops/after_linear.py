"""What follows a linear operation in fused ones: SiLU, or the sum with the residual and a norm.

`rounds`: whether the result becomes FP8 rows for the next linear operation.
"""

from __future__ import annotations

from torch import Tensor

from quire.kernels.operands import ResidualState, Rows
from quire.kernels.triton.step.elementwise import (
    rms_norm_residual,
    rms_norm_residual_fp8,
    silu_and_mul,
    silu_and_mul_fp8,
)


def silu_rows(out: Tensor, *, rounds: bool) -> Rows:
    """silu(gate) · up of interleaved gates and ups: [T, 2I] → [T, I]."""
    return silu_and_mul_fp8(out) if rounds else silu_and_mul(out, interleaved=True)


def add_norm(
    out: Tensor, residual: Tensor, norm_weight: Tensor, eps: float, *, rounds: bool
) -> ResidualState:
    """residual [T, H] + out, and its norm's result."""
    normalise = rms_norm_residual_fp8 if rounds else rms_norm_residual
    rows, residual = normalise(out, residual, norm_weight, eps)
    return ResidualState(residual, rows, norm_weight, eps)
