"""The second part of fused linear operations: SiLU, or the sum with the residual and a norm.

`rounds`: as what rows of eight bits the next linear operation takes the result; None for 16 bits.
"""

from __future__ import annotations

from torch import Tensor

from quire.kernels.byte_operands import BlockRows
from quire.kernels.operands import ResidualState, RoundedRows, Rows
from quire.kernels.triton.step.block_rounding import silu_and_mul_blocks
from quire.kernels.triton.step.elementwise import (
    rms_norm_residual,
    rms_norm_residual_rounded,
    silu_and_mul,
    silu_and_mul_rounded,
)


def silu_rows(out: Tensor, *, rounds: type[RoundedRows] | None) -> Rows:
    """silu(gate) · up of interleaved gates and ups: [T, 2I] → [T, I]."""
    if rounds is None:
        return silu_and_mul(out, interleaved=True)
    if issubclass(rounds, BlockRows):
        return silu_and_mul_blocks(out, rounds)
    return silu_and_mul_rounded(out, rounds)


def add_norm(
    out: Tensor,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    *,
    rounds: type[RoundedRows] | None,
) -> ResidualState:
    """residual [T, H] + out, and its norm's result."""
    rows: Rows
    if rounds is None:
        rows, residual = rms_norm_residual(out, residual, norm_weight, eps)
    else:
        rows, residual = rms_norm_residual_rounded(out, residual, norm_weight, eps, rounds)
    return ResidualState(residual, rows, norm_weight, eps)
