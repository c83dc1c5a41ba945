"""Rounding of activations to eight bits inside of kernels, with a scale for each row."""

from __future__ import annotations

import triton
import triton.language as tl

_ROUNDS = tl.constexpr(12582912.0)  # 1.5 * 2^23: the last bits of a sum with it are an integer
_LEAST = tl.constexpr(0x0D800000)  # 2^-100, as the bits of a float32


@triton.jit
def to_codes(x, kind: tl.constexpr):
    """x [M, K] → codes [M, K] of a type, e4m3 or int8, and their scales float32 [M].

    Twin of `reference.quantize_rows`, or of `reference.round_int8`.
    """
    x = x.to(tl.float32)
    scale = scale_of(largest_of(x, 1), kind)
    return codes_of(x, scale[:, None], kind), scale


@triton.jit
def largest_of(x, axis: tl.constexpr):
    """The largest magnitudes along an axis of x, float32; NaN is larger than any number."""
    return tl.max(tl.abs(x).to(tl.int32, bitcast=True), axis=axis).to(tl.float32, bitcast=True)


@triton.jit
def scale_of(largest, kind: tl.constexpr):
    """The scales of rows, float32, from the largest magnitude of each; of FP8 powers of two."""
    if kind == tl.int8:
        bits = tl.maximum(largest.to(tl.int32, bitcast=True), _LEAST)  # NaN stays
        return bits.to(tl.float32, bitcast=True) / 127.0
    else:
        wanted = tl.maximum(largest / 448.0, 2.0**-100)
        bits = (wanted.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def store_blocks(codes_ptr, scale_ptr, x, first, size, T, CHUNKS: tl.constexpr):
    """Store columns `first` on of one of T rows, x [CHUNKS * 128], as `BlockRows` have them.

    codes_ptr: of the row; scale_ptr: of its first scale. Columns from `size` on are not stored.
    """
    kind: tl.constexpr = codes_ptr.dtype.element_ty
    x = x.to(tl.float32).reshape(CHUNKS, 128)
    scale = scale_of(largest_of(x, 1), kind)
    if kind == tl.int8:  # as bfloat16 not below what it was, so that no code is beyond 127
        scale = (scale * (1.0 + 2.0**-7)).to(tl.bfloat16).to(tl.float32)
    chunk = first // 128 + tl.arange(0, CHUNKS)
    tl.store(scale_ptr + chunk * T, scale.to(tl.bfloat16), mask=chunk * 128 < size)
    x = x.reshape(CHUNKS, 2, 2, 16, 2).permute(0, 3, 1, 4, 2).reshape(CHUNKS, 128)
    columns = chunk[:, None] * 128 + tl.arange(0, 128)[None, :]
    tl.store(codes_ptr + columns, codes_of(x, scale[:, None], kind), mask=columns < size)


@triton.jit
def codes_of(x, scale, kind: tl.constexpr):
    """x / scale, both float32, as codes of a type."""
    scaled = x * (1.0 / scale)
    if kind == tl.int8:
        return (scaled + _ROUNDS).to(tl.int32, bitcast=True).to(tl.int8)
    else:
        return scaled.to(kind)
