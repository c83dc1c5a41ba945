"""Weights of four bits, each 32 along a row with a scale of their own.

Rounded to the nearest behind Hadamard matrices of 32, as activations are, to signed bytes: each 32
by a scale of their own, or many rows by one for each.
"""

from __future__ import annotations

from torch import Tensor

from quire.kernels.dispatch import Kernels
from quire.kernels.operands import Int4Weight, QuantizedWeight
from quire.quantization.scheme import INT4_GROUP, WeightForm


class Int4:
    """Codes [N, K / 2] and scales [N, K / 32], in the order that the device's product reads."""

    names: tuple[str, ...] = ("codes", "scale")

    def make(self, weight: Tensor, kernels: Kernels) -> tuple[Tensor, ...]:
        """Round it to the nearest."""
        ready = kernels.to_int4(weight, INT4_GROUP)
        return ready.codes, ready.scale

    def operand(self, kept: tuple[Tensor, ...]) -> Int4Weight:
        """The two by their names."""
        codes, scale = kept
        return Int4Weight(codes, scale, None, INT4_GROUP, spread=True)

    def multiply(
        self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, kernels: Kernels
    ) -> Tensor:
        """As `kernels.linear_int4`."""
        assert isinstance(weight, Int4Weight)
        return kernels.linear_int4(x, weight, bias)


FORM: WeightForm = Int4()
