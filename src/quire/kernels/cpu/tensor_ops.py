"""Native operations on tensors: norm, checks of rows, packing; and the data types they take."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from quire.array_types import Array
from quire.dtypes import NATIVE_DTYPES
from quire.kernels import reference
from quire.kernels.cpu import native
from quire.kernels.cpu.native_structs import ROW_DTYPES, PackArgs, RmsNormArgs
from quire.kernels.formats.native_format import NativeFormat
from quire.kernels.torch_dtypes import torch_dtype

TENSOR_DTYPES = {torch_dtype(name): NATIVE_DTYPES[name] for name in ROW_DTYPES}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Twin of `reference.rms_norm`; between its steps float32 is not rounded to bfloat16."""
    if x.dtype not in TENSOR_DTYPES:
        return reference.rms_norm(x, weight, eps)
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    args = RmsNormArgs(
        x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // size, size, eps,
        TENSOR_DTYPES[x.dtype], native.num_threads(),
    )  # fmt: skip
    native.compiled().quire_cpu_rms_norm(ctypes.byref(args))
    return out


def as_array(x: Tensor) -> Array:
    """The memory of a tensor on the host; of bfloat16 the bits, uint16."""
    found: Array = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
    return found


def pack_native(
    rows: Mapping[str, Tensor],
    out: Tensor,
    *,
    n: int,
    k: int,
    layout: NativeFormat,
    half: int = 0,
    group: int = 0,
) -> None:
    """Pack the rows of a weight [n, k] into `out`: contiguous tensors by their names.

    half: n / 2 if the halves of the rows are to be interleaved. group: inputs that share a scale.
    """
    found = (rows.get(name) for name in ("codes", "scale", "zeros"))
    addresses = (None if each is None else each.data_ptr() for each in found)
    args = PackArgs(*addresses, out.data_ptr(), n, k, half, group, layout, native.num_threads())
    native.compiled().quire_cpu_pack(ctypes.byref(args))
