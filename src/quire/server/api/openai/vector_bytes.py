"""Vectors as bytes: in the data types and byte orders that a request for embeddings may name."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np

from quire.array_types import Array, Bytes, Singles
from quire.kernels.cpu.array_ops import to_bfloat16

_EXPONENT_BITS = {"fp8_e4m3": 4, "fp8_e5m2": 5}
_LARGEST_CODE = {"fp8_e4m3": 0x7E, "fp8_e5m2": 0x7B}  # of a finite number


def vector_bytes(data: bytes, dtype: str, order: str) -> bytes:
    """The bytes of a vector. data: float32, little-endian. dtype, order: as a request names them.

    Numbers are rounded to the nearest one of the type, ties to even; one beyond its range becomes
    the largest of an FP8 type, and infinite in the others.
    """
    numbers = np.frombuffer(data, "<f4")
    is_big = order == "big" or (order == "native" and sys.byteorder == "big")
    encoded = _encoded(numbers, dtype)
    return encoded.astype(encoded.dtype.newbyteorder(">" if is_big else "<")).tobytes()


def _encoded(numbers: Singles, dtype: str) -> Array:
    if dtype == "float32":
        return numbers
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16)
    if dtype == "bfloat16":
        return to_bfloat16(numbers.astype(np.float32))
    return _fp8(numbers, dtype)


def _fp8(numbers: Singles, dtype: str) -> Bytes:
    values = _fp8_values(dtype)
    middles = (values[:-1] + values[1:]) / 2
    sizes = np.minimum(np.abs(numbers.astype(np.float64)), values[-1])
    codes = np.searchsorted(middles, sizes, side="left")
    is_tie = sizes == np.append(middles, np.inf)[codes]
    codes += is_tie & (codes % 2 == 1)
    signed: Bytes = (codes | (np.signbit(numbers) * 0x80)).astype(np.uint8)
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
