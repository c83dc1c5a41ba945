"""Records of weights of a byte each with scales of groups, and of rows that they are multiplied by.

Beside operands.py, as starts on a CPU need none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quire.kernels.operands import GpuWords, QuantizedWeight, QuantSpec


@dataclass(frozen=True, slots=True)
class ByteWeight(QuantizedWeight):
    """A weight of a byte each: (code - zero) · scale, where `group` inputs in a row share both.

    codes: int8, or e4m3 [N, K]. scale: float32 [N, K / group]. permutation: as in `Int4Weight`.
    """

    zeros: Tensor | None  # int8 [N, K / group]; None where all are 0
    kind: str  # "int8_group" or "fp8_block"
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
    codes: str  # "int8" or "fp8"
    permutation: Tensor | None = None  # as in `Int4Weight`


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows in e4m3 with a scale for each 128 columns, in the order of `ByteWords`.

    codes [T, K], and undefined rows behind; scale: bfloat16 [K / 128, T], powers of two.
    """

    codes: Tensor
    scale: Tensor
