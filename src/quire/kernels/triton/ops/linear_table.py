"""The types of linear weights on a GPU: what computes with each, and what packs it.

A weight format is one entry here; the kernels that it needs are named in its `GpuLinear`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from quire.kernels import reference
from quire.kernels.byte_operands import ByteWeight, ByteWords
from quire.kernels.operands import (
    CodebookWeight,
    Fp8Weight,
    Int4Weight,
    Int4Words,
    Int8Weight,
    LinearWeight,
    QuantSpec,
)
from quire.kernels.triton.ops.byte_linear import BYTES
from quire.kernels.triton.ops.byte_words import pack_bytes, pack_fp8
from quire.kernels.triton.ops.dense_linear import DENSE
from quire.kernels.triton.ops.fp8_linear import FP8
from quire.kernels.triton.ops.gpu_linear import GpuLinear
from quire.kernels.triton.ops.int4_linear import INT4
from quire.kernels.triton.ops.int4_weight import pack_codebook, pack_int4
from quire.kernels.triton.ops.int8_linear import INT8

# of a linear layer [N, K]
GpuWeight: TypeAlias = Tensor | Fp8Weight | Int8Weight | Int4Words | ByteWords
_LINEARS: dict[type, GpuLinear[Any]] = {
    Fp8Weight: FP8, Int8Weight: INT8, Int4Words: INT4, ByteWords: BYTES,
}  # fmt: skip
_PACKING: dict[type, Callable[[Any], LinearWeight]] = {
    Int4Weight: pack_int4, CodebookWeight: pack_codebook, ByteWeight: pack_bytes,
    Fp8Weight: pack_fp8,
}  # fmt: skip


def linear_of(weight: GpuWeight) -> GpuLinear[Any]:
    """The object that computes with a weight; with tensors and their subclasses, `DENSE`."""
    return _LINEARS.get(type(weight), DENSE)


def pack(weight: LinearWeight) -> LinearWeight:
    """Twin of `reference.pack`: codes as words where kernels read these."""
    packing = _PACKING.get(type(weight))
    return weight if packing is None else packing(weight)


def pack_unread(weight: LinearWeight) -> LinearWeight:
    """`pack` of codes that no `GpuLinear` reads as they are; FP8 may be packed for speed alone."""
    return weight if type(weight) in _LINEARS else pack(weight)


def quantize(weight: Tensor, spec: QuantSpec) -> LinearWeight:
    """Twin of `reference.quantize`, packed."""
    return pack(reference.quantize(weight, spec))


def quantize_unread(weight: Tensor, spec: QuantSpec) -> LinearWeight:
    """Twin of `reference.quantize`, packed as `pack_unread` does."""
    return pack_unread(reference.quantize(weight, spec))
