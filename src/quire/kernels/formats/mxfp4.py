"""MXFP4 weights: e2m1 codes, and for each 32 inputs a power of two. (OCP Microscaling, 2023)

A code has one bit of sign, two of exponent and one of mantissa; a scale is an exponent in eight
bits, 127 added (e8m0): 4.25 bits a weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from quire.kernels.formats.codebook_format import CodebookFormat
from quire.kernels.formats.native_format import NativeFormat
from quire.kernels.formats.weight_format import Variants
from quire.kernels.operands import QuantSpec

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


MXFP4 = Mxfp4(QuantSpec("mxfp4", group=32))
