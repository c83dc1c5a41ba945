"""Linears with weights in FP8 on a GPU: which config serves which number of rows.

Floor: for few rows the bytes of W, half of 16 bits'; for many, twice the tensor cores' 16-bit rate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import Fp8Rows, Fp8Weight, RoundedRows, Rows
from quire.kernels.reference_arrays import few_rows
from quire.kernels.triton.gemm.gemm_tuning import fp8_gemm_config, library_is_faster
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.gpu_linear import ByteLinear, Operand
from quire.kernels.triton.ops.invariant_gemm import invariant_gemm
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu
from quire.kernels.triton.ops.rounded_rows import has_aligned_sizes, multiplies_fp8
from quire.kernels.triton.step.elementwise import quantize_rows

_PIECE = 2**23  # numbers of a weight that are dequantized at a time, in float32 first


class _Fp8Linear(ByteLinear[Fp8Weight]):
    """Weights in FP8, with x rounded to it if the weight says so and the GPU multiplies FP8."""

    def operand(self, weight: Fp8Weight) -> Operand:
        if _is_rounded_for(weight):
            return weight.codes, weight.scale, "codes"
        return weight.codes.view(torch.uint8), weight.scale, "bytes"

    def rows_of(self, weight: Fp8Weight, rows: int = 0) -> type[RoundedRows] | None:  # noqa: ARG002
        return Fp8Rows if weight.rounds else None

    def rounded(self, out: Tensor, weight: Fp8Weight) -> type[RoundedRows] | None:
        return Fp8Rows if out.dtype == torch.bfloat16 and _is_rounded_for(weight) else None

    def rounds_next(self, out: Tensor, weight: Fp8Weight) -> type[RoundedRows] | None:
        if not weight.rounds or len(out) <= self.most_few(out.dtype, weight):
            return None
        return Fp8Rows if library_multiplies(out, weight.codes) else None

    def linear(self, x: Rows, weight: Fp8Weight, bias: Tensor | None) -> Tensor:
        """Twin of `reference.linear_fp8`."""
        codes, scale = weight.codes, weight.scale
        if isinstance(x, RoundedRows):
            if isinstance(x, Fp8Rows) and weight.rounds and has_aligned_sizes(codes):
                return many_rows(x, codes, scale, bias)
            x = x.dequantize()
        if x.dtype not in (torch.bfloat16, torch.float16) or x.stride(1) != 1:
            return reference.linear_fp8(x, codes, scale, bias)
        if len(x) == 0:
            return x.new_empty(0, len(codes))
        has_library = weight.rounds and library_multiplies(x, codes)
        few = self.is_few(x, weight)
        if few and not (has_library and _library_is_faster(len(x), codes)):
            return self.launch(x, weight, bias).out
        if has_library:
            return many_rows(quantize_rows(x), codes, scale, bias)
        return _linear_dequantized(x, codes, scale, bias)

    def invariant_linear(self, x: Rows, weight: Fp8Weight, bias: Tensor | None) -> Tensor:
        """Twin of `reference.linear_fp8`, each row rounded with a scale of its own.

        Where the GPU does not multiply FP8 by FP8, codes are converted to x's dtype.
        """
        codes, scale = weight.codes, weight.scale
        if isinstance(x, RoundedRows) and not (isinstance(x, Fp8Rows) and weight.rounds):
            x = x.dequantize()
        if isinstance(x, RoundedRows):
            return invariant_gemm(x.codes, x.scale, codes, scale, bias, torch.bfloat16)
        if x.dtype == torch.float32 or not _is_rounded_for(weight) or len(x) == 0:
            codes = codes if multiplies_fp8(codes.device) else codes.view(torch.uint8)
            return invariant_gemm(x, None, codes, scale, bias, x.dtype)
        rows = quantize_rows(x)
        return invariant_gemm(rows.codes, rows.scale, codes, scale, bias, x.dtype)


FP8 = _Fp8Linear()


def _is_rounded_for(weight: Fp8Weight) -> bool:
    """Whether x is rounded to FP8 before it is multiplied."""
    return weight.rounds and multiplies_fp8(weight.codes.device)


def library_multiplies(x: Tensor, codes: Tensor) -> bool:
    """Whether PyTorch's scaled matmul supports these operands in FP8."""
    return has_aligned_sizes(codes) and x.dtype == torch.bfloat16 and multiplies_fp8(x.device)


def _library_is_faster(rows: int, codes: Tensor) -> bool:
    num_sms, hopper = workspace(codes.device).num_sms, has_hopper_gpu(codes.device)
    return library_is_faster(rows, *codes.shape, codes.itemsize, num_sms, hopper=hopper)


def many_rows(x: RoundedRows, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """PyTorch's scaled matmul, or Hopper's split-K kernel where that was measured to be faster."""
    config = None
    if has_hopper_gpu(codes.device):
        config = fp8_gemm_config(len(x.codes), *codes.shape, workspace(codes.device).num_sms)
    if config is None:
        return by_library(x, codes, scale, bias)
    from quire.kernels.triton.hopper.hopper_fp8_gemm import multiply_rows

    return multiply_rows(x, codes, scale, bias, config)


def by_library(x: Rows, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """PyTorch's scaled matmul: x [T, K] → bfloat16 [T, N]; x is rounded to FP8 first if need be."""
    rows = quantize_rows(x) if isinstance(x, Tensor) else x
    out: Tensor = torch._scaled_mm(
        rows.codes,
        codes.t(),  # a view, in the layout that is required
        rows.scale,
        scale[None],
        bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return out


def _linear_dequantized(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """cuBLAS on the weight in x's dtype, which is dequantized some rows at a time."""
    out = x.new_empty(len(x), len(codes))
    for rows in few_rows(len(codes), codes.shape[1], _PIECE):
        weight = codes[rows].float().mul_(scale[rows, None]).to(x.dtype)
        out[:, rows] = reference.linear(x, weight, None if bias is None else bias[rows])
    return out
