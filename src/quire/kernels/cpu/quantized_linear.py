"""Weights of codes for the native library: quantized, and packed from canonical rows.

Weight formats know which sizes are packed (`WeightFormat.native_format`). The layout of packed
blocks is described in `native/linear_int.h`; it is the same for every instruction set.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.cpu import native
from quire.kernels.cpu.native_structs import QUANTIZE_ARGS
from quire.kernels.cpu.tensor_ops import TENSOR_DTYPES, pack_native
from quire.kernels.formats.native_format import BLOCK, WIDE
from quire.kernels.formats.table import format_of
from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import LinearWeight, PackedWeight, QuantizedWeight, QuantSpec


def quantize(weight: Tensor, spec: QuantSpec) -> LinearWeight:
    """Twin of `reference.quantize`: rounded and packed in one pass, where sizes allow."""
    n, k = size_of(weight)
    own = format_of(spec)
    found = own.native_format(n, k)
    is_plain = not (spec.zeros or spec.permuted)
    if not (found and is_plain and own.is_rounded_natively and weight.dtype in TENSOR_DTYPES):
        return pack_rows(reference.quantize(weight, spec))
    source, half = source_of(weight)
    out = _packed_blocks(own, n, k)
    native.compiled().quire_cpu_quantize(
        QUANTIZE_ARGS.pack(
            source.data_ptr(), out.data_ptr(), n, k, half,
            spec.group, TENSOR_DTYPES[weight.dtype], found, native.num_threads(),
        )
    )  # fmt: skip
    return PackedWeight(out, n, k, spec.group, found)


def pack_rows(weight: QuantizedWeight) -> LinearWeight:
    """Twin of `reference.pack` for canonical rows: packed, where sizes allow."""
    own = format_of(weight.spec)
    n, k = own.size_of(weight)
    found = own.native_format(n, k)
    if found is None:
        return weight
    out, group = _packed_blocks(own, n, k), weight.spec.group
    rows = {name: tensor.contiguous() for name, tensor in weight.row_tensors.items()}
    pack_native(rows, out, n=n, k=k, group=group, layout=found)
    return PackedWeight(out, n, k, group, found, weight.tensors.get("permutation"))


def _packed_blocks(own: WeightFormat, n: int, k: int) -> Tensor:
    """uint8 [blocks, bytes of a block], uninitialised."""
    return torch.empty(-(-n // WIDE), WIDE * own.row_bytes(k), dtype=torch.uint8)


def interleaved(weight: Tensor) -> Tensor:
    """A weight [2I, K] with its halves interleaved, 16 rows of each: a view [I / 16, 2, 16, K]."""
    return weight.view(2, -1, BLOCK, weight.shape[-1]).transpose(0, 1)


def size_of(weight: Tensor) -> tuple[int, int]:
    """Rows and columns of a weight [N, K], or of one whose halves are interleaved."""
    return weight.shape[:-1].numel(), weight.shape[-1]


def in_rows(weight: Tensor) -> Tensor:
    """The weight as [N, K]; a copy where its halves are interleaved."""
    return weight.flatten(0, -2)


def source_of(weight: Tensor) -> tuple[Tensor, int]:
    """A tensor that begins where the numbers do, and half of the rows if they are interleaved."""
    if weight.dim() == 4 and weight.transpose(0, 1).is_contiguous():
        return weight, size_of(weight)[0] // 2
    return in_rows(weight).contiguous(), 0
