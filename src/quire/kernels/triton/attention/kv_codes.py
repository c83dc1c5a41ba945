"""Conversion of keys and values in 8 bits, and of their queries, to float16 for the tensor cores.

FP8 converts to float16 exactly, by one instruction. To bfloat16 it would take several, one of them
at an eighth of the rate. So queries in bfloat16 are converted to float16 as well. Codes of INT8
become the lowest bits of float16 numbers from 1024 on.

In INT8 each head of a token has a scale: a key's multiplies its scores, and a value's its softmax
weights. There it is part of the exponent, as log2(scale), so that weights stay within float16; sums
of weights are divided by it again.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Softmax weights and their sum are scaled by 2^14: float16 then represents weights down to 2^-28 of
# the largest, so that many small ones together still count.
LIFT = tl.constexpr(14.0)


# Two pairs of codes become two pairs of float16: of the first codes, of the second ones.
FP8_TO_FLOAT16 = tl.constexpr("""
    {
        .reg .b32 permuted;
        .reg .b16 first, second;
        prmt.b32 permuted, $2, 0, 0x3120;
        mov.b32 {first, second}, permuted;
        cvt.rn.f16x2.e4m3x2 $0, first;
        cvt.rn.f16x2.e4m3x2 $1, second;
    }
""")


@triton.jit
def scale_to_float16(q):
    """q [R, D] → float16 [R, D], and float32 factors [R] by which each row was divided.

    Factors are powers of two that bring a row's largest magnitude to between 1 and 2. The
    conversion is exact whatever the range of q, except for numbers below 2^-14 of the largest. No
    factor is below 2^-60, so that scores of masked keys, -1e38 before scaling, stay low.
    """
    q = q.to(tl.float32)
    largest = tl.max(tl.abs(q), axis=1)
    bits = tl.maximum(largest.to(tl.int32, bitcast=True), 0x21800000) & 0x7F800000
    factor = bits.to(tl.float32, bitcast=True)
    return (q * (1.0 / factor)[:, None]).to(tl.float16), factor


# As above for INT8: code + 128 as the low byte of 1024 + (code + 128), less 1152.
INT8_TO_FLOAT16 = tl.constexpr("""
    {
        .reg .b32 flipped, first, second;
        xor.b32 flipped, $2, 0x80808080;
        prmt.b32 first, flipped, 0x64646464, 0x4240;
        prmt.b32 second, flipped, 0x64646464, 0x4341;
        mov.b32 flipped, 0x64806480;
        sub.rn.f16x2 $0, first, flipped;
        sub.rn.f16x2 $1, second, flipped;
    }
""")
LEAST_SCALE = tl.constexpr(2.0**-60)  # in place of 0, of heads whose values are all zero


@triton.jit
def codes_to_float16(pairs, CODES_PATH: tl.constexpr, INT8: tl.constexpr):
    """Pairs of codes, as int16 → (float16 of the first codes, of the second codes), exact.

    Two codes at a time, since transposed operands of tensor cores are loaded from shared memory in
    units of 16 bits. CODES_PATH: "instruction", or "numbers" for the interpreter.
    """
    if CODES_PATH == "instruction":
        return tl.inline_asm_elementwise(
            INT8_TO_FLOAT16 if INT8 else FP8_TO_FLOAT16,
            "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    dtype: tl.constexpr = tl.int8 if INT8 else tl.float8e4nv
    first = (pairs & 0xFF).to(tl.uint8).to(dtype, bitcast=True)
    second = (pairs >> 8).to(tl.uint8).to(dtype, bitcast=True)
    return first.to(tl.float16), second.to(tl.float16)


@triton.jit
def load_scales(k_scale_ptr, v_scale_ptr, slots, stride, there):
    """Scales of the keys and values in slots [N] of one head: float32 [N] each."""
    key_scale = tl.load(k_scale_ptr + slots * stride, mask=there, other=1.0).to(tl.float32)
    value_scale = tl.load(v_scale_ptr + slots * stride, mask=there, other=1.0).to(tl.float32)
    return key_scale, tl.where(value_scale == 0.0, LEAST_SCALE, value_scale)  # NaN stays NaN
