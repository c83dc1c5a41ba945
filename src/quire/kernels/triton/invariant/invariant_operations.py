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

import torch
from torch import Tensor

from quire.kernels.operands import (
    Fp8Rows,
    Fp8Weight,
    Int4Words,
    Int8Rows,
    Int8Weight,
    ResidualState,
    RoundedRows,
    Rows,
)
from quire.kernels.triton.invariant.invariant_attention import attention
from quire.kernels.triton.ops.after_linear import add_norm, silu_rows
from quire.kernels.triton.ops.int4_linear import widened
from quire.kernels.triton.ops.invariant_gemm import invariant_gemm
from quire.kernels.triton.ops.rounded_rows import rows_for, rows_of
from quire.kernels.triton.ops.skinny_gemm import GpuWeight, multiplies_fp8
from quire.kernels.triton.step.elementwise import (
    gelu_and_mul,
    quantize_rows,
)

# operations that are batch-invariant as they are
_BY_ROW = {
    "rms_norm", "rms_norm_residual", "silu_and_mul", "gelu_and_mul", "rope_angles", "rope_write_kv",
    "build_inputs", "finish_step", "move", "penalise", "normalized_rows", "order_gate_up",
}  # fmt: skip


def linear(x: Rows, weight: GpuWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`: x [T, K], weight [N, K] → [T, N]."""
    if isinstance(weight, Fp8Weight):
        return linear_fp8(x, weight.codes, weight.scale, bias)
    if isinstance(weight, Int8Weight):
        return _linear_int8(x, weight, bias)
    x = x if isinstance(x, Tensor) else x.widened()
    if isinstance(weight, Int4Words):
        x = x if weight.permutation is None else x[:, weight.permutation]
        weight = widened(weight, x.dtype)
    return invariant_gemm(x, None, weight, None, bias, x.dtype)


def _linear_int8(x: Rows, weight: Int8Weight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear_int8`: each row of x is rounded to bytes with its own scale."""
    dtype = x.dtype if isinstance(x, Tensor) else torch.bfloat16
    if not isinstance(x, Int8Rows):
        x = quantize_rows(x if isinstance(x, Tensor) else x.widened(), Int8Rows)
    return invariant_gemm(x.codes, x.scale, weight.codes, weight.scale, bias, dtype)


def linear_fp8(x: Rows, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear_fp8`: x [T, K], codes [N, K] → [T, N].

    Where the GPU multiplies FP8 by FP8, each row of x is rounded to FP8 with its own scale; else
    codes are converted to x's dtype.
    """
    x = x if isinstance(x, Tensor | Fp8Rows) else x.widened()
    if isinstance(x, Fp8Rows):
        return invariant_gemm(x.codes, x.scale, codes, scale, bias, torch.bfloat16)
    if not _rounds(x) or len(x) == 0:
        return invariant_gemm(x, None, codes, scale, bias, x.dtype)
    rows = quantize_rows(x)
    return invariant_gemm(rows.codes, rows.scale, codes, scale, bias, x.dtype)


def _rounds(x: Tensor) -> bool:
    """Whether rows like x are rounded to FP8 before a linear layer whose weight is in FP8."""
    return x.dtype != torch.float32 and multiplies_fp8(x.device)


def rms_norm_linear(x: ResidualState, weight: GpuWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.rms_norm_linear`."""
    return linear(rows_for(x, rows_of(weight)), weight, bias)


def linear_silu(
    x: ResidualState, weight: GpuWeight, bias: Tensor | None, rounds: bool = True
) -> Rows:
    """Twin of `reference.linear_silu`, for interleaved gate and up rows."""
    out = rms_norm_linear(x, weight, bias)
    return silu_rows(out, rounds=_rounds_next(out, weight) if rounds else None)


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
    return add_norm(out, residual, norm_weight, eps, rounds=_rounds_next(out, weight))


def _rounds_next(out: Tensor, weight: GpuWeight) -> type[RoundedRows] | None:
    """As which rows what is computed from a linear layer's result should be stored."""
    rounds = out.dtype == torch.bfloat16 and (isinstance(weight, Int8Weight) or _rounds(out))
    return rows_of(weight) if rounds else None


def invariant(operations: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """A device's operations with batch-invariant ones in place of those that are not."""
    by_row = {op: function for op, function in operations.items() if op in _BY_ROW}
    return by_row | {
        "linear": linear, "rms_norm_linear": rms_norm_linear, "linear_silu": linear_silu,
        "linear_gelu": linear_gelu, "linear_add_norm": linear_add_norm, "attention": attention,
    }  # fmt: skip
