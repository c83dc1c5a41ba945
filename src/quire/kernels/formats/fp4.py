"""MXFP4 and NVFP4 weights: e2m1 codes, and scales of 32 or 16 inputs.

A code has one bit of sign, two of exponent and one of mantissa. MXFP4's scale is an exponent of
two in eight bits, 127 added (e8m0): 4.25 bits a weight (OCP Microscaling, 2023). NVFP4's is in e4m3
and relative to one of the whole weight; here of each output, as parts of a fused weight differ in
theirs: 4.5 bits (NVIDIA, 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.formats.codebook_format import CodebookFormat
from quire.kernels.formats.native_format import NativeFormat
from quire.kernels.formats.weight_format import Variants
from quire.kernels.operands import CodebookWeight, QuantizedWeight, QuantSpec

if TYPE_CHECKING:
    from torch import Tensor


class Mxfp4(CodebookFormat):
    """Weight format MXFP4: codes in e2m1, and exponents of two as scales."""

    __slots__ = ()
    numbers: ClassVar[tuple[float, ...]] = (
        0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
    )  # fmt: skip
    unit: ClassVar[float] = 0.5
    native_formats: ClassVar[Variants] = {(False, False): NativeFormat.MXFP4}
    scale_bytes: ClassVar[int] = 1

    def _round(self, weight: Tensor) -> tuple[Tensor, ...]:
        from quire.kernels.reference_codebook import quantize_mxfp4

        return quantize_mxfp4(weight, self.spec.group)

    def wide_scales(self, scale: Tensor) -> Tensor:
        """See `CodebookFormat`."""
        from quire.kernels.reference_codebook import powers_of_two

        return powers_of_two(scale)


class Nvfp4(Mxfp4):
    """NVFP4, for GPUs alone: the same codes, scales in e4m3 and those of rows in float32."""

    __slots__ = ()
    native_formats: ClassVar[Variants] = {}

    def row_bytes(self, k: int) -> int:
        """See `WeightFormat`. Those in float32 are of rows."""
        return super().row_bytes(k) + 4

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `WeightFormat`."""
        codes, scale, row_scale = (tensors[name] for name in self.row_names)
        return CodebookWeight(codes, scale, self.spec.codes, self.spec.group, row_scale)

    @property
    def row_names(self) -> tuple[str, ...]:
        """See `WeightFormat`."""
        return "codes", "scale", "row_scale"

    def _round(self, weight: Tensor) -> tuple[Tensor, ...]:
        from quire.kernels.reference_codebook import quantize_nvfp4

        return quantize_nvfp4(weight, self.spec.group)

    def dequantize(self, weight: QuantizedWeight) -> Tensor:
        """See `WeightFormat`."""
        from quire.kernels.reference_codebook import look_up

        assert isinstance(weight, CodebookWeight)
        assert weight.row_scale is not None
        scale = self.wide_scales(weight.scale) * weight.row_scale[:, None]
        return look_up(weight.codes, scale, self.numbers)

    def dequantize_bytes(self, weight: QuantizedWeight) -> Tensor:
        """See `CodebookFormat`; every number is a whole multiple of the unit."""
        return self.dequantize(weight)

    def wide_scales(self, scale: Tensor) -> Tensor:
        """See `CodebookFormat`. Without those of rows."""
        return scale.float()


MXFP4 = Mxfp4(QuantSpec("mxfp4", group=32))
NVFP4 = Nvfp4(QuantSpec("nvfp4", group=16))
