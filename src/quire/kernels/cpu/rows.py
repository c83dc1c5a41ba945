"""What is asked of rows as a whole, by compiled kernels: sound hidden states, the sampler's passes.

Each is one pass over memory, where PyTorch's operations need several and as many tensors.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from quire.kernels import reference_step
from quire.kernels.cpu import elementwise, native
from quire.kernels.cpu.structures import RowsArgs
from quire.kernels.cpu.tensors import DTYPES


def finite_rows(x: Tensor) -> Tensor:
    """Twin of `reference_step.finite_rows`."""
    if x.dtype not in DTYPES or not x.is_contiguous():
        return reference_step.finite_rows(x)
    out = torch.empty(len(x), dtype=torch.bool)
    _call("finite_rows", x, len(x), out=out.data_ptr())
    return out


def to_float(x: Tensor) -> Tensor:
    """Twin of `reference_step.to_float`.

    PyTorch's has a thread of its own for a row of logits, which then keeps a core busy for some ms
    of the next step, waiting for more.
    """
    if x.dtype != torch.bfloat16 or not x.is_contiguous():
        return reference_step.to_float(x)
    out = torch.empty(x.shape)
    _call("to_float", x, len(x), out=out.data_ptr())
    return out


def highest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of `reference_step.highest`."""
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        return reference_step.highest(logits)
    ids = torch.empty(len(logits), dtype=torch.int64)
    peaks = torch.empty(len(logits), dtype=torch.float32)
    _call("highest", logits, len(logits), out=peaks.data_ptr(), ids=ids.data_ptr())
    return ids, peaks


def block_maxima(logits: Tensor, places: Tensor) -> Tensor:
    """Twin of `reference_step.block_maxima`."""
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        return elementwise.block_maxima(logits, places)
    out = torch.empty(len(places), logits.shape[1] // reference_step.BLOCK)
    _call("block_maxima", logits, len(places), places=places.data_ptr(), out=out.data_ptr())
    return out


def block_masses(logits: Tensor, places: Tensor, peaks: Tensor, slopes: Tensor) -> Tensor:
    """Twin of `reference_step.block_masses`."""
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        return elementwise.block_masses(logits, places, peaks, slopes)
    out = torch.empty(len(places), logits.shape[1] // reference_step.BLOCK, dtype=torch.int64)
    _call(
        "block_masses", logits, len(places), places=places.data_ptr(), peaks=peaks.data_ptr(),
        slopes=slopes.data_ptr(), out=out.data_ptr(),
    )  # fmt: skip
    return out


def _call(name: str, x: Tensor, rows: int, **addresses: int) -> None:
    args = RowsArgs(
        x=x.data_ptr(), rows=rows, size=x.shape[1], dtype=DTYPES[x.dtype],
        threads=native.num_threads(), **addresses,
    )  # fmt: skip
    getattr(native.compiled(), f"quire_cpu_{name}")(ctypes.byref(args))
