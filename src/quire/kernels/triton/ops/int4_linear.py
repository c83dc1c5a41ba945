"""Linears with four-bit weights on a GPU: which kernel serves which number of rows.

Activations are not rounded (w4a16). Floor: for few rows the bytes of W, a quarter of 16 bits'; for
many the tensor cores' 16-bit rate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.operands import CodebookWeight, Int4Weight, Int4Words, LinearWeight, QuantSpec
from quire.kernels.triton.ops.int4_weight import dequantize_int4, pack_codebook, pack_int4
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu
from quire.kernels.triton.ops.skinny_gemm import int4_config_of, skinny_gemm

MOST_ROWS = 512  # of x, up to which codes are unpacked for each tile; beyond, once for all rows
_PIECE = 2**27  # numbers of a weight that are made at a time: 256 MiB in 16 bits


def quantize(weight: Tensor, spec: QuantSpec) -> LinearWeight:
    """Twin of `reference.quantize`, packed."""
    return pack(reference.quantize(weight, spec))


def pack(weight: LinearWeight) -> LinearWeight:
    """Twin of `reference.pack`: four-bit codes as words."""
    if isinstance(weight, CodebookWeight):
        return pack_codebook(weight)
    if not isinstance(weight, Int4Weight):
        return weight
    assert not weight.hadamard  # no scheme of a GPU rotates
    assert weight.group % 32 == 0  # codes in other groups become numbers while they are read
    return pack_int4(weight)


def reads_words(x: Tensor, weight: Int4Words, rows: int) -> bool:
    """Whether the GEMM that unpacks codes in registers serves x, of at most so many rows."""
    if x.dtype != torch.bfloat16 or not 0 < len(x) <= rows or not has_hopper_gpu(x.device):
        return False
    return int4_config_of(len(x), weight) is not None


def linear_int4(x: Tensor, weight: Int4Words, bias: Tensor | None) -> Tensor:
    """x [T, K] · weightᵀ + bias → [T, N]: the twin of `reference.linear` on dequantized weights."""
    if reads_words(x, weight, MOST_ROWS) and x.stride(1) == 1:
        return skinny_gemm(x, weight, bias=bias)
    return unpacked(x, weight, bias)


def unpacked(x: Tensor, weight: Int4Words, bias: Tensor | None) -> Tensor:
    """The linear operation by the library, on some rows of the weight as numbers at a time."""
    if weight.permutation is not None:
        x = x[:, weight.permutation]
    n = len(weight.words)
    step = max(1, _PIECE // weight.inputs)
    if n <= step:
        return reference.linear(x, widened(weight, x.dtype), bias)
    numbers, out = x.new_empty(step, weight.inputs), x.new_empty(len(x), n)
    for start in range(0, n, step):
        piece = dequantize_int4(weight, numbers[: min(step, n - start)], start)
        rows = slice(start, start + len(piece))
        out[:, rows] = reference.linear(x, piece, None if bias is None else bias[rows])
    return out


def widened(weight: Int4Words, dtype: torch.dtype) -> Tensor:
    """The whole weight [N, K] as numbers of a data type."""
    out = torch.empty(len(weight.words), weight.inputs, dtype=dtype, device=weight.words.device)
    return dequantize_int4(weight, out)
