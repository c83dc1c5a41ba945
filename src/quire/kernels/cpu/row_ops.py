"""Operations on whole rows by compiled kernels: the check of hidden states, the sampler's passes.

Each is one pass over memory, where NumPy's operations need several and as many arrays; where the
kernels were not built, those serve. Arrays of logits and states are contiguous. No torch.
"""

from __future__ import annotations

import ctypes

import numpy as np

from quire.array_types import Array, Bits, Flags, Ints, Singles
from quire.kernels import reference_arrays
from quire.kernels.cpu import native
from quire.kernels.cpu.array_ops import ARRAY_DTYPES, address
from quire.kernels.cpu.native_structs import RowsArgs
from quire.kernels.reference_arrays import BLOCK


def finite_rows(x: Array) -> Flags:
    """Twin of `reference_arrays.finite_rows`."""
    if native.library() is None or x.dtype not in ARRAY_DTYPES:
        return reference_arrays.finite_rows(x)
    out = np.empty(len(x), np.bool_)
    _call("finite_rows", x, out=out)
    return out


def to_float(x: Bits) -> Singles:
    """Twin of `reference_arrays.to_float`."""
    if native.library() is None:
        return reference_arrays.to_float(x)
    out = np.empty(x.shape, np.float32)
    _call("to_float", x, out=out)
    return out


def in_float32(x: Array) -> Singles:
    """Bits of bfloat16, or float16, as float32; what is in float32 as it is.

    PyTorch would convert with threads of its own, which then keep cores busy for some ms of the
    next step, waiting for more.
    """
    return to_float(x) if x.dtype == np.uint16 else x.astype(np.float32, copy=False)


def highest(logits: Singles) -> tuple[Ints, Singles]:
    """Twin of `reference_arrays.highest`."""
    if native.library() is None:
        return reference_arrays.highest(logits)
    ids, peaks = np.empty(len(logits), np.int64), np.empty(len(logits), np.float32)
    _call("highest", logits, out=peaks, ids=ids)
    return ids, peaks


def block_maxima(logits: Singles, indices: Ints) -> Singles:
    """Twin of `reference_arrays.block_maxima`."""
    if native.library() is None:
        return reference_arrays.block_maxima(logits, indices)
    out = np.empty((len(indices), logits.shape[1] // BLOCK), np.float32)
    _call("block_maxima", logits, out=out, indices=indices)
    return out


def block_masses(logits: Singles, indices: Ints, peaks: Singles, slopes: Singles) -> Ints:
    """Twin of `reference_arrays.block_masses`."""
    if native.library() is None:
        return reference_arrays.block_masses(logits, indices, peaks, slopes)
    out = np.empty((len(indices), logits.shape[1] // BLOCK), np.int64)
    _call("block_masses", logits, out=out, indices=indices, peaks=peaks, slopes=slopes)
    return out


def _call(name: str, x: Array, *, out: Array, **others: Array) -> None:
    """Call a native function on rows. x: all rows; out: one result for each row worked on."""
    args = RowsArgs(
        x=address(x), out=address(out), rows=len(out), size=x.shape[1],
        dtype=ARRAY_DTYPES[x.dtype], threads=native.num_threads(),
        **{field: address(array) for field, array in others.items()},
    )  # fmt: skip
    getattr(native.compiled(), f"quire_cpu_{name}")(ctypes.byref(args))
