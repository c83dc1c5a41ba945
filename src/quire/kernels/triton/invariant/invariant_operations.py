"""Batch-invariant operations: results do not depend on the rest of the batch, bit for bit.

Of the other operations three things depend on it: the number of rows chooses a GEMM's kernel and
how its sums are split; the batch decides how a request's keys are partitioned among programs; and
prompt tokens and answer tokens have different attention kernels, so a preemption, after which
answer tokens are computed again as part of a prompt, changes results. Here every GEMM adds its
terms in the order of k, and every token merges the same splits of its keys in order. Norms, SiLU,
RoPE, rounding to FP8 and sampling work row by row anyway. (Why results vary: H. He et al.,
"Defeating Nondeterminism in LLM Inference", 2025.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from quire.kernels.operands import ResidualState, Rows
from quire.kernels.triton.invariant.invariant_attention import attention
from quire.kernels.triton.ops.after_linear import add_norm, silu_rows
from quire.kernels.triton.ops.linear_table import GpuWeight, linear_of, pack_unread, quantize_unread
from quire.kernels.triton.ops.rounded_rows import rows_for
from quire.kernels.triton.step.elementwise import gelu_and_mul

# operations that are batch-invariant as they are
_BY_ROW = {
    "rms_norm", "rms_norm_residual", "silu_and_mul", "gelu_and_mul", "rope_angles", "embedding",
    "rope_write_kv", "build_inputs", "finish_step", "move", "penalise", "normalized_rows",
    "order_gate_up",
}  # fmt: skip


def linear(x: Rows, weight: GpuWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`: x [T, K], weight [N, K] → [T, N]."""
    return linear_of(weight).invariant_linear(x, weight, bias)


def rms_norm_linear(x: ResidualState, weight: GpuWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.rms_norm_linear`."""
    return linear(rows_for(x, linear_of(weight).rows_of(weight)), weight, bias)


def linear_silu(
    x: ResidualState, weight: GpuWeight, bias: Tensor | None, rounds: bool = True
) -> Rows:
    """Twin of `reference.linear_silu`, for interleaved gate and up rows."""
    out = rms_norm_linear(x, weight, bias)
    return silu_rows(out, rounds=linear_of(weight).rounded(out, weight) if rounds else None)


def linear_gelu(x: ResidualState, weight: GpuWeight, bias: Tensor | None) -> Rows:
    """Twin of `reference.linear_gelu`, for interleaved gate and up rows."""
    return gelu_and_mul(rms_norm_linear(x, weight, bias), interleaved=True)


def linear_add_norm(
    x: Rows,
    weight: GpuWeight,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
) -> ResidualState:
    """Twin of `reference.linear_add_norm`."""
    out = linear(x, weight, bias)
    return add_norm(out, residual, norm_weight, eps, rounds=linear_of(weight).rounded(out, weight))


def invariant(operations: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """A device's operations with batch-invariant ones in place of those that are not."""
    by_row = {op: function for op, function in operations.items() if op in _BY_ROW}
    return by_row | {
        "pack": pack_unread, "quantize": quantize_unread, "linear": linear,
        "rms_norm_linear": rms_norm_linear, "linear_silu": linear_silu, "linear_gelu": linear_gelu,
        "linear_add_norm": linear_add_norm, "attention": attention,
    }  # fmt: skip
