"""Weights in bytes by groups of inputs, for activations in 16 bits (w8a16).

Codes of checkpoints that were not made for rounded activations: GPTQ in eight bits, w8a16 of
compressed-tensors, and FP8 in blocks, whose numbers are rounded to such codes. A GPU reads them as
two planes of four bits, see kernels/triton/ops/int4_weight.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import Int8GroupWeight, QuantizedWeight

if TYPE_CHECKING:
    from torch import Tensor

_STEP = 256  # columns, of which a plane has a multiple


class Int8Group(WeightFormat):
    """Codes [N, K] in uint8, scales [N, K / group] in float16; zero points, permutation."""

    __slots__ = ()
    has_groups: ClassVar[bool] = True

    def row_bytes(self, k: int) -> int:
        """See `WeightFormat`: as on a GPU, two planes with scales and zero points of their own."""
        width = -(-k // _STEP) * _STEP
        return width + 6 * (width // math.gcd(self.spec.group, 128)) + 4

    def num_bytes(self, n: int, k: int) -> int:
        """See `WeightFormat`. A permutation is there in any case."""
        return n * self.row_bytes(k) + 8 * (-(-k // _STEP) * _STEP)

    def rows(self, tensors: Mapping[str, Tensor]) -> Int8GroupWeight:
        """See `WeightFormat`."""
        zeros = tensors["zeros"] if self.spec.zeros else None
        permutation = tensors["permutation"] if self.spec.permuted else None
        codes, scale = tensors["codes"], tensors["scale"]
        return Int8GroupWeight(codes, scale, zeros, self.spec.group, permutation)

    def round_rows(self, weight: Tensor) -> Int8GroupWeight:
        """See `WeightFormat`. Zero points are in the middle, and inputs in their own order."""
        import torch

        from quire.kernels.reference_quantized import by_pieces, quantize_int8_group

        codes, scale = by_pieces(weight, lambda own: quantize_int8_group(own, self.spec.group))
        rows = Int8GroupWeight(codes, scale, None, self.spec.group)
        if self.spec.zeros:
            rows = replace(rows, zeros=torch.full_like(codes[:, : scale.shape[1]], 128))
        if self.spec.permuted:
            order = torch.arange(weight.shape[1], dtype=torch.int32, device=weight.device)
            rows = replace(rows, permutation=order)
        return rows

    def dequantize(self, weight: QuantizedWeight) -> Tensor:
        """See `WeightFormat`. Inputs are in the weight's order."""
        from quire.kernels.reference_quantized import dequantize_int8_group

        assert isinstance(weight, Int8GroupWeight)
        return dequantize_int8_group(weight)

    def linear(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        """See `WeightFormat`."""
        from quire.kernels.reference_quantized import linear_int8_group

        assert isinstance(weight, Int8GroupWeight)
        return linear_int8_group(x, weight, bias)
