"""Products with weights in FP8 on a GPU: which way serves which number of rows.

Floor: for few rows the bytes of W, half of 16 bits'; for many, twice the tensor cores' 16-bit rate.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import Fp8Weight
from quire.kernels.triton.skinny_gemm import MAX_ROWS, multiplies_fp8, skinny_gemm
from quire.kernels.triton.skinny_kernel import to_fp8
from quire.kernels.triton.tuning import library_is_faster
from quire.kernels.triton.workspace import workspace

_TILE = 2**25  # weights that are widened at once


def linear_fp8(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear_fp8`, with x rounded to FP8 where the GPU multiplies FP8 by FP8."""
    if x.dtype not in (torch.bfloat16, torch.float16) or x.stride(1) != 1:
        return reference.linear_fp8(x, codes, scale, bias)
    if len(x) == 0:
        return x.new_empty(0, len(codes))
    has_library = _library_multiplies(x, codes)
    few = len(x) <= MAX_ROWS
    if few and not (has_library and _library_is_faster(len(x), codes)):
        return skinny_gemm(x, Fp8Weight(codes, scale), bias=bias)
    if has_library:
        return by_library(x, codes, scale, bias)
    return _widened(x, codes, scale, bias)


def _library_multiplies(x: Tensor, codes: Tensor) -> bool:
    """Whether the library has a product for these: bfloat16, and sizes of whole 16 bytes."""
    n, k = codes.shape
    return n % 16 == k % 16 == 0 and x.dtype == torch.bfloat16 and multiplies_fp8(x.device)


def _library_is_faster(rows: int, codes: Tensor) -> bool:
    n, k = codes.shape
    return library_is_faster(rows, n, k, codes.itemsize, workspace(codes.device).num_sms)


def by_library(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x bfloat16 [T, K], rounded to FP8 by a kernel of its own → bfloat16 [T, N]."""
    rows, row_scale = quantize_rows(x)
    out: Tensor = torch._scaled_mm(
        rows, codes.t(), row_scale, scale[None], bias, out_dtype=x.dtype, use_fast_accum=True
    )
    return out


def _widened(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """The codes in x's type, some rows at a time, by cuBLAS."""
    out = x.new_empty(len(x), len(codes))
    step = max(1, _TILE // codes.shape[1])
    for start in range(0, len(codes), step):
        rows = slice(start, start + step)
        weight = (codes[rows].float() * scale[rows, None]).to(x.dtype)
        out[:, rows] = reference.linear(x, weight, None if bias is None else bias[rows])
    return out


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of `reference.quantize_rows`."""
    tokens, size = x.shape
    codes = torch.empty(tokens, size, dtype=reference.FP8, device=x.device)
    scale = torch.empty(tokens, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(size)
    _quantize_kernel[(tokens,)](
        x, codes, scale, size, x.stride(0), BLOCK=block, num_warps=max(1, min(16, block // 512))
    )
    return codes, scale


@triton.jit
def _quantize_kernel(x_ptr, codes_ptr, scale_ptr, size, stride, BLOCK: tl.constexpr):
    """One row [size]."""
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + token * stride + i, mask=i < size, other=0.0)
    codes, scale = to_fp8(x)
    tl.store(codes_ptr + token * size + i, codes, mask=i < size)
    tl.store(scale_ptr + token + tl.arange(0, 1), scale)
