"""Weights of 8 and 4 bits for the native library: quantized, and packed from canonical rows.

Owns which sizes are packed. The layout of packed blocks is described in `native/linear_int.h`; it
is the same for every instruction set.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.cpu import native
from quire.kernels.cpu.native_structs import FORMATS, QUANTIZE_ARGS, NativeFormat
from quire.kernels.cpu.tensor_ops import TENSOR_DTYPES, pack_native
from quire.kernels.operands import (
    Int4Weight,
    LinearWeight,
    PackedWeight,
    QuantizedWeight,
    QuantSpec,
)

BLOCK = 16  # outputs of a linear operation come in multiples of this
STEP = 32  # and inputs: so many are rounded and summed at a time
_WIDE = 32  # outputs of a packed block


def native_format(spec: QuantSpec, n: int, k: int) -> NativeFormat | None:
    """The native format for a weight [n, k] of a spec; None for those that are not served."""
    if n % BLOCK or k % (spec.group or STEP) or spec.group % STEP:
        return None
    return FORMATS.get((spec.codes, spec.zeros, spec.hadamard))


def quantize(weight: Tensor, spec: QuantSpec) -> LinearWeight:
    """Twin of `reference.quantize`: rounded and packed in one pass, where sizes allow."""
    n, k = size_of(weight)
    found = native_format(spec, n, k)
    if found is None or weight.dtype not in TENSOR_DTYPES:
        return pack_rows(reference.quantize(weight, spec))
    source, half = source_of(weight)
    out = _packed_blocks(spec, n, k)
    native.compiled().quire_cpu_quantize(
        QUANTIZE_ARGS.pack(
            source.data_ptr(), out.data_ptr(), n, k, half,
            spec.group, TENSOR_DTYPES[weight.dtype], found, native.num_threads(),
        )
    )  # fmt: skip
    return PackedWeight(out, n, k, spec.group, found)


def pack_rows(weight: QuantizedWeight) -> LinearWeight:
    """Twin of `reference.pack` for canonical rows: packed, where sizes allow."""
    spec, n = weight.spec, len(weight.codes)
    k = weight.codes.shape[1] * spec.codes_per_byte
    found = native_format(spec, n, k)
    if found is None:
        return weight
    zeros, permutation = None, None
    if isinstance(weight, Int4Weight):
        zeros, permutation = weight.zeros, weight.permutation
    codes, scale = weight.codes.contiguous(), weight.scale.contiguous()
    zeros = None if zeros is None else zeros.contiguous()
    out = _packed_blocks(spec, n, k)
    pack_native(codes, scale, zeros, out, n=n, k=k, group=spec.group, layout=found)
    return PackedWeight(out, n, k, spec.group, found, permutation)


def _packed_blocks(spec: QuantSpec, n: int, k: int) -> Tensor:
    """uint8 [blocks, bytes of a block], uninitialised."""
    return torch.empty(-(-n // _WIDE), _WIDE * spec.row_bytes(k), dtype=torch.uint8)


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
