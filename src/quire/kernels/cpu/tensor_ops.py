"""Compiled operations on tensors that belong to no other file here, and the types they take."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from quire.array_types import Array
from quire.kernels import reference_step
from quire.kernels.cpu import cpu_elementwise, native, row_ops
from quire.kernels.cpu.native_structs import BFLOAT16, FLOAT32, PackArgs, RmsNormArgs

DTYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Twin of `reference.rms_norm`; between its steps float32 is not rounded to bfloat16."""
    if x.dtype not in DTYPES:
        return cpu_elementwise.rms_norm(x, weight, eps)
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    args = RmsNormArgs(
        x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // size, size, eps,
        DTYPES[x.dtype], native.num_threads(),
    )  # fmt: skip
    native.compiled().quire_cpu_rms_norm(ctypes.byref(args))
    return out


def finite_rows(x: Tensor) -> Tensor:
    """Twin of `reference_step.finite_rows`."""
    if x.dtype not in DTYPES or not x.is_contiguous():
        return reference_step.finite_rows(x)
    return torch.from_numpy(row_ops.finite_rows(_array(x)))


def to_float(x: Tensor) -> Tensor:
    """Twin of `reference_step.to_float`.

    PyTorch's has a thread of its own for a row of logits, which then keeps a core busy for some ms
    of the next step, waiting for more.
    """
    if x.dtype != torch.bfloat16 or not x.is_contiguous():
        return reference_step.to_float(x)
    return torch.from_numpy(row_ops.to_float(_array(x)))


def _array(x: Tensor) -> Array:
    """A tensor's memory; of bfloat16 the bits."""
    found: Array = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
    return found


def pack(
    codes: Tensor,
    scale: Tensor | None,
    zeros: Tensor | None,
    out: Tensor,
    sizes: tuple[int, int, int, int, int],
) -> None:
    """Bring a weight's codes, or its numbers, into the order that products read.

    sizes: outputs, inputs, half of the outputs if they come by turns, inputs that share a scale,
    and `Format` in quire_cpu.h.
    """
    addresses = (None if each is None else each.data_ptr() for each in (codes, scale, zeros, out))
    args = PackArgs(*addresses, *sizes, native.num_threads())
    native.compiled().quire_cpu_pack(ctypes.byref(args))
