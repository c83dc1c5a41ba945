"""Compiled operations on arrays, for what runs without PyTorch. No torch.

Numbers of bfloat16 are uint16 arrays of their bits. Arrays are contiguous.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from quire.array_types import Array, Bits, Ints, Singles
from quire.dtypes import DTYPES, NATIVE_DTYPES
from quire.kernels.cpu import native
from quire.kernels.cpu.native_structs import LINEAR_ARGS, ROW_DTYPES, Epilogue
from quire.kernels.formats.native_format import BLOCK, NativeFormat
from quire.kernels.operands import PackedWeight
from quire.kernels.reference_arrays import to_float

_MEMORY = ctypes.c_char * 0  # of any size
ARRAY_DTYPES = {np.dtype(DTYPES[name].array): NATIVE_DTYPES[name] for name in ROW_DTYPES}


def address(array: Array) -> int:
    """Address of a contiguous array's memory, which lives as long as the array.

    Raises TypeError if the array is not contiguous.
    """
    if array.flags.writeable:  # a fifth of the time; the buffers of others are not handed out
        buffer: Any = array  # which NumPy's annotations do not say
        return ctypes.addressof(_MEMORY.from_buffer(buffer))
    if not array.flags.c_contiguous:
        raise TypeError("an array that is not contiguous")
    begin: int = array.__array_interface__["data"][0]
    return begin


def _optional(array: Array | None) -> int:
    return 0 if array is None else address(array)


def linear(x: Array, weight: PackedWeight, bias: Array | None) -> Array:
    """x [T, K] · weightᵀ + bias → [T, N] in x's data type."""
    rows, k = x.shape
    out = np.empty((rows, weight.outputs), x.dtype)
    native.compiled().quire_cpu_linear(
        LINEAR_ARGS.pack(
            address(x), 0, address(weight.packed), _optional(bias),
            address(out), _optional(weight.permutation), rows, weight.outputs, k, 0.0,
            weight.group, ARRAY_DTYPES[x.dtype], weight.format, Epilogue.STORE,
            native.num_threads(),
        )
    )  # fmt: skip
    return out


def embedding(ids: Ints, weight: Array | PackedWeight) -> Array:
    """Rows [T, H] of a table [V, H], or of a packed weight, where a row is all in one block."""
    if not isinstance(weight, PackedWeight):
        return weight[ids]
    packed: Array = weight.packed
    block, row = ids // BLOCK, ids % BLOCK
    if weight.format == NativeFormat.FLOAT32:  # [V / 16, H, 16]
        return np.ascontiguousarray(packed[block, :, row])
    pairs = packed.view(np.uint32)[..., 0]  # [V / 16, H / 2, 16]
    return np.ascontiguousarray(pairs[block, :, row]).view(np.uint16)


def scale(x: Array, factor: float) -> Array:
    """x in float32 or bfloat16 times a factor, which is rounded to x's data type first."""
    if factor == 1.0:
        return x
    if x.dtype == np.float32:
        return x * np.float32(factor)
    return to_bfloat16(to_float(x) * to_float(to_bfloat16(np.array([factor], np.float32))))


def soft_capped(logits: Singles, cap: float) -> Singles:
    """cap * tanh(logits / cap), in place."""
    logits /= cap
    np.tanh(logits, out=logits)
    logits *= cap
    return logits


def to_bfloat16(x: Singles) -> Bits:
    """Finite numbers rounded to the nearest, of two as near the even one."""
    bits = x.view(np.uint32)
    rounded: Bits = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
    return rounded
