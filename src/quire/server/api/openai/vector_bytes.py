"""Vectors as bytes: in the data types and byte orders that a request for embeddings may name."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np

from quire.array_types import Array, Singles

_EXPONENT_BITS = {"fp8_e4m3": 4, "fp8_e5m2": 5}
_LARGEST_CODE = {"fp8_e4m3": 0x7E, "fp8_e5m2": 0x7B}  # of a finite number


def vector_bytes(data: bytes, dtype: str, order: str) -> bytes:
    """The bytes of a vector. data: float32, little-endian. dtype, order: as a request names them.

    Numbers are rounded to the nearest one of the type, ties to even; one beyond its range becomes
    the largest of an FP8 type, and infinite in the others.
    """
    numbers = np.frombuffer(data, "<f4")
    is_big = order == "big" or (order == "native" and sys.byteorder == "big")
    return _encoded(numbers, dtype).astype(_typed(dtype, is_big)).tobytes()


def _typed(dtype: str, is_big: bool) -> str:
    kind = {"float32": "f4", "float16": "f2", "bfloat16": "u2"}.get(dtype, "u1")
    return (">" if is_big else "<") + kind


def _encoded(numbers: Singles, dtype: str) -> Array:
    if dtype == "float32":
        return numbers
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16)
    if dtype == "bfloat16":
        bits = numbers.astype(np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return _fp8(numbers, dtype)


def _fp8(numbers: Singles, dtype: str) -> Array:
    values = _fp8_values(dtype)
    middles = (values[:-1] + values[1:]) / 2
    sizes = np.minimum(np.abs(numbers.astype(np.float64)), values[-1])
    codes = np.searchsorted(middles, sizes, side="left")
    is_tie = sizes == np.append(middles, np.inf)[codes]
    codes += is_tie & (codes % 2 == 1)
    signed: Array = codes | (np.signbit(numbers) * 0x80)
    return signed


@cache
def _fp8_values(dtype: str) -> Array:
    """The finite numbers >= 0 of an FP8 type, by their codes."""
    codes = np.arange(_LARGEST_CODE[dtype] + 1)
    exponent_bits = _EXPONENT_BITS[dtype]
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    exponents, mantissas = codes >> mantissa_bits, codes & (2**mantissa_bits - 1)
    whole = np.minimum(exponents, 1)  # 0 for subnormal numbers
    scale = 2.0 ** (np.maximum(exponents, 1) - bias)
    values: Array = scale * (whole + mantissas / 2**mantissa_bits)
    return values
