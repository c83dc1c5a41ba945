"""NF4 weights: four-bit codes of the quantiles of a normal distribution. (Dettmers et al., 2023)

Each group of 64 inputs of an output has its largest magnitude as scale, in float16: 4.25 bits a
weight. bitsandbytes' double quantization stores that scale in eight bits (4.13 bits in all); its
checkpoints' scales are converted to it when they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from quire.kernels.formats.codebook_format import CodebookFormat
from quire.kernels.formats.native_format import NativeFormat
from quire.kernels.formats.weight_format import Variants
from quire.kernels.operands import QuantSpec

if TYPE_CHECKING:
    from torch import Tensor


class Nf4(CodebookFormat):
    """Weight format NF4: indices of 16 quantiles, and float16 scales."""

    __slots__ = ()
    numbers: ClassVar[tuple[float, ...]] = (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    )  # fmt: skip
    unit: ClassVar[float] = 1.0 / 127.0
    native_formats: ClassVar[Variants] = {(False, False): NativeFormat.NF4}
    scale_bytes: ClassVar[int] = 2
    has_float16_scales: ClassVar[bool] = True

    def _round(self, weight: Tensor) -> tuple[Tensor, ...]:
        from quire.kernels.reference_codebook import quantize_by_largest

        return quantize_by_largest(weight, self.spec.group, self.numbers)

    def wide_scales(self, scale: Tensor) -> Tensor:
        """See `CodebookFormat`."""
        return scale.float()


NF4 = Nf4(QuantSpec("nf4", group=64))
