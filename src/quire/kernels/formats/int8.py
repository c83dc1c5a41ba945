"""INT8 weights: signed bytes with a float32 scale for each output, for INT8 activations.

Symmetric and rounded to the nearest. While the model runs, each token's activations are rounded to
bytes with one scale. In the usual format the weight is Hadamard-rotated before it is rounded, 64
columns (or 32, or 16) at a time, and so are the inputs of each layer: outliers no longer set the
scale. Codes made elsewhere are not rotated, and inputs are not, either. (Dettmers et al., 2022;
rotation: Ashkboos et al., 2024)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.formats.native_format import NativeFormat
from quire.kernels.formats.weight_format import Variants, WeightFormat
from quire.kernels.operands import Int8Weight, QuantizedWeight, QuantSpec

if TYPE_CHECKING:
    from torch import Tensor


class Int8(WeightFormat):
    """Weight format INT8: codes [N, K] and a scale [N]."""

    __slots__ = ()
    native_formats: ClassVar[Variants] = {
        (False, False): NativeFormat.INT8,
        (False, True): NativeFormat.INT8_HADAMARD,
    }
    is_rounded_natively: ClassVar[bool] = True

    def row_bytes(self, k: int) -> int:
        """See `WeightFormat`."""
        return k + 4

    def rows(self, tensors: Mapping[str, Tensor]) -> Int8Weight:
        """See `WeightFormat`."""
        return Int8Weight(tensors["codes"], tensors["scale"], self.spec.hadamard)

    def round_rows(self, weight: Tensor) -> Int8Weight:
        """See `WeightFormat`."""
        from quire.kernels.reference_quantized import by_pieces, quantize_int8

        def rounded(piece: Tensor) -> tuple[Tensor, Tensor]:
            found = quantize_int8(piece, hadamard=self.spec.hadamard)
            return found.codes, found.scale

        codes, scale = by_pieces(weight, rounded)
        return Int8Weight(codes, scale, self.spec.hadamard)

    def dequantize(self, weight: QuantizedWeight) -> Tensor:
        """See `WeightFormat`."""
        return weight.codes.float() * weight.scale[:, None]

    def linear(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        """See `WeightFormat`."""
        from quire.kernels.reference_quantized import linear_int8

        assert isinstance(weight, Int8Weight)
        return linear_int8(x, weight, bias)


INT8 = Int8(QuantSpec("int8", hadamard=True))
INT8_UNROTATED = Int8(QuantSpec("int8"))  # for a GPU, which does not rotate
