"""Weights as signed bytes with a scale for each output, multiplied with activations in bytes, too.

Symmetric and rounded to the nearest; activations get a scale for each token while the model runs.
(Dettmers et al., 2022, without its outliers)
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.dispatch import Kernels
from quire.kernels.operands import Int8Weight, QuantizedWeight
from quire.quantization.scheme import WeightForm, in_pieces


class Int8:
    """Codes [N, K] and a scale [N], in the order that the device's product reads."""

    names: tuple[str, ...] = ("codes", "scale")

    def make(self, weight: Tensor, kernels: Kernels) -> tuple[Tensor, ...]:
        """Quantize some rows at a time, so that the copy in float32 stays small."""
        codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
        scale = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
        for rows in in_pieces(*weight.shape):
            piece = kernels.quantize_int8(weight[rows])
            codes[rows], scale[rows] = piece.codes, piece.scale
        ready = kernels.prepare_int8(Int8Weight(codes, scale))
        return ready.codes, ready.scale

    def operand(self, kept: tuple[Tensor, ...]) -> Int8Weight:
        """The two by their names."""
        return Int8Weight(*kept)

    def multiply(
        self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, kernels: Kernels
    ) -> Tensor:
        """As `kernels.linear_int8`."""
        assert isinstance(weight, Int8Weight)
        return kernels.linear_int8(x, weight, bias)


FORM: WeightForm = Int8()
