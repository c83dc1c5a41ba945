"""Conversion of FP8 keys and values, and of their queries, to float16 for the tensor cores.

FP8 converts to float16 exactly, by one instruction. To bfloat16 it would take several, one of them
at an eighth of the rate. So queries in bfloat16 are converted to float16 as well.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Softmax weights and their sum are scaled by 2^14: float16 then represents weights down to 2^-28 of
# the largest, so that many small ones together still count.
LIFT = tl.constexpr(14.0)


# Two pairs of codes become two pairs of float16: of the first codes, of the second ones.
WIDENING = tl.constexpr("""
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
def narrowed(q):
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


@triton.jit
def widened(pairs, FP8_PATH: tl.constexpr):
    """Pairs of FP8 codes, as int16 → (float16 of the first codes, of the second codes), exact.

    Two codes at a time, since transposed operands of tensor cores are loaded from shared memory in
    units of 16 bits. FP8_PATH: "instruction", or "numbers" for
    the interpreter.
    """
    if FP8_PATH == "instruction":
        return tl.inline_asm_elementwise(
            WIDENING,
            "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    first = (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    second = (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    return first.to(tl.float16), second.to(tl.float16)
