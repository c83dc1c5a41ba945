"""Weights as FP8 (e4m3) with a scale for each output: half of 16 bits, multiplied as they are.

Where tensor cores multiply FP8 by FP8, activations are rounded to FP8 on the way, each token by its
own scale; elsewhere the codes are widened and activations stay as they are. (Micikevicius et al.,
2022)
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.dispatch import Kernels
from quire.kernels.operands import Fp8Weight
from quire.quantization.scheme import WeightForm

_CHUNK = 2**24  # elements that are widened to float32 at once


class Fp8:
    """Codes [N, K] and a scale [N]."""

    names: tuple[str, ...] = ("codes", "scale")

    def make(self, weight: Tensor, kernels: Kernels) -> tuple[Tensor, ...]:
        """Quantize some rows at a time, so that the copy in float32 stays small."""
        codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
        scale = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
        step = max(1, _CHUNK // weight.shape[1])
        for start in range(0, len(weight), step):
            rows = slice(start, start + step)
            codes[rows], scale[rows] = kernels.quantize_fp8(weight[rows])
        return codes, scale

    def multiply(
        self, x: Tensor, kept: tuple[Tensor, ...], bias: Tensor | None, kernels: Kernels
    ) -> Tensor:
        """As `kernels.linear_fp8`."""
        codes, scale = kept
        return kernels.linear_fp8(x, codes, scale, bias)

    def operand(self, kept: tuple[Tensor, ...]) -> Fp8Weight:
        """The two by their names."""
        return Fp8Weight(*kept)


FORM: WeightForm = Fp8()
