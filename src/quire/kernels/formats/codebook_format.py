"""Weight formats whose four-bit codes are indices of 16 numbers, times the scale of a group.

A native kernel looks codes up as signed bytes: the numbers are whole multiples of a `unit`, rounded
to it where they are not (NF4's, by at most half of 1 / 127), which the reference product does, too.
Activations are rounded to bytes, each 32 with a scale of their own, as with INT4.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.formats.native_format import NATIVE_CODEBOOKS
from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import CodebookWeight, QuantizedWeight

if TYPE_CHECKING:
    from torch import Tensor


class CodebookFormat(WeightFormat):
    """Codes [N, K / 2] in uint8, of two the first in the lower four bits; scales [N, K / group].

    numbers: what the codes 0 to 15 stand for. unit: that of the native kernel's bytes.
    scale_bytes: size of one scale in bytes. Defining a format raises ValueError where a native
    kernel that it names has other numbers.
    """

    __slots__ = ()
    codes_per_byte: ClassVar[int] = 2
    has_groups: ClassVar[bool] = True
    numbers: ClassVar[tuple[float, ...]]
    unit: ClassVar[float]
    scale_bytes: ClassVar[int]

    def __init_subclass__(cls) -> None:
        for layout in cls.native_formats.values():
            if NATIVE_CODEBOOKS.get(layout) != (cls._in_units(), cls.unit):
                raise ValueError(
                    f"{cls.__name__} has other numbers than the native kernel of {layout.name}; "
                    "leave native_formats empty, or add a kernel of its own"
                )

    @classmethod
    def _in_units(cls) -> tuple[int, ...]:
        """The 16 numbers in whole units."""
        return tuple(round(number / cls.unit) for number in cls.numbers)

    def row_bytes(self, k: int) -> int:
        """See `WeightFormat`."""
        return k // 2 + k // self.spec.group * self.scale_bytes

    def _weight(self, codes: Tensor, scale: Tensor, *_: Tensor | None) -> CodebookWeight:
        return CodebookWeight(codes, scale, self.spec.codes, self.spec.group)

    @abstractmethod
    def wide_scales(self, scale: Tensor) -> Tensor:
        """Scales in float32."""

    def dequantize(self, weight: QuantizedWeight) -> Tensor:
        """See `WeightFormat`."""
        from quire.kernels.reference_codebook import look_up

        return look_up(weight.codes, self.wide_scales(weight.scale), self.numbers)

    def linear(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        """See `WeightFormat`."""
        from quire.kernels.reference_codebook import linear_bytes

        return linear_bytes(x, self.dequantize_bytes(weight), bias)

    def dequantize_bytes(self, weight: QuantizedWeight) -> Tensor:
        """The numbers that are multiplied: whole multiples of the unit. float32 [N, K]."""
        from quire.kernels.reference_codebook import look_up

        units = tuple(map(float, self._in_units()))
        return look_up(weight.codes, self.wide_scales(weight.scale) * self.unit, units)
