"""Rounding of activations to FP8 (e4m3) inside of kernels, with a scale for each row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def to_fp8(x):
    """Twin of `reference.quantize_rows`: x [M, K] → codes e4m3 [M, K], scale float32 [M]."""
    x = x.to(tl.float32)
    scale = fp8_scale(tl.max(tl.abs(x), axis=1))
    return (x * (1.0 / scale)[:, None]).to(tl.float8e4nv), scale


@triton.jit
def fp8_scale(largest):
    """The scales of rows, powers of two, from the largest magnitude of each, float32 [M]."""
    wanted = tl.maximum(largest / 448.0, 2.0**-100)
    bits = (wanted.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
    return bits.to(tl.float32, bitcast=True)
