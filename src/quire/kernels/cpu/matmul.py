"""Matrix products with 32- and 16-bit weights on the CPU. Owns the weight's form and reading.

Three ways, by what was measured on a weight of 8192 x 2048 with two threads:

- packed by oneDNN into the blocks that its kernels read: float32, and bfloat16 where AVX-512
  multiplies it. bf16 at 1 / 16 / 512 rows of x: 1.7 / 4.2 / 100 ms against 2.3 / 5.2 / 101 of
  F.linear; float32 at 16 rows 4.9 against 12.7. Not with AMX: 3.2 against 2.6 at 16 rows.
- tile by tile in float32: 16-bit weights on processors that cannot multiply them. bf16 at 16 / 512
  rows 14.5 / 100 ms against 20 / 380.
- plain, for a few rows of those: reading the weight is all the time there is.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

_TILE = 2**21  # elements of a weight widened at once: 8 MiB of float32, which the cache keeps
_FEW_ROWS = 8  # below, widening a weight costs more than emulated products


def prepare_linear(weight: Tensor) -> Tensor:
    """Twin of `reference.prepare_linear`: packed by oneDNN where that form is the faster one.

    The packed tensor is opaque: only `linear` can read it.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return weight
    if weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and _packs_bfloat16()):
        return torch.ops.mkldnn._reorder_linear_weight(weight)  # type: ignore[no-any-return]
    return weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`."""
    if weight.is_mkldnn:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    if weight.dtype == torch.float32 or _multiplies_bfloat16():
        return F.linear(x, weight, bias)
    if len(x) >= _FEW_ROWS:
        return _widened(x, weight, bias)
    if len(x) == 1 and bias is None:
        return torch.mv(weight, x[0]).unsqueeze(0)
    return F.linear(x, weight, bias)


@functools.cache
def _packs_bfloat16() -> bool:
    """Whether products of packed bfloat16 weights are the faster ones."""
    return bool(torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported())


@functools.cache
def _multiplies_bfloat16() -> bool:
    """Whether the processor has bfloat16 products at all."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in float32, with the weight widened tile by tile: [T, K] → [T, N]."""
    x32, out = x.float(), x.new_empty(len(x), len(weight))
    rows = max(1, _TILE // weight.shape[1])
    for start in range(0, len(weight), rows):
        tile = weight[start : start + rows].float()
        out[:, start : start + rows] = torch.ops.mkldnn._linear_pointwise(
            x32, tile, None, "none", [], ""
        )
    return out if bias is None else out.add_(bias)
