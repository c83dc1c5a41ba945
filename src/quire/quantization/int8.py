"""INT8 weights: signed bytes with a float32 scale for each output, for INT8 activations.

Symmetric and rounded to the nearest. While the model runs, each token's activations are rounded to
bytes with one scale. In the usual format the weight is Hadamard-rotated before it is rounded, 64
columns (or 32, or 16) at a time, and so are the inputs of each layer: outliers no longer set the
scale. Codes made elsewhere are not rotated, and inputs are not, either. (Dettmers et al., 2022;
rotation: Ashkboos et al., 2024)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire.kernels.operands import Int8Weight, QuantSpec
from quire.quantization.weight_format import WeightFormat

if TYPE_CHECKING:
    from torch import Tensor


class Int8(WeightFormat):
    """Weight format INT8: codes [N, K] and a scale [N]."""

    __slots__ = ()

    def rows(self, tensors: Mapping[str, Tensor]) -> Int8Weight:
        """See `WeightFormat`."""
        return Int8Weight(tensors["codes"], tensors["scale"], self.spec.hadamard)


INT8 = Int8(QuantSpec("int8", hadamard=True))
