"""Weights of a byte each on a GPU: the words that kernels read, from canonical rows and to numbers.

A row's columns go in chunks of 128, of 32 words of 32 bits each, in pairs: pair p has columns 2p
and 2p + 1 of each of the chunk's four blocks of 32. Its first word has blocks 0 and 1, its second 2
and 3; of these the first is in the lower byte of a half word, and column 2p + 1 in the upper half.
So masks give two columns side by side, as tensor cores read them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels.byte_operands import ByteWeight, ByteWords
from quire.kernels.operands import Fp8Weight
from quire.kernels.reference_arrays import few_rows
from quire.kernels.triton.ops.int4_weight import by_group
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu

_PIECE = 2**24  # codes that are packed at a time
_EXACT = "fp8_a16", "fp8_block_a16"  # kinds whose inputs stay in 16 bits in any number of rows


def pack_bytes(weight: ByteWeight) -> ByteWords:
    """Canonical rows as words. K: a multiple of the group, which is one of 32."""
    (n, k), codes = weight.codes.shape, weight.codes.view(torch.uint8)
    pieces = few_rows(n, k, _PIECE)
    words = torch.cat([_words(codes[rows]) for rows in pieces])
    alone = weight.group == k and weight.zeros is None
    scale, row_scale = weight.scale.float(), weight.scale.float()[:, 0].contiguous()
    if not alone:
        scale = torch.cat([_used(weight, scale, rows) for rows in pieces])
        # by powers of two, so that float16 has them with all of its digits
        row_scale = torch.exp2(scale.abs().amax(dim=1).clamp_min(2.0**-100).log2().ceil())
    group = math.gcd(weight.group, 128)
    found = None if alone else by_group((scale / row_scale[:, None]).half(), weight.group, group)
    zeros = None if weight.zeros is None else by_group(weight.zeros, weight.group, group)
    kind = "s8" if weight.codes.dtype == torch.int8 else "e4m3"
    rounds = weight.kind not in _EXACT
    return ByteWords(words, found, zeros, row_scale, group, k, kind, weight.permutation, rounds)


def pack_fp8(weight: Fp8Weight) -> Fp8Weight | ByteWords:
    """A weight whose inputs are not rounded as words, where Hopper's kernels read these."""
    if weight.rounds or not has_hopper_gpu(weight.codes.device):
        return weight
    codes, scale = weight.codes, weight.scale[:, None]
    return pack_bytes(ByteWeight(codes, scale, None, weight.spec.codes, codes.shape[1]))


def _used(weight: ByteWeight, scale: Tensor, rows: slice) -> Tensor:
    """Some rows' scales, with 0 for groups of zeros alone: others' may be much smaller.

    Checkpoints have any scale there, 1 for example, and float16 has few digits of what is less than
    2^-14 of the row's largest.
    """
    groups = weight.codes[rows].unflatten(1, (-1, weight.group)).float()
    zero = 0.0 if weight.zeros is None else weight.zeros[rows, :, None].float()
    return torch.where((groups == zero).all(dim=2), 0.0, scale[rows])


def _words(codes: Tensor) -> Tensor:
    """Codes uint8 [N, K] → words int32 [N, K / 4], K to the next multiple of 256."""
    codes = F.pad(codes, (0, -codes.shape[1] % 256))
    parts = codes.view(len(codes), -1, 2, 2, 16, 2)  # chunk, word, byte, pair, column
    return parts.permute(0, 1, 4, 2, 5, 3).contiguous().view(len(codes), -1).view(torch.int32)


@triton.jit
def number_of(code, IS_FP8: tl.constexpr):
    """A code in uint8 as float32. FP8: bits where float32 has them are 2^-120 of the number."""
    bits = code.to(tl.int32)
    if IS_FP8:
        moved = (bits & 0x80) << 24 | (bits & 0x7F) << 20
        return moved.to(tl.float32, bitcast=True) * 1329227995784915872903807060280344576.0  # 2^120
    else:
        return ((bits ^ 128) - 128).to(tl.float32)


@triton.jit
def dequantize_bytes_kernel(
    codes_ptr, scale_ptr, zero_ptr, row_scale_ptr, out_ptr, first, last, N, K,
    stride_codes, stride_out, ROWS: tl.constexpr, GROUP: tl.constexpr, IS_FP8: tl.constexpr,
):  # fmt: skip
    """Rows `first` to `last` of words' bytes [N, K] → numbers [rows, K]: ROWS x 256 a program."""
    row, step = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    inside = (first + row < last)[:, None]
    source = (first + row).to(tl.int64)
    column = step * 256 + tl.arange(0, 256)
    codes = tl.load(codes_ptr + source[:, None] * stride_codes + column[None, :], mask=inside)
    codes = codes.reshape(ROWS, 2, 16, 2, 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(ROWS, 256)
    numbers = number_of(codes, IS_FP8)
    group = column // GROUP
    offsets = group[None, :] * N + source[:, None]
    if zero_ptr is not None:
        numbers -= tl.load(zero_ptr + offsets, mask=inside, other=0).to(tl.float32)
    if scale_ptr is not None:
        numbers *= tl.load(scale_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    numbers *= tl.load(row_scale_ptr + source[:, None], mask=inside, other=0.0)
    out_ptrs = out_ptr + row.to(tl.int64)[:, None] * stride_out + column[None, :]
    tl.store(out_ptrs, numbers.to(out_ptr.dtype.element_ty), mask=inside & (column < K)[None, :])


def dequantize_words(weight: ByteWords, out: Tensor, first: int = 0) -> Tensor:
    """Rows `first` on of a weight as numbers, into out [rows, K]; columns in the weight's order."""
    rows, codes = 8, weight.words.view(torch.uint8)
    grid = (triton.cdiv(len(out), rows), codes.shape[1] // 256)
    dequantize_bytes_kernel[grid](
        codes, weight.scale, weight.zeros, weight.row_scale, out, first, first + len(out),
        len(weight.words), weight.inputs, codes.stride(0), out.stride(0), rows, weight.group,
        weight.codes == "e4m3", num_warps=4,
    )  # fmt: skip
    return out
