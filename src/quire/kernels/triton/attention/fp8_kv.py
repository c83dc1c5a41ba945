"""Keys and values in FP8 on the way to the tensor cores.

There they become float16, for which the hardware has an instruction, exactly; to bfloat16 it takes
several, one of them at an eighth of the rate. So queries in bfloat16 become float16 as well.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Weights of a softmax are kept 2^14 times too large, as is their sum: float16 has digits for those
# of 2^-28 of the largest that way, and many small ones together still count.
LIFT = tl.constexpr(14.0)


# Two pairs of codes become two pairs of float16: of the first codes, of the second ones.
WIDENING = tl.constexpr("""
    {
        .reg .b32 turned;
        .reg .b16 first, second;
        prmt.b32 turned, $2, 0, 0x3120;
        mov.b32 {first, second}, turned;
        cvt.rn.f16x2.e4m3x2 $0, first;
        cvt.rn.f16x2.e4m3x2 $1, second;
    }
""")


@triton.jit
def narrowed(q):
    """q [R, D] → float16 [R, D], and float32 factors [R] by which each row was divided.

    These are powers of two that bring the largest of a row to between 1 and 2: exact, whatever
    the range of q, but for numbers of less than 2^-14 of the largest, which lose digits. None is
    below 2^-60: scores of masked keys, -1e38 before they are scaled, have to stay low.
    """
    q = q.to(tl.float32)
    largest = tl.max(tl.abs(q), axis=1)
    bits = tl.maximum(largest.to(tl.int32, bitcast=True), 0x21800000) & 0x7F800000
    factor = bits.to(tl.float32, bitcast=True)
    return (q * (1.0 / factor)[:, None]).to(tl.float16), factor


@triton.jit
def widened(pairs, FORM: tl.constexpr):
    """Pairs of codes as int16 → (float16 of the first ones, of the second ones), exact.

    Two bytes at once, since the tensor cores' operands are fetched from shared memory 16 bits at a
    time, and values have to be turned on the way. FORM: "instruction", or "numbers" for the
    interpreter.
    """
    if FORM == "instruction":
        return tl.inline_asm_elementwise(
            WIDENING,
            "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    first = (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    second = (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    return first.to(tl.float16), second.to(tl.float16)
