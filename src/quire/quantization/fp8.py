"""FP8 weights: e4m3 codes with a float32 scale for each output; half the bytes of 16 bits.

Where tensor cores multiply FP8 by FP8, activations are rounded to FP8 on the way, each token with a
scale of its own; elsewhere codes are widened and activations are not rounded. (Micikevicius et
al., 2022)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire.kernels.operands import Fp8Weight, QuantSpec
from quire.quantization.weight_format import WeightFormat

if TYPE_CHECKING:
    from torch import Tensor


class Fp8(WeightFormat):
    """Weight format FP8: codes [N, K] in e4m3 and a scale [N]."""

    __slots__ = ()

    def rows(self, tensors: Mapping[str, Tensor]) -> Fp8Weight:
        """See `WeightFormat`."""
        return Fp8Weight(tensors["codes"], tensors["scale"])


FP8 = Fp8(QuantSpec("fp8"))
