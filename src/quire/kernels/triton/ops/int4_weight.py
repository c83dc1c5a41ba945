"""Four-bit weights on a GPU: the words that kernels read, from canonical rows and back to numbers.

A row's columns go in steps of 256. A step is 32 words of 32 bits, in pairs: pair p has columns 2p
and 2p + 1 of each of the step's eight blocks of 32. Its first word has blocks 0 to 3, its second 4
to 7; of block b the first column is in bits 4(b % 4) on, the second 16 bits above. So one shift and
one mask give two columns side by side, as tensor cores read them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.operands import Int4Weight, Int4Words

STEP = 256  # columns
_PIECE = 2**24  # codes that are packed at a time


def pack_int4(weight: Int4Weight) -> Int4Words:
    """Canonical rows, not rotated, as words. K: a multiple of 32, as of the group."""
    assert not weight.hadamard
    n, half = weight.codes.shape
    rows = max(1, _PIECE // (2 * half))
    words = torch.cat([_words(weight.codes[i : i + rows]) for i in range(0, n, rows)])
    group = math.gcd(weight.group, 128)
    scale = _by_group(weight.scale, weight.group // group, STEP // group)
    zeros = weight.zeros
    if zeros is not None:
        zeros = _by_group(zeros, weight.group // group, STEP // group)
    return Int4Words(words, scale, zeros, group, 2 * half, weight.permutation)


def _words(codes: Tensor) -> Tensor:
    """Codes [N, K / 2], two in a byte → words int32 [N, ceil(K / 256) · 32]."""
    codes = F.pad(codes, (0, -codes.shape[1] % (STEP // 2)))
    bytes_of = codes.view(len(codes), -1, 2, 4, 16)  # step, word of a pair, block, pair; in order
    pairs = bytes_of.to(torch.int64)
    shifts = torch.arange(4, device=codes.device)[:, None] * 4
    pairs = (pairs & 15) << shifts | (pairs >> 4) << (shifts + 16)
    words = pairs.sum(dim=3).transpose(2, 3)  # [N, steps, 16, 2]
    return torch.where(words >= 2**31, words - 2**32, words).int().flatten(1)


def _by_group(values: Tensor, repeats: int, multiple: int) -> Tensor:
    """[N, K / its group] → [K / group, N], with zeros up to a multiple of rows."""
    values = values.repeat_interleave(repeats, dim=1)
    return F.pad(values, (0, -values.shape[1] % multiple)).t().contiguous()


@triton.jit
def dequantize_int4_kernel(
    words_ptr, scale_ptr, zero_ptr, out_ptr, first, last, N, K, stride_words, stride_out,
    ROWS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Rows `first` to `last` of words [N, K / 8] → numbers [rows, K], a step of ROWS rows each."""
    row, step = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    inside = (first + row < last)[:, None]
    from_row = (first + row).to(tl.int64)[:, None]
    pair, column = tl.arange(0, 16)[None, :], tl.arange(0, 32)[None, :]
    words_ptrs = words_ptr + from_row * stride_words + step * 32 + 2 * pair
    out_ptrs = out_ptr + row.to(tl.int64)[:, None] * stride_out + step * 256 + column
    for block in tl.static_range(8):
        if block % 4 == 0:
            words = tl.load(words_ptrs + block // 4, mask=inside, other=0)
        codes = tl.join(words >> 4 * (block % 4) & 15, words >> 4 * (block % 4) + 16 & 15)
        if block * 32 % GROUP == 0:
            offsets = (step * (256 // GROUP) + block * 32 // GROUP) * N + from_row
            scale = tl.load(scale_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
            zero = tl.full([ROWS, 1], 8, tl.int32)
            if zero_ptr is not None:
                zero = tl.load(zero_ptr + offsets, mask=inside, other=0).to(tl.int32)
        numbers = (codes.reshape(ROWS, 32) - zero).to(tl.float32) * scale
        there = inside & (step * 256 + block * 32 + column < K)
        tl.store(out_ptrs + block * 32, numbers.to(out_ptr.dtype.element_ty), mask=there)


def dequantize_int4(weight: Int4Words, out: Tensor, first: int = 0) -> Tensor:
    """Rows `first` on of a weight as numbers, into out [rows, K]; columns in the weight's order."""
    rows, n = 16, len(weight.words)
    grid = (triton.cdiv(len(out), rows), weight.words.shape[1] // 32)
    dequantize_int4_kernel[grid](
        weight.words, weight.scale, weight.zeros, out, first, first + len(out), n,
        weight.inputs, weight.words.stride(0), out.stride(0), rows, weight.group,
    )  # fmt: skip
    return out
