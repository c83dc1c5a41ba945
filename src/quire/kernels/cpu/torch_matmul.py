"""Linear operations on a CPU that the native library does not serve, by PyTorch's operations.

They are what float16 checkpoints, codes without a native kernel and odd sizes get, and all where
the library was not built. Two of them are faster than the twins in `reference.py`; everything else
falls back to those. A type that the processor has to emulate is converted to float32 once there are
enough rows to pay for it: with AVX2 alone, 256 rows by 8192 x 2048 weights take 240 ms in place of
960 in float16, 660 in place of 2,400 in bfloat16. Codes are dequantized in tiles, which bounds the
memory for it.
"""

from __future__ import annotations

import functools
from operator import itemgetter

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels import reference
from quire.kernels.formats.table import format_of
from quire.kernels.operands import LinearWeight, QuantizedWeight
from quire.kernels.reference_arrays import few_rows

_TILE = 2**22  # elements of a weight converted at once: 16 MiB of float32, which the cache keeps
_MANY_ROWS = 64  # from here on conversion costs less than emulation


def linear(x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`."""
    if isinstance(weight, QuantizedWeight):
        return _linear_rows(x, weight, bias)
    if isinstance(weight, Tensor) and is_emulated(weight.dtype) and len(x) >= _MANY_ROWS:
        return _linear_float32(x, weight, bias)
    return reference.linear(x, weight, bias)


def _linear_rows(x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
    """The reference product with codes of any format, dequantized in tiles → [T, N]."""
    own, out = format_of(weight.spec), x.new_empty(len(x), len(weight.codes))
    for rows in few_rows(*own.size_of(weight), _TILE):
        piece = weight.map_rows(itemgetter(rows))
        out[:, rows] = own.linear(x, piece, None if bias is None else bias[rows])
    return out


def _linear_float32(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, K] · weightᵀ + bias in float32, with the weight [N, K] converted in tiles → [T, N]."""
    x32, out = x.float(), x.new_empty(len(x), len(weight))
    for rows in few_rows(weight.shape[0], weight.shape[1], _TILE):
        out[:, rows] = F.linear(x32, weight[rows].float())
    return out if bias is None else out.add_(bias)


@functools.cache
def is_emulated(dtype: torch.dtype) -> bool:
    """Whether the processor has no matmul instructions for this data type."""
    if dtype == torch.bfloat16:
        return not (torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
    return dtype != torch.float32
