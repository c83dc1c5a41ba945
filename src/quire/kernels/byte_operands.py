"""Records of weights of a byte each with scales of groups, and of rows that they are multiplied by.

Beside operands.py, as starts on a CPU need none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quire.kernels.operands import GpuWords, QuantizedWeight, QuantSpec, RoundedRows


@dataclass(frozen=True, slots=True)
class ByteWeight(QuantizedWeight):
    """A weight of a byte each: (code - zero) · scale, where `group` inputs in a row share both.

    codes: int8, or e4m3 [N, K]. scale: float32 [N, K / group]. permutation: as in `Int4Weight`.
    """

    zeros: Tensor | None  # int8 [N, K / group]; None where all are 0
    kind: str  # as `QuantSpec.codes`
    group: int
    permutation: Tensor | None = None  # int32 [K]

    @property
    def spec(self) -> QuantSpec:
        """See `QuantizedWeight`."""
        has_zeros, permuted = self.zeros is not None, self.permutation is not None
        return QuantSpec(self.kind, self.group, has_zeros, permuted=permuted)


@dataclass(frozen=True, slots=True)
class ByteWords(GpuWords):
    """A `ByteWeight` [N, K] as kernels of a GPU read it, see kernels/triton/ops/byte_words.py.

    K stands for the next multiple of 256: codes beyond the weight's are 0.
    """

    words: Tensor  # int32 [N, K / 4]
    scale: Tensor | None  # float16 [K / group, N], beside the row's; None where it has one group
    zeros: Tensor | None  # int8 [K / group, N]
    row_scale: Tensor  # float32 [N]
    group: int  # 32, 64 or 128
    inputs: int
    codes: str  # "s8" or "e4m3", as PTX names them
    permutation: Tensor | None = None  # as in `Int4Weight`
    rounds: bool = True  # whether many rows of inputs may be rounded to eight bits


class BlockRows(RoundedRows):
    """Rows [T, K] in eight bits with a scale for each 128 columns, in the order of `ByteWords`.

    scale: bfloat16 [K / 128, T].
    """

    __slots__ = ()

    def dequantize(self) -> Tensor:
        """The rows in bfloat16 [T, K], columns in x's order."""
        t, k = self.codes.shape
        parts = self.codes.float().view(t, k // 128, 16, 2, 2, 2)  # pair, word, column, byte
        chunks = parts.permute(0, 1, 3, 5, 2, 4).flatten(2) * self.scale.float().t()[:, :, None]
        return chunks.flatten(1).bfloat16()


class Fp8Blocks(BlockRows):
    """Block rows in e4m3, whose scales are powers of two."""

    __slots__ = ()


class Int8Blocks(BlockRows):
    """Block rows in signed bytes."""

    __slots__ = ()
