"""INT8 weights: signed bytes with a float32 scale for each output, for INT8 activations.

Symmetric and rounded to the nearest. While the model runs, each token's activations are rounded to
bytes with one scale. In the usual format the weight is Hadamard-rotated before it is rounded, 64
columns (or 32, or 16) at a time, and so are the inputs of each layer: outliers no longer set the
scale. Codes made elsewhere are not rotated, and inputs are not, either. (Dettmers et al., 2022;
rotation: Ashkboos et al., 2024)

For `w8a16` activations stay in 16 bits: on a CPU as two planes of bytes, by as many products again.
With a scale for each group of inputs (`w8a16` on a GPU, GPTQ's and compressed-tensors' eight bits)
they are not rounded at all; such codes of checkpoints become numbers on a CPU when they are read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.formats.native_format import NativeFormat
from quire.kernels.formats.weight_format import Variants, WeightFormat
from quire.kernels.operands import Int8Weight, QuantizedWeight, QuantSpec

if TYPE_CHECKING:
    from torch import Tensor

GROUP_STEP = 32  # groups are multiples of it
CHUNK = 256  # columns that a GPU reads at a time


class BytesByOutput(WeightFormat):
    """Codes [N, K] of a byte each, and a scale in float32 for each output [N]."""

    __slots__ = ()

    def row_bytes(self, k: int) -> int:
        """See `WeightFormat`."""
        return k + 4

    def dequantize(self, weight: QuantizedWeight) -> Tensor:
        """See `WeightFormat`."""
        return weight.codes.float() * weight.scale[:, None]


class Int8(BytesByOutput):
    """Weight format INT8: codes [N, K] and a scale [N]."""

    __slots__ = ()
    native_formats: ClassVar[Variants] = {
        (False, False): NativeFormat.INT8,
        (False, True): NativeFormat.INT8_HADAMARD,
    }
    is_rounded_natively: ClassVar[bool] = True

    def _round(self, weight: Tensor) -> tuple[Tensor, ...]:
        from quire.kernels.reference_quantized import quantize_int8

        found = quantize_int8(weight, hadamard=self.spec.hadamard)
        return found.codes, found.scale

    def _weight(self, codes: Tensor, scale: Tensor, *_: Tensor | None) -> Int8Weight:
        return Int8Weight(codes, scale, self.spec.hadamard)

    def linear(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        """See `WeightFormat`."""
        from quire.kernels.reference_quantized import linear_int8

        assert isinstance(weight, Int8Weight)
        return linear_int8(x, weight, bias)


INT8 = Int8(QuantSpec("int8", hadamard=True))
INT8_UNROTATED = Int8(QuantSpec("int8"))  # for a GPU, which does not rotate


class Int8A16(Int8):
    """INT8, not rotated, for activations of 16 bits."""

    __slots__ = ()
    native_formats: ClassVar[Variants] = {(False, False): NativeFormat.INT8_A16}

    def _weight(self, codes: Tensor, scale: Tensor, *_: Tensor | None) -> Int8Weight:
        return Int8Weight(codes, scale, hadamard=False, rounds=False)


INT8_A16 = Int8A16(QuantSpec("int8_a16"))


class GroupedBytes(WeightFormat):
    """Codes [N, K], scales [N, K / group] in float32; zero points, permutation."""

    __slots__ = ()
    has_groups: ClassVar[bool] = True

    def fits(self, n: int, k: int) -> bool:
        """See `WeightFormat`."""
        return self.spec.group % GROUP_STEP == 0 and super().fits(n, k)

    def row_bytes(self, k: int) -> int:
        """See `WeightFormat`: as a GPU has them, with scales in float16 and one of the row."""
        spec, whole = self.spec, -(-k // CHUNK) * CHUNK
        if spec.group == k and not spec.zeros:
            return whole + 4
        return whole + whole // math.gcd(spec.group, 128) * (3 if spec.zeros else 2) + 4

    def _weight(
        self, codes: Tensor, scale: Tensor, zeros: Tensor | None, permutation: Tensor | None
    ) -> QuantizedWeight:
        from quire.kernels.byte_operands import ByteWeight

        return ByteWeight(codes, scale, zeros, self.spec.codes, self.spec.group, permutation)

    def dequantize(self, weight: QuantizedWeight) -> Tensor:
        """See `WeightFormat`. Inputs are in the weight's order."""
        from quire.kernels.byte_operands import ByteWeight
        from quire.kernels.reference_bytes import dequantize_bytes

        assert isinstance(weight, ByteWeight)
        return dequantize_bytes(weight)

    def linear(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        """See `WeightFormat`."""
        from quire.kernels.byte_operands import ByteWeight
        from quire.kernels.reference_bytes import linear_bytes

        assert isinstance(weight, ByteWeight)
        return linear_bytes(x, weight, bias)


class GroupedInt8(GroupedBytes):
    """INT8 in groups: signed codes, and zero points in the same range."""

    __slots__ = ()

    def _round(self, weight: Tensor) -> tuple[Tensor, ...]:
        from quire.kernels.reference_bytes import quantize_int8_groups

        return quantize_int8_groups(weight, self.spec.group, zeros=self.spec.zeros)


INT8_GROUP_64 = GroupedInt8(QuantSpec("int8_group", 64))  # for a GPU
