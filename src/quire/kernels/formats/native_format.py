"""Packed layouts of the native CPU library. No torch."""

from __future__ import annotations

from enum import IntEnum

BLOCK = 16  # outputs of a linear operation come in multiples of this
STEP = 32  # and inputs: so many are rounded and summed at a time
WIDE = 32  # outputs of a packed block of codes
MOST_INPUTS = 1 << 17  # of codes: so many products of two bytes fit in a sum of 32 bits


def packs_floats(n: int, k: int) -> bool:
    """Whether a weight [n, k] in float32 or bfloat16 has a packed layout."""
    return min(n, k) > 0 and n % BLOCK == 0 and k % 2 == 0


class NativeFormat(IntEnum):
    """Packed layout of a weight: `Format` in quire_cpu.h. The first two are those of `Dtype`."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT8_HADAMARD = 3  # inputs are Hadamard-rotated
    INT4 = 4
    INT4_ZEROS = 5  # with a zero point for each group
    INT4_HADAMARD = 6  # inputs are Hadamard-rotated
    NF4 = 7
    MXFP4 = 8
    INT8_A16 = 9  # inputs are not rounded to bytes, but to 16 bits


# What the 16 codes stand for in a native kernel, in units of the second number: codebook.h.
NATIVE_CODEBOOKS = {
    NativeFormat.NF4: (
        (-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127),
        1.0 / 127.0,
    ),
    NativeFormat.MXFP4: ((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), 0.5),
}
