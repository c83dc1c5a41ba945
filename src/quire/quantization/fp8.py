"""Weights as FP8 (e4m3) with a scale for each output: half of 16 bits, multiplied as they are.

Where tensor cores multiply FP8 by FP8, activations are rounded to FP8 on the way, each token by its
own scale; elsewhere the codes are widened and activations stay as they are. (Micikevicius et al.,
2022)
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.dispatch import Kernels
from quire.kernels.operands import Fp8Weight, QuantizedWeight
from quire.quantization.scheme import WeightForm, in_pieces


class Fp8:
    """Codes [N, K] and a scale [N]."""

    names: tuple[str, ...] = ("codes", "scale")

    def make(self, weight: Tensor, kernels: Kernels) -> tuple[Tensor, ...]:
        """Quantize some rows at a time, so that the copy in float32 stays small."""
        weight = weight.flatten(0, -2)  # a CPU's gate and up rows may come as a view of blocks
        codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
        scale = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
        for rows in in_pieces(*weight.shape):
            codes[rows], scale[rows] = kernels.quantize_fp8(weight[rows])
        return codes, scale

    def operand(self, kept: tuple[Tensor, ...]) -> Fp8Weight:
        """The two by their names."""
        return Fp8Weight(*kept)

    def multiply(
        self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, kernels: Kernels
    ) -> Tensor:
        """As `kernels.linear_fp8`."""
        assert isinstance(weight, Fp8Weight)
        return kernels.linear_fp8(x, weight.codes, weight.scale, bias)


FORM: WeightForm = Fp8()
