"""Linears with weights in INT8 on a GPU, activations rounded to bytes: what serves which rows.

Floor: as of FP8. Tensor cores sum products of bytes exactly, and at the same rate. Weights are not
Hadamard-rotated: activations would have to be rotated in every kernel that rounds them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import Int8Rows, Int8Weight, RoundedRows, Rows
from quire.kernels.triton.gemm.gemm_tuning import bytes_gemm_config
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.gpu_linear import ByteLinear, Operand
from quire.kernels.triton.ops.invariant_gemm import invariant_gemm
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu
from quire.kernels.triton.ops.rounded_rows import has_aligned_sizes
from quire.kernels.triton.step.elementwise import quantize_rows


class _Int8Linear(ByteLinear[Int8Weight]):
    """Weights in signed bytes."""

    def operand(self, weight: Int8Weight) -> Operand:
        return weight.codes, weight.scale, "codes"

    def rows_of(self, weight: Int8Weight, rows: int = 0) -> type[RoundedRows]:  # noqa: ARG002
        return Int8Rows

    def rounded(self, out: Tensor, weight: Int8Weight) -> type[RoundedRows] | None:  # noqa: ARG002
        return Int8Rows if out.dtype == torch.bfloat16 else None

    def rounds_next(self, out: Tensor, weight: Int8Weight) -> type[RoundedRows] | None:
        return None if len(out) <= self.most_few(out.dtype, weight) else self.rounded(out, weight)

    def linear(self, x: Rows, weight: Int8Weight, bias: Tensor | None) -> Tensor:
        """Twin of `reference.linear_int8`: x [T, K] → [T, N]."""
        if isinstance(x, RoundedRows):
            rows = x if isinstance(x, Int8Rows) else quantize_rows(x.dequantize(), Int8Rows)
            return multiply_int8(rows, weight, bias, torch.bfloat16)
        if x.dtype == torch.float32 or x.stride(1) != 1:
            return reference.linear(x, weight, bias)
        if self.is_few(x, weight):
            return self.launch(x, weight, bias).out
        return multiply_int8(quantize_rows(x, Int8Rows), weight, bias, x.dtype)

    def invariant_linear(self, x: Rows, weight: Int8Weight, bias: Tensor | None) -> Tensor:
        """Twin of `reference.linear_int8`: each row of x is rounded to bytes with its own scale."""
        dtype = x.dtype if isinstance(x, Tensor) else torch.bfloat16
        if not isinstance(x, Int8Rows):
            x = quantize_rows(x if isinstance(x, Tensor) else x.dequantize(), Int8Rows)
        return invariant_gemm(x.codes, x.scale, weight.codes, weight.scale, bias, dtype)


INT8 = _Int8Linear()


def multiply_int8(
    x: RoundedRows, weight: Int8Weight, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Bytes by bytes [T, K] · [N, K]ᵀ, times both scales, + bias → [T, N] of dtype.

    By Hopper's split-K kernel where tiles of whole sums would leave multiprocessors idle.
    """
    (m, _), (n, k), device = x.codes.shape, weight.codes.shape, weight.codes.device
    if dtype == torch.bfloat16 and has_hopper_gpu(device) and has_aligned_sizes(weight.codes):
        config = bytes_gemm_config(m, n, k, workspace(device).num_sms)
        if config is not None:
            from quire.kernels.triton.hopper.hopper_fp8_gemm import multiply_rows

            return multiply_rows(x, weight.codes, weight.scale, bias, config)
    return invariant_gemm(x.codes, x.scale, weight.codes, weight.scale, bias, dtype)
