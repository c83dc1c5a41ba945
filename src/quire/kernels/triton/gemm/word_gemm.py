"""A tile of the plain GEMM for few rows with a four-bit weight, as ops/int4_weight.py packs it.

Integers are not converted: a code becomes the last bits of a float, which then stands for a power
of two plus the code. What that adds to the sum of a group is taken off again, with the group's zero
point, as a multiple of the sum of x. Numbers of e2m1 are made of their bits, NF4's chosen. Groups
of 16 (NVFP4) are taken in twos: each word has codes of one of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

FP8_DIVISOR = tl.constexpr(8.0)  # of codes times scales of NVFP4, 6 · 448 at most, in e4m3


@triton.jit
def multiply_words(
    x_ptr, w_ptr, scale_ptr, zero_ptr, table_ptr, tile, k_begin, k_end, M, N, K,
    stride_x, stride_w,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, GROUP: tl.constexpr, ONE_ROW: tl.constexpr,
):  # fmt: skip
    """Some steps of 256 columns: W [BLOCK_N, k] · xᵀ [k, BLOCK_M], float32.

    table_ptr: the numbers of NF4. ONE_ROW: of x; sums are made without tensor cores, which would
    read from shared memory what threads have unpacked.
    """
    rows = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    if not EVEN_N:
        rows = rows % N  # rows beyond N wrap: never stored
    pairs = w_ptr.to(tl.pointer_type(tl.int64)) + rows.to(tl.int64)[:, None] * (stride_w // 2)
    pairs += tl.arange(0, 16)[None, :]
    OWN: tl.constexpr = max(GROUP, 32)  # columns at a time
    sums = tl.zeros([BLOCK_N, 16 if ONE_ROW else BLOCK_M], tl.float32)
    following = tl.load(pairs + k_begin * 16, eviction_policy="evict_first")
    for step in tl.range(k_begin, k_end, num_stages=1 if ONE_ROW else STAGES):
        both = following
        after = tl.minimum(step + 1, k_end - 1)
        following = tl.load(pairs + after * 16, eviction_policy="evict_first")
        for own in tl.static_range(256 // OWN):
            words = (both >> (32 * (own * OWN // 128))).to(tl.int32)
            at = (step * (256 // GROUP) + own * OWN // GROUP) * N + rows
            scale = wide_scale(tl.load(scale_ptr + at), GROUP)[:, None]
            other = scale
            if GROUP < 32:
                other = wide_scale(tl.load(scale_ptr + at + N), GROUP)[:, None]
            zero = 8.0
            if zero_ptr is not None:
                zero = tl.load(zero_ptr + at).to(tl.float32)[:, None]
            x = x_ptr + step * 256 + own * OWN
            left = K - step * 256 - own * OWN
            if ONE_ROW:
                by = scale
                if GROUP < 32:
                    by = tl.where(tl.arange(0, 16)[None, :] < 8, scale, other)
                sums += by * _multiply_row(
                    words, zero, scale_ptr, table_ptr, x, left, BLOCK_N, EVEN_K, OWN,
                    own * OWN % 128 // 32,
                )  # fmt: skip
            else:
                sums += _multiply_rows(
                    words, scale, other, zero, scale_ptr, table_ptr, x, left, M, stride_x, BLOCK_M,
                    BLOCK_N, EVEN_K, OWN, GROUP < 32, own * OWN % 128 // 32,
                )  # fmt: skip
    if ONE_ROW:
        is_first = tl.arange(0, BLOCK_M)[None, :] == 0
        return tl.where(is_first, tl.sum(sums, axis=1)[:, None], 0.0)
    else:
        return sums


@triton.jit
def _multiply_row(
    words, zero, scale_ptr, table_ptr, x_ptr, left, BLOCK_N: tl.constexpr, EVEN_K: tl.constexpr,
    GROUP: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Numbers of a group's codes times one row of x, by words: float32 [BLOCK_N, 16].

    FIRST: the group's first block of 32 columns in its half of a step. left: columns of x.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    pair = tl.arange(0, 16)
    part, total = tl.zeros([BLOCK_N, 16], tl.float32), tl.zeros([1, 16], tl.float32)
    for block in tl.static_range(GROUP // 32):
        source = (x_ptr + 32 * block).to(tl.pointer_type(tl.int32)) + pair
        if EVEN_K:
            x = tl.load(source)
        else:
            x = tl.load(source, mask=32 * block + 2 * pair < left, other=0)
        for second in tl.static_range(2):
            moved = (
                words << (16 - 4 * (FIRST + block))
                if second == 0
                else words >> (4 * (FIRST + block))
            )
            if _is_integer(scale_ptr, table_ptr):
                bits = moved & 0x000F0000 | 0x43000000  # 128 + the code
                numbers = bits.to(tl.float32, bitcast=True)
            else:
                numbers = _numbers_of(moved >> 16 & 15, table_ptr)
            own = (x >> (16 * second)).to(tl.int16).to(dtype, bitcast=True).to(tl.float32)
            part += numbers * own[None, :]
            total += own[None, :]
    if _is_integer(scale_ptr, table_ptr):
        part -= (128.0 + zero) * total
    return part


@triton.jit
def _multiply_rows(
    words, scale, other, zero, scale_ptr, table_ptr, x_ptr, left, M, stride_x,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN_K: tl.constexpr, GROUP: tl.constexpr,
    HALVED: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """A group's numbers times x and scale: float32 [BLOCK_N, BLOCK_M]; else as `_multiply_row`.

    HALVED: the latter half of the columns have the other scale.
    """
    OWN: tl.constexpr = GROUP // 16  # codes of a word in the group
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    i, row = tl.arange(0, GROUP), tl.arange(0, BLOCK_M)[:, None]
    columns = i % OWN // 2 * 32 + i // OWN * 2 + i % 2
    columns = tl.max_contiguous(tl.multiple_of(columns, 2), 2)[None, :]
    inside = row < M
    if not EVEN_K:
        inside = inside & (columns < left)
    x = tl.trans(tl.load(x_ptr + row * stride_x + columns, mask=inside, other=0.0))
    own = tl.arange(0, OWN)
    codes = words[:, :, None] >> (FIRST * 4 + own // 2 * 4 + own % 2 * 16)[None, None, :] & 15
    codes = codes.reshape(BLOCK_N, GROUP)
    if _is_integer(scale_ptr, table_ptr):
        total = tl.dot(tl.full([BLOCK_N, GROUP], 1.0, dtype), x)  # tensor cores have time for it
        if dtype == tl.bfloat16:
            numbers = (codes | 0x4300).to(tl.int16).to(dtype, bitcast=True)
            return scale * (tl.dot(numbers, x) - (128.0 + zero) * total)
        else:  # 1,024 and the code would leave too few digits of sums
            numbers = (codes | 0x6400).to(tl.int16).to(dtype, bitcast=True) - 1024.0
            return scale * (tl.dot(numbers.to(dtype), x) - zero * total)
    else:
        numbers = _numbers_of(codes, table_ptr).to(dtype)
        if HALVED:  # x has fewer numbers to mask than W
            is_former = i[:, None] < GROUP // 2
            former, latter = tl.where(is_former, x, 0.0), tl.where(is_former, 0.0, x)
            return scale * tl.dot(numbers, former) + other * tl.dot(numbers, latter)
        else:
            return scale * tl.dot(numbers, x)


@triton.constexpr_function
def _is_integer(scale_ptr, table_ptr):
    """Whether codes are integers: those in e2m1 have scales in bytes, those of NF4 a table."""
    return table_ptr is None and scale_ptr.dtype.element_ty != tl.uint8


@triton.jit
def _numbers_of(codes, table_ptr):
    """The numbers of a codebook, float32; without a table those of e2m1, by their bits."""
    if table_ptr is not None:  # look-ups in memory take up to 1.4 times as long
        return tl.where(codes < 8, _of_eight(codes, table_ptr), _of_eight(codes, table_ptr + 8))
    else:  # a sign, two bits of exponent and one of mantissa; 2^126 moves the exponent's bias
        bits = (codes & 8) << 28 | (codes & 7) << 22
        return bits.to(tl.float32, bitcast=True) * 85070591730234615865843651857942052864.0


@triton.jit
def _of_eight(codes, table_ptr):
    return tl.where(codes & 4 == 0, _of_four(codes, table_ptr), _of_four(codes, table_ptr + 4))


@triton.jit
def _of_four(codes, table_ptr):
    low = tl.where(codes & 1 == 0, tl.load(table_ptr), tl.load(table_ptr + 1))
    high = tl.where(codes & 1 == 0, tl.load(table_ptr + 2), tl.load(table_ptr + 3))
    return tl.where(codes & 2 == 0, low, high)


@triton.jit
def wide_scale(stored, GROUP: tl.constexpr):
    """Scales in float32. Bytes are exponents of two (MXFP4), or e4m3 of groups of 16 (NVFP4)."""
    if stored.dtype != tl.uint8:
        return stored.to(tl.float32)
    elif GROUP == 16:  # not every GPU converts e4m3; 2^120 moves the exponent's bias
        bits = (stored & 128).to(tl.int32) << 24 | (stored & 127).to(tl.int32) << 20
        return bits.to(tl.float32, bitcast=True) * 1329227995784915872903807060280344576.0
    else:
        return _power_of_two(stored)


@triton.jit
def _power_of_two(exponent):
    """Twin of `reference_codebook.powers_of_two`."""
    bits = tl.where(exponent == 0, 1 << 22, exponent.to(tl.int32) << 23)
    bits = tl.where(exponent == 255, 0x7FC00000, bits)
    return bits.to(tl.float32, bitcast=True)
