"""Activations rounded to FP8 with a scale for each token and 128 columns.

Codes are in the order of a weight's words, see ops/byte_words.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.byte_operands import BlockRows
from quire.kernels.triton.launch.workspace import follow, launches_early
from quire.kernels.triton.step.row_rounding import largest_of, scale_of

_CHUNKS = 8  # of 128 columns that a program rounds
_TILE = 128  # rows


def quantize_blocks(x: Tensor) -> BlockRows:
    """x [T, K] in e4m3, K a multiple of 128. Scales are powers of two, which bfloat16 has."""
    (t, k), pdl = x.shape, launches_early(x.device)
    whole = triton.cdiv(t, _TILE) * _TILE  # TMA is slow where it loads rows that do not exist
    codes = torch.empty(whole, k, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(k // 128, t, dtype=torch.bfloat16, device=x.device)
    quantize_blocks_kernel[(t, triton.cdiv(k, 128 * _CHUNKS))](
        x, codes, scale, t, k, x.stride(0), CHUNKS=_CHUNKS, PDL=pdl, num_warps=2, launch_pdl=pdl
    )
    return BlockRows(codes, scale)


@triton.jit
def quantize_blocks_kernel(
    x_ptr, codes_ptr, scale_ptr, T, K, stride, CHUNKS: tl.constexpr, PDL: tl.constexpr
):
    """x [T, K] → codes [T, K] and scales [K / 128, T]: CHUNKS times 128 columns a program."""
    if PDL:
        follow()
    token = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)
    columns = chunk[:, None] * 128 + tl.arange(0, 128)[None, :]
    x = tl.load(x_ptr + token * stride + columns, mask=columns < K, other=0.0).to(tl.float32)
    kind: tl.constexpr = codes_ptr.dtype.element_ty
    scale = scale_of(largest_of(x, 1), kind)
    tl.store(scale_ptr + chunk * T + token, scale.to(tl.bfloat16), mask=chunk * 128 < K)
    scaled = (x * (1.0 / scale)[:, None]).reshape(CHUNKS, 2, 2, 16, 2).permute(0, 3, 1, 4, 2)
    codes = scaled.reshape(CHUNKS, 128).to(kind)
    tl.store(codes_ptr + token * K + columns, codes, mask=columns < K)
