"""Where activations become rows of eight bits on a GPU: before a linear layer, or inside of it."""

from __future__ import annotations

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
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu
from quire.kernels.triton.ops.skinny_gemm import MAX_ROWS, GpuWeight, multiplies_fp8
from quire.kernels.triton.step.elementwise import rms_norm

FEW = 16  # rows, up to which `skinny_gemm` rounds them itself
W4A16_ROWS = 64  # rows, up to which they are not rounded for weights in four bits
CODEBOOK_ROWS = 128  # the same for codes of a codebook, which all become numbers for more rows


def rows_for(x: ResidualState, taken: type[RoundedRows] | None) -> Rows:
    """The normalised rows [T, K] of a residual as the next weight takes them.

    What rounds them does not know the next weight, which may have other codes, or none: then the
    norm is computed again, without rounding.
    """
    assert x.rows is not None  # None only on CPUs
    if isinstance(x.rows, RoundedRows) and type(x.rows) is not taken:
        return rms_norm(x.residual, x.weight, x.eps)
    return x.rows


def rows_of(weight: GpuWeight, rows: int = 0) -> type[RoundedRows] | None:
    """The rows of eight bits that a weight's codes are multiplied by, if there are so many rows."""
    if isinstance(weight, Fp8Weight):
        return Fp8Rows
    if isinstance(weight, Int4Words):
        return Fp8Rows if multiplies_in_fp8(rows, torch.bfloat16, weight) else None
    return Int8Rows if isinstance(weight, Int8Weight) else None


def rounds_next(out: Tensor, weight: GpuWeight) -> type[RoundedRows] | None:
    """As which rows what is computed from a linear layer's result [T, N] should be stored.

    The next linear layer's weight is not known here. Where one after a norm has other codes,
    `rows_for` makes rows of their own for it; `linear_silu` is told.
    """
    if isinstance(weight, Int4Words):
        return Fp8Rows if multiplies_in_fp8(len(out), out.dtype, weight) else None
    if not isinstance(weight, Fp8Weight | Int8Weight) or len(out) <= most_rows(out.dtype, weight):
        return None
    if isinstance(weight, Int8Weight):
        return Int8Rows if out.dtype == torch.bfloat16 else None
    return Fp8Rows if library_multiplies(out, weight.codes) else None


def multiplies_in_fp8(rows: int, dtype: torch.dtype, weight: Int4Words) -> bool:
    """Whether so many rows of x and a weight in four bits are both rounded to FP8."""
    least = W4A16_ROWS if weight.codebook is None else CODEBOOK_ROWS
    if rows <= least or dtype != torch.bfloat16 or not multiplies_fp8(weight.words.device):
        return False
    return len(weight.words) % 16 == weight.inputs % 16 == 0


def most_rows(dtype: torch.dtype, weight: GpuWeight) -> int:
    """The number of rows up to which `skinny_gemm` is used.

    It rounds rows itself, with scales for some columns each. More rows are faster if the kernels
    before have rounded each row with one scale.
    """
    if not isinstance(weight, Fp8Weight | Int8Weight) or dtype != torch.bfloat16:
        return MAX_ROWS
    by_rows = has_hopper_gpu(weight.codes.device) and has_aligned_sizes(weight.codes)
    return FEW if by_rows else MAX_ROWS


def library_multiplies(x: Tensor, codes: Tensor) -> bool:
    """Whether PyTorch's scaled matmul supports these operands in FP8."""
    return has_aligned_sizes(codes) and x.dtype == torch.bfloat16 and multiplies_fp8(x.device)


def has_aligned_sizes(codes: Tensor) -> bool:
    """Whether both sizes are multiples of 16, as PyTorch's scaled matmul and TMA require."""
    n, k = codes.shape
    return n % 16 == k % 16 == 0
