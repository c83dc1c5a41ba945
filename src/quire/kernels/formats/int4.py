"""INT4 weights: four bits, and a float16 scale for each group of inputs of an output.

Activations are rounded to bytes while the model runs: each 32 with a scale of their own, or, for
many tokens, a row with one. In the format that Quire makes, groups are of 32, and the weight is
Hadamard-rotated by matrices of 32 before it is rounded, and so are the inputs of each layer. Codes
made elsewhere have groups of any multiple of 32, may have a zero point for each, and are not
rotated, nor are their inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from quire.kernels.formats.native_format import NativeFormat
from quire.kernels.formats.weight_format import Variants, WeightFormat
from quire.kernels.operands import Int4Weight, QuantizedWeight, QuantSpec

if TYPE_CHECKING:
    from torch import Tensor


class Int4(WeightFormat):
    """Codes [N, K / 2] in uint8, scales [N, K / group] in float16; zero points, permutation."""

    __slots__ = ()
    codes_per_byte: ClassVar[int] = 2
    has_groups: ClassVar[bool] = True
    native_formats: ClassVar[Variants] = {
        (False, False): NativeFormat.INT4,
        (True, False): NativeFormat.INT4_ZEROS,
        (False, True): NativeFormat.INT4_HADAMARD,
    }
    is_rounded_natively: ClassVar[bool] = True
    has_float16_scales: ClassVar[bool] = True
    early_launch_bytes: ClassVar[int] = 16  # its GEMM takes little of a multiprocessor

    def row_bytes(self, k: int) -> int:
        """See `WeightFormat`. Where it is rotated, packed codes have another scale in bytes."""
        spec = self.spec
        scales = k // spec.group * (3 if spec.zeros else 2)
        return k // 2 + scales + (4 if spec.hadamard else 0)

    def _weight(
        self, codes: Tensor, scale: Tensor, zeros: Tensor | None, permutation: Tensor | None
    ) -> Int4Weight:
        return Int4Weight(codes, scale, zeros, self.spec.group, self.spec.hadamard, permutation)

    def _round(self, weight: Tensor) -> tuple[Tensor, ...]:
        """See `WeightFormat`. Zero points are in the middle."""
        import torch

        from quire.kernels.reference_quantized import quantize_int4

        found = quantize_int4(weight, self.spec.group, hadamard=self.spec.hadamard)
        if not self.spec.zeros:
            return found.codes, found.scale
        return found.codes, found.scale, torch.full_like(found.scale, 8, dtype=torch.uint8)

    def dequantize(self, weight: QuantizedWeight) -> Tensor:
        """See `WeightFormat`. Inputs are in the weight's order."""
        from quire.kernels.reference_quantized import dequantize_int4

        assert isinstance(weight, Int4Weight)
        return dequantize_int4(weight)

    def linear(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        """See `WeightFormat`."""
        from quire.kernels.reference_quantized import linear_int4

        assert isinstance(weight, Int4Weight)
        return linear_int4(x, weight, bias)


INT4 = Int4(QuantSpec("int4", group=32, hadamard=True))
INT4_GROUP_64 = Int4(QuantSpec("int4", group=64))  # for a GPU, which does not rotate
