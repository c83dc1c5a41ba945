"""Weights as signed bytes with a scale for each output, multiplied with activations in bytes, too.

Symmetric and rounded to the nearest; activations get a scale for each token while the model runs.
(Dettmers et al., 2022, without its outliers)
"""

from __future__ import annotations

from torch import Tensor

from quire.kernels.dispatch import Kernels
from quire.kernels.operands import Int8Weight, QuantizedWeight
from quire.quantization.scheme import WeightForm


class Int8:
    """Codes [N, K] and a scale [N], in the order that the device's product reads."""

    names: tuple[str, ...] = ("codes", "scale")

    def make(self, weight: Tensor, kernels: Kernels) -> tuple[Tensor, ...]:
        """Round it to the nearest."""
        ready = kernels.to_int8(weight)
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
