"""FP8 weights: e4m3 codes with a float32 scale for each output; half the bytes of 16 bits.

Where tensor cores multiply FP8 by FP8, activations are rounded to FP8 on the way, each token with a
scale of its own; elsewhere codes are dequantized and activations are not rounded. (Micikevicius et
al., 2022)

In blocks (DeepSeek's, 128 x 128) each row of a block has its scale; they are for a GPU, like INT8
in groups. `fp8_a16` and `fp8_block_a16` have the same codes for a GPU that leaves activations in 16
bits (W8A16).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.kernels.formats.int8 import CHUNK, BytesByOutput, GroupedBytes
from quire.kernels.formats.native_format import STEP
from quire.kernels.operands import Fp8Weight, QuantizedWeight, QuantSpec

if TYPE_CHECKING:
    from torch import Tensor


class Fp8(BytesByOutput):
    """Weight format FP8: codes [N, K] in e4m3 and a scale [N]."""

    __slots__ = ()

    def _round(self, weight: Tensor) -> tuple[Tensor, ...]:
        from quire.kernels.reference_fp8 import quantize_fp8

        return quantize_fp8(weight)

    def _weight(self, codes: Tensor, scale: Tensor, *_: Tensor | None) -> Fp8Weight:
        return Fp8Weight(codes, scale)

    def linear(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        """See `WeightFormat`."""
        from quire.kernels.reference_fp8 import linear_fp8

        return linear_fp8(x, weight.codes, weight.scale, bias)


FP8 = Fp8(QuantSpec("fp8"))


class Fp8A16(Fp8):
    """FP8 for activations of 16 bits. K: a multiple of 32."""

    __slots__ = ()

    def fits(self, n: int, k: int) -> bool:
        """See `WeightFormat`."""
        return k % STEP == 0 and super().fits(n, k)

    def row_bytes(self, k: int) -> int:
        """See `WeightFormat`: as Hopper's kernels have them."""
        return -(-k // CHUNK) * CHUNK + 4

    def _weight(self, codes: Tensor, scale: Tensor, *_: Tensor | None) -> Fp8Weight:
        return Fp8Weight(codes, scale, rounds=False)


FP8_A16 = Fp8A16(QuantSpec("fp8_a16"))


class BlockFp8(GroupedBytes):
    """FP8 in blocks: codes in e4m3."""

    __slots__ = ()

    def _round(self, weight: Tensor) -> tuple[Tensor, ...]:
        from quire.kernels.reference_bytes import quantize_fp8_groups

        return quantize_fp8_groups(weight, self.spec.group)
