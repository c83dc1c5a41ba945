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
from quire.kernels.triton.gemm.word_gemm import FP8_DIVISOR, wide_scale

STEP = 256  # columns
_MOST_EXPONENT = 191  # of a scale, 2^64, for `hopper_codebooks.make_e2m1`
_PIECE = 2**24  # codes that are packed at a time


def pack_int4(weight: Int4Weight) -> Int4Words:
    """Canonical rows, not rotated, as words. K: a multiple of the group.

    The group is a multiple of 32, or 16 with scales in bytes (NVFP4's, see `pack_codebook`).
    """
    assert not weight.hadamard  # no scheme of a GPU rotates
    # codes in other groups become numbers while they are read
    assert weight.group % 32 == 0 or (weight.group == 16 and weight.scale.dtype == torch.uint8)
    (n, half), group = weight.codes.shape, math.gcd(weight.group, 128)
    words = torch.cat([_words(weight.codes[rows]) for rows in few_rows(n, 2 * half, _PIECE)])
    scale = by_group(weight.scale, weight.group, group)
    zeros = None if weight.zeros is None else by_group(weight.zeros, weight.group, group)
    row_scale = row_scales(scale, zeros)
    return Int4Words(words, scale, zeros, row_scale, group, 2 * half, weight.permutation)


def pack_codebook(weight: CodebookWeight) -> Int4Words:
    """Canonical rows of codes of a codebook as words."""
    stored, own = weight.scale, weight.row_scale
    if own is not None:
        stored, own = _lifted(stored, own)
    words = pack_int4(Int4Weight(weight.codes, stored, None, weight.group))
    words = replace(words, codebook=weight.codebook, output_scale=own)
    if own is not None:  # a number is at most 6 · 448 times its output's scale
        return replace(words, by_bits=True, row_scale=own * FP8_DIVISOR.value)
    by_bits = False
    if stored.dtype == torch.uint8:  # exponents of e2m1; 255 is no number in either way
        by_bits = not ((stored > _MOST_EXPONENT) & (stored < 255)).any().item()
    row_scale = row_scales(words.scale, None, weight.codebook)
    return replace(words, by_bits=by_bits, row_scale=row_scale)


def _lifted(scale: Tensor, row_scale: Tensor) -> tuple[Tensor, Tensor]:
    """NVFP4's scales as bytes, times the power of two that e4m3 has the room for in their row.

    The row's own is divided by it. So numbers in FP8 have all their digits in rows that are small
    beside the whole weight.
    """
    wide = scale.float()
    largest = wide.abs().amax(dim=1)
    most = torch.finfo(torch.float8_e4m3fn).max
    lift = (most / torch.where(largest == 0.0, most, largest)).log2().floor().exp2()
    lifted = (wide * lift[:, None]).to(torch.float8_e4m3fn).view(torch.uint8)
    return lifted, (row_scale / lift).contiguous()


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
    return torch.tensor(codebook_format(codebook).numbers, dtype=torch.float32, device=device)


def codebook_format(codebook: str) -> CodebookFormat:
    """The format whose codes are indices of a codebook."""
    found = format_of(QuantSpec(codebook))
    assert isinstance(found, CodebookFormat)
    return found


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
    words_ptr, scale_ptr, zero_ptr, table_ptr, output_scale_ptr, row_scale_ptr, out_ptr,
    first, last, N, K,
    stride_words, stride_out, ROWS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Rows `first` to `last` of words [N, K / 8] → numbers [rows, K], a step of ROWS rows each.

    table_ptr: the numbers of a codebook, if codes are its indices. Numbers are multiplied by their
    row's output scale, or in FP8 divided by its row scale (of groups of 16 by a constant).
    """
    row, step = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    inside = first + row < last
    source = (first + row).to(tl.int64)
    eight = tl.arange(0, 8)
    # dimensions: rows; of pairs the half, and which of it; of columns the half; codes of a word
    side, pair = tl.arange(0, 2)[None, :, None, None, None], eight[None, None, :, None, None]
    half, position = tl.arange(0, 2)[None, None, None, :, None], eight[None, None, None, None, :]
    there, own = inside[:, None, None, None, None], source[:, None, None, None, None]
    words = words_ptr + own * stride_words + step * 32 + 16 * side + 2 * pair + half
    codes = tl.load(words, mask=there, other=0) >> (position // 2 * 4 + position % 2 * 16) & 15
    column = half * 128 + position // 2 * 32
    if GROUP < 32:
        column += 16 * side
    offsets = (step * (256 // GROUP) + column // GROUP) * N + own
    scale = wide_scale(tl.load(scale_ptr + offsets, mask=there, other=0), GROUP)
    if output_scale_ptr is not None:
        if row_scale_ptr is not None:
            scale *= 1.0 / FP8_DIVISOR
        else:
            scale *= tl.load(output_scale_ptr + own, mask=there, other=0.0)
    elif row_scale_ptr is not None:
        scale *= 1.0 / tl.load(row_scale_ptr + own, mask=there, other=1.0)
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
        weight.words, weight.scale, weight.zeros, table, weight.output_scale, row_scale, out,
        first, first + len(out), n, weight.inputs, weight.words.stride(0), out.stride(0), rows,
        weight.group, num_warps=2,
    )  # fmt: skip
    return out


def row_scales(scale: Tensor, zeros: Tensor | None, codebook: str | None = None) -> Tensor:
    """Scales and zeros of groups [K / group, N] → scales float32 [N] of rows of numbers in FP8."""
    if codebook is not None:
        found = codebook_format(codebook)
        most = found.wide_scales(scale) * max(map(abs, found.numbers))
    else:
        most = scale.float() * (8 if zeros is None else torch.maximum(zeros, 15 - zeros))
    return reference.quantize_rows(most.t())[1][:, 0]
