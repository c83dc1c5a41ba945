"""Four-bit weights on a GPU: the words that kernels read, from canonical rows and back to numbers.

A row's columns go in steps of 256. A step is 32 words of 32 bits, in pairs: pair p has columns 2p
and 2p + 1 of each of the step's eight blocks of 32. Its first word has blocks 0 to 3, its second 4
to 7; of block b the first column is in bits 4(b % 4) on, the second 16 bits above. So one shift and
one mask give two columns side by side, as tensor cores read them. Codes of a codebook (NF4, MXFP4)
lie in the same places.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from quire.kernels import reference
from quire.kernels.formats.codebook_format import CodebookFormat
from quire.kernels.formats.table import format_of
from quire.kernels.operands import CodebookWeight, Int4Weight, Int4Words, QuantSpec
from quire.kernels.reference_arrays import few_rows
from quire.kernels.reference_codebook import powers_of_two
from quire.kernels.triton.gemm.word_gemm import power_of_two

STEP = 256  # columns
_MOST_EXPONENT = 191  # of a scale, 2^64, for `hopper_codebooks.make_e2m1`
_PIECE = 2**24  # codes that are packed at a time


def pack_int4(weight: Int4Weight) -> Int4Words:
    """Canonical rows, not rotated, as words. K: a multiple of 32, as of the group."""
    assert not weight.hadamard  # no scheme of a GPU rotates
    assert weight.group % 32 == 0  # codes in other groups become numbers while they are read
    (n, half), group = weight.codes.shape, math.gcd(weight.group, 128)
    words = torch.cat([_words(weight.codes[rows]) for rows in few_rows(n, 2 * half, _PIECE)])
    scale = by_group(weight.scale, weight.group, group)
    zeros = None if weight.zeros is None else by_group(weight.zeros, weight.group, group)
    row_scale = row_scales(scale, zeros)
    return Int4Words(words, scale, zeros, row_scale, group, 2 * half, weight.permutation)


def pack_codebook(weight: CodebookWeight) -> Int4Words:
    """Canonical rows of codes of a codebook as words. The group is 32 or 64."""
    integers = Int4Weight(weight.codes, weight.scale, None, weight.group)
    words = pack_int4(integers)
    row_scale = row_scales(words.scale, None, weight.codebook)
    exponents = words.scale if words.scale.dtype == torch.uint8 else None  # of e2m1
    by_bits = False
    if exponents is not None:  # 255 is no number in either way
        by_bits = not ((exponents > _MOST_EXPONENT) & (exponents < 255)).any().item()
    return replace(words, codebook=weight.codebook, row_scale=row_scale, by_bits=by_bits)


@functools.cache
def byte_tables(codebook: str, dtype: torch.dtype) -> str:
    """The bytes of a codebook's numbers in 16 bits, as words for PTX: low ones, then high ones."""
    numbers = codebook_numbers(codebook, torch.device("cpu")).to(dtype)
    planes = numbers.view(torch.uint8).view(16, 2).t().contiguous()
    words = planes.view(torch.int32).flatten().tolist()
    return " ".join(f"0x{word & 0xFFFFFFFF:08x}" for word in words)


@functools.cache
def codebook_numbers(codebook: str, device: torch.device) -> Tensor:
    """The 16 numbers of a codebook, float32."""
    found = format_of(QuantSpec(codebook))
    assert isinstance(found, CodebookFormat)
    return torch.tensor(found.numbers, dtype=torch.float32, device=device)


def _words(codes: Tensor) -> Tensor:
    """Codes [N, K / 2], two in a byte → words int32 [N, ceil(K / 256) · 32]."""
    codes = F.pad(codes, (0, -codes.shape[1] % (STEP // 2)))
    bytes_of = codes.view(len(codes), -1, 2, 4, 16)  # step, word of a pair, block, pair; in order
    pairs = bytes_of.to(torch.int64)
    shifts = torch.arange(4, device=codes.device)[:, None] * 4
    pairs = (pairs & 15) << shifts | (pairs >> 4) << (shifts + 16)
    words = pairs.sum(dim=3).transpose(2, 3)  # [N, steps, 16, 2]
    return torch.where(words >= 2**31, words - 2**32, words).int().flatten(1)


def by_group(values: Tensor, wide: int, group: int) -> Tensor:
    """[N, K / wide] → [K / group, N], with zeros up to whole steps."""
    values = values.repeat_interleave(wide // group, dim=1)
    return F.pad(values, (0, -values.shape[1] % (STEP // group))).t().contiguous()


@triton.jit
def dequantize_int4_kernel(
    words_ptr, scale_ptr, zero_ptr, table_ptr, row_scale_ptr, out_ptr, first, last, N, K,
    stride_words, stride_out, ROWS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Rows `first` to `last` of words [N, K / 8] → numbers [rows, K], a step of ROWS rows each.

    table_ptr: the numbers of a codebook, if codes are its indices. Numbers are divided by their
    row's scale, if there are such scales.
    """
    row, step = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    inside = first + row < last
    source = (first + row).to(tl.int64)
    pair, half = tl.arange(0, 16)[None, :, None], tl.arange(0, 2)[None, None, :]
    words = tl.load(
        words_ptr + source[:, None, None] * stride_words + step * 32 + 2 * pair + half,
        mask=inside[:, None, None],
        other=0,
    )
    position = tl.arange(0, 8)[
        None, None, None, :
    ]  # in a word: which of four blocks, and of a pair
    codes = words[:, :, :, None] >> (position // 2 * 4 + position % 2 * 16) & 15
    group = step * (256 // GROUP) + (half[:, :, :, None] * 128 + position // 2 * 32) // GROUP
    offsets = group * N + source[:, None, None, None]
    there = inside[:, None, None, None]
    scale = tl.load(scale_ptr + offsets, mask=there, other=0)
    if scale_ptr.dtype.element_ty == tl.uint8:
        scale = power_of_two(scale)
    scale = scale.to(tl.float32)
    if row_scale_ptr is not None:
        by_row = tl.load(row_scale_ptr + source, mask=inside, other=1.0)
        scale *= 1.0 / by_row[:, None, None, None]
    if table_ptr is not None:
        numbers = tl.load(table_ptr + codes) * scale
    elif zero_ptr is not None:
        zero = tl.load(zero_ptr + offsets, mask=there, other=0).to(tl.int32)
        numbers = (codes - zero).to(tl.float32) * scale
    else:
        numbers = (codes - 8).to(tl.float32) * scale
    if row_scale_ptr is not None:
        numbers = numbers.to(tl.float16)  # as `hopper_int4_rows` rounds them
    numbers = numbers.to(out_ptr.dtype.element_ty)
    numbers = numbers.reshape(ROWS, 16, 2, 4, 2).permute(0, 2, 3, 1, 4).reshape(ROWS, 256)
    column = step * 256 + tl.arange(0, 256)[None, :]
    out_ptrs = out_ptr + row.to(tl.int64)[:, None] * stride_out + column
    tl.store(out_ptrs, numbers, mask=inside[:, None] & (column < K))


def dequantize_int4(weight: Int4Words, out: Tensor, first: int = 0) -> Tensor:
    """Rows `first` on of a weight as numbers, into out [rows, K]; columns in the weight's order.

    In FP8 they are to be multiplied by the rows' scales, `weight.row_scale`.
    """
    rows, n, table = 8, len(weight.words), None
    if weight.codebook is not None:
        table = codebook_numbers(weight.codebook, out.device)
    row_scale = weight.row_scale if out.dtype == torch.float8_e4m3fn else None
    grid = (triton.cdiv(len(out), rows), weight.words.shape[1] // 32)
    dequantize_int4_kernel[grid](
        weight.words, weight.scale, weight.zeros, table, row_scale, out, first, first + len(out), n,
        weight.inputs, weight.words.stride(0), out.stride(0), rows, weight.group, num_warps=2,
    )  # fmt: skip
    return out


def row_scales(scale: Tensor, zeros: Tensor | None, codebook: str | None = None) -> Tensor:
    """Scales and zeros of groups [K / group, N] → scales float32 [N] of rows of numbers in FP8."""
    if codebook is not None:
        scale = powers_of_two(scale) if scale.dtype == torch.uint8 else scale.float()
        most = scale * codebook_numbers(codebook, scale.device).abs().max()
    else:
        most = scale.float() * (8 if zeros is None else torch.maximum(zeros, 15 - zeros))
    return reference.quantize_rows(most.t())[1][:, 0]
