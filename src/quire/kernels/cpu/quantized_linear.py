"""Weights of 8 and 4 bits: made from others, and in the order that the compiled products read.

Owns rounding, packing, and how a packed weight is told from one that PyTorch's operations read:
its scales lie with its codes, and `scale` is an empty [N, 0] that says how many outputs there are.
`native/linear_int.h` tells the order; it is the same for every instruction set.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quire.kernels import reference_quantized
from quire.kernels.cpu import native
from quire.kernels.cpu.native_structs import INT4, INT4_SPREAD, INT4_ZEROS, INT8, QUANTIZE_ARGS
from quire.kernels.cpu.tensor_ops import DTYPES, pack
from quire.kernels.operands import Int4Weight, Int8Weight

BLOCK = 16  # outputs of a product come in multiples of this
STEP = 32  # and inputs: so many are rounded and summed at a time
_WIDE = 32  # outputs of a packed block


def to_int8(weight: Tensor) -> Int8Weight:
    """Twin of `reference_integers.to_int8`: rounded and packed in one pass, where sizes allow."""
    n, k = size_of(weight)
    if weight.dtype not in DTYPES or n % BLOCK or k % STEP:
        return prepare_int8(reference_quantized.to_int8(in_rows(weight)))
    out = _room(n, _WIDE * (k + 4))
    _quantize(weight, out, 0, INT8)
    return Int8Weight(out, torch.empty(n, 0))


def to_int4(weight: Tensor, group: int = 32) -> Int4Weight:
    """Twin of `reference_integers.to_int4`: rounded and packed in one pass, where sizes allow."""
    n, k = size_of(weight)
    if weight.dtype not in DTYPES or n % BLOCK or group % STEP:
        return prepare_int4(reference_quantized.to_int4(in_rows(weight), group))
    out = _room(n, _WIDE * (4 + k // 2 + 2 * (k // group)))
    _quantize(weight, out, group, INT4_SPREAD)
    return Int4Weight(out, torch.empty(n, 0, dtype=torch.float16), None, group, spread=True)


def by_turns(weight: Tensor) -> Tensor:
    """A weight [2I, K] whose halves come by turns, 16 rows of each: a view [I / 16, 2, 16, K]."""
    return weight.view(2, -1, BLOCK, weight.shape[-1]).transpose(0, 1)


def size_of(weight: Tensor) -> tuple[int, int]:
    """Rows and columns of a weight [N, K], or of one whose halves come by turns."""
    return weight.shape[:-1].numel(), weight.shape[-1]


def in_rows(weight: Tensor) -> Tensor:
    """The same as [N, K]; a copy where halves come by turns."""
    return weight.flatten(0, -2)


def source_of(weight: Tensor) -> tuple[Tensor, int]:
    """A tensor that begins where the numbers do, and half of the rows where they come by turns."""
    if weight.dim() == 4 and weight.transpose(0, 1).is_contiguous():
        return weight, size_of(weight)[0] // 2
    return in_rows(weight).contiguous(), 0


def _room(n: int, block_bytes: int) -> Tensor:
    return torch.empty(-(-n // _WIDE), block_bytes, dtype=torch.uint8)


def _quantize(weight: Tensor, out: Tensor, group: int, form: int) -> None:
    source, half = source_of(weight)
    native.compiled().quire_cpu_quantize(
        QUANTIZE_ARGS.pack(
            source.data_ptr(), out.data_ptr(), *size_of(weight), half,
            group, DTYPES[weight.dtype], form, native.num_threads(),
        )
    )  # fmt: skip


def is_packed(weight: Int8Weight | Int4Weight) -> bool:
    """Whether `prepare_int8` or `prepare_int4` packed it."""
    return weight.scale.dim() == 2 and weight.scale.shape[1] == 0


def prepare_int8(weight: Int8Weight) -> Int8Weight:
    """Twin of `reference_integers.prepare_int8`: packed, where sizes allow."""
    n, k = weight.codes.shape
    if n % BLOCK or k % STEP:
        return weight
    packed = _packed(weight.codes, weight.scale, None, INT8, k, _WIDE * (k + 4))
    return Int8Weight(packed, weight.scale.new_empty(n, 0))


def prepare_int4(weight: Int4Weight) -> Int4Weight:
    """Twin of `reference_integers.prepare_int4`: packed, where sizes allow."""
    n, k, group, zeros = len(weight.codes), weight.codes.shape[1] * 2, weight.group, weight.zeros
    if n % BLOCK or group % STEP:
        return weight
    group_bytes = _WIDE * (2 if zeros is None else 3) + _WIDE * group // 2
    block_bytes = k // group * group_bytes + (_WIDE * 4 if weight.spread else 0)
    packed = _packed(weight.codes, weight.scale, zeros, format_of(weight), group, block_bytes)
    none = None if zeros is None else zeros.new_empty(n, 0)
    return replace(weight, codes=packed, scale=weight.scale.new_empty(n, 0), zeros=none)


def format_of(weight: Int4Weight) -> int:
    """`Format` in quire_cpu.h."""
    if weight.spread:
        return INT4_SPREAD
    return INT4 if weight.zeros is None else INT4_ZEROS


def _packed(
    codes: Tensor, scale: Tensor, zeros: Tensor | None, kind: int, group: int, block_bytes: int
) -> Tensor:
    """uint8 [blocks, bytes of a block]; codes and the rest as kernels/operands.py tells."""
    codes, scale = codes.contiguous(), scale.contiguous()
    zeros = None if zeros is None else zeros.contiguous()
    n, k = len(codes), codes.shape[1] * (1 if kind == INT8 else 2)
    out = _room(n, block_bytes)
    pack(codes, scale, zeros, out, (n, k, 0, group, kind))
    return out
