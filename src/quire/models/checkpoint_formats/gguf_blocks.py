"""Blocks of GGUF's quantized types as the numbers that they stand for, in NumPy. No torch.

A block begins or ends with its scale `d` in float16. Types with "_1", Q2_K, and those of 4 and 5
bits with "_K" have a minimum, too. In "_K" types and IQ4_XS 256 numbers share `d`, and every 16 or
32 of them have a scale of their own, in 4, 6 or 8 bits. "IQ4" types look their codes up. Equal, to
the last bit, to the `gguf` package's dequantization.
(https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.array_types import Array
from quire.gguf.block_types import TYPES_BY_NAME

_SUPER = 256  # numbers of a block of "_K" types
_NIBBLES = np.array([[0], [4]], np.uint8)  # shifts
_PAIRS = np.array([[0], [2], [4], [6]], np.uint8)
_IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def dequantize(kind: str, rows: Array) -> Array:
    """Rows of blocks, uint8 [N, bytes], to float32 [N, K]."""
    found = TYPES_BY_NAME[kind]
    blocks = np.ascontiguousarray(rows).reshape(-1, found.num_bytes)
    with np.errstate(invalid="ignore", over="ignore"):  # of scales that are not finite
        return _NUMBERS[kind](blocks).reshape(len(rows), -1)


def half_at(blocks: Array, begin: int) -> Array:
    """The float16 of each block at a byte, as float32 [blocks, 1]."""
    half: Array = np.ascontiguousarray(blocks[:, begin : begin + 2]).view(np.float16)
    return half.astype(np.float32)


def nibbles(packed: Array) -> Array:
    """Bytes [blocks, n] to codes [blocks, 2 n]: those of the lower four bits first."""
    codes: Array = (packed[:, None] >> _NIBBLES) & 15
    return codes.reshape(len(packed), -1)


def _fifth_bits(packed: Array) -> Array:
    """32 bits in 4 bytes [blocks, 4], the lowest first, as 0 or 16 [blocks, 32]."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little") << 4


def _q4_0(blocks: Array) -> Array:
    codes = nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)
    return half_at(blocks, 0) * codes.astype(np.float32)


def _q4_1(blocks: Array) -> Array:
    codes = nibbles(blocks[:, 4:]).astype(np.float32)
    return half_at(blocks, 0) * codes + half_at(blocks, 2)


def _q5_0(blocks: Array) -> Array:
    codes = nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return half_at(blocks, 0) * (codes.astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Array) -> Array:
    codes = nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return half_at(blocks, 0) * codes.astype(np.float32) + half_at(blocks, 2)


def _q8_0(blocks: Array) -> Array:
    return half_at(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _scales_and_minima(blocks: Array) -> tuple[Array, Array]:
    """Of Q4_K and Q5_K: scale and minimum of each 32 numbers, float32 [blocks, 8, 1].

    Both have 6 bits, in 12 bytes: four of scales, four of minima, four with the lower bits of the
    last four of each, whose upper bits are the upper ones of the others.
    """
    first, second, third = (blocks[:, begin : begin + 4] for begin in (4, 8, 12))
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=1)
    scale = half_at(blocks, 0) * scales.astype(np.float32)
    minimum = half_at(blocks, 2) * minima.astype(np.float32)
    return scale[:, :, None], minimum[:, :, None]


def _pairs(packed: Array) -> Array:
    """Bytes [blocks, 32 n] to codes of 2 bits [blocks, 8 n, 16]: of 32 bytes the lowest first."""
    codes: Array = (packed.reshape(len(packed), -1, 1, 32) >> _PAIRS) & 3
    return codes.reshape(len(packed), -1, 16)


def _q2_k(blocks: Array) -> Array:
    """16 bytes with scales and minima, 64 of codes, d and that of the minima."""
    shared, scale, minimum = blocks[:, :16], half_at(blocks, 80), half_at(blocks, 82)
    scales = (scale * (shared & 15).astype(np.float32))[:, :, None]
    minima = (minimum * (shared >> 4).astype(np.float32))[:, :, None]
    found: Array = scales * _pairs(blocks[:, 16:80]).astype(np.float32) - minima
    return found


def _q3_k(blocks: Array) -> Array:
    """32 bytes of upper bits, 64 of lower two, 12 of scales: 8 of lower four bits, 4 of upper."""
    eighths = np.arange(8, dtype=np.uint8)[:, None]
    upper: Array = (blocks[:, None, :32] >> eighths & 1).reshape(-1, _SUPER // 16, 16) << 2
    codes = (_pairs(blocks[:, 32:96]) | upper).astype(np.int8) - np.int8(4)
    high: Array = (blocks[:, None, 104:108] >> _PAIRS & 3).reshape(-1, 16) << 4
    scales = (nibbles(blocks[:, 96:104]) | high).astype(np.int8) - np.int8(32)
    scale = half_at(blocks, 108) * scales.astype(np.float32)
    found: Array = scale[:, :, None] * codes.astype(np.float32)
    return found


def _iq4_nl(blocks: Array) -> Array:
    return half_at(blocks, 0) * _IQ4[nibbles(blocks[:, 2:])]


def _iq4_xs(blocks: Array) -> Array:
    """d, 2 bytes of scales' upper bits, 4 of lower, and 128 of codes, each 16 as in IQ4_NL."""
    upper = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16)
    high = (upper >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8) << 4
    low = (blocks[:, 4:8, None] >> _NIBBLES[:, 0] & 15).reshape(len(blocks), -1)
    scales = ((low | high).astype(np.int8) - np.int8(32)).astype(np.float32)
    codes = nibbles(blocks[:, 8:].reshape(-1, 16)).reshape(len(blocks), -1, 32)
    found: Array = (half_at(blocks, 0) * scales)[:, :, None] * _IQ4[codes]
    return found


def _nibbles_by_32(packed: Array) -> Array:
    """Bytes [blocks, n] to codes [blocks, n / 16, 32]: of 32 bytes the lower bits come first."""
    codes: Array = (packed.reshape(len(packed), -1, 1, 32) >> _NIBBLES) & 15
    return codes.reshape(len(packed), -1, 32)


def _q4_k(blocks: Array) -> Array:
    scale, minimum = _scales_and_minima(blocks)
    return scale * _nibbles_by_32(blocks[:, 16:]).astype(np.float32) - minimum


def _q5_k(blocks: Array) -> Array:
    scale, minimum = _scales_and_minima(blocks)
    eighths = np.arange(8, dtype=np.uint8)[:, None]
    upper: Array = (blocks[:, None, 16:48] >> eighths & 1) << 4
    return scale * (_nibbles_by_32(blocks[:, 48:]) | upper).astype(np.float32) - minimum


def _q6_k(blocks: Array) -> Array:
    """128 bytes of lower four bits, 64 of upper two, a scale in 8 bits for each 16, and d."""
    lower = (blocks[:, :128].reshape(-1, 2, 1, 64) >> _NIBBLES) & 15
    upper = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _PAIRS) & 3
    codes = lower.reshape(-1, 8, 32) | upper.reshape(-1, 8, 32) << 4
    signed = (codes.astype(np.int8) - np.int8(32)).astype(np.float32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    scale = half_at(blocks, 208) * scales
    return scale[:, :, None] * signed.reshape(-1, _SUPER // 16, 16)


_NUMBERS: dict[str, Callable[[Array], Array]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
