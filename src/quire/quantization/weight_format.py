"""A weight format as one object. No torch at import.

Owns what the rest of the engine has to know of a format: its name, which sizes it takes, its bytes
in memory, how a loaded weight becomes one, and how stored tensors become its canonical rows. What
its numbers mean is in `kernels/reference_quantized.py`; kernels choose by the operand they get.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.kernels.operands import QuantizedWeight, QuantSpec

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.dispatch import Kernels
    from quire.kernels.operands import LinearWeight


@dataclass(frozen=True, slots=True)
class WeightFormat(ABC):
    """A weight format: how weights [N, K] are stored and multiplied, if not in the model's type."""

    spec: QuantSpec

    @property
    def name(self) -> str:
        """Name in logs and in the memory plan."""
        return self.spec.codes

    def fits(self, n: int, k: int) -> bool:
        """Whether a weight [n, k] can have this format."""
        return n > 0 and k % (self.spec.group or 1) == 0

    def num_bytes(self, n: int, k: int) -> int:
        """Bytes of a weight [n, k] in memory, scales included."""
        return n * self.spec.row_bytes(k) + (4 * k if self.spec.permuted else 0)

    def quantize(self, weight: Tensor, kernels: Kernels) -> LinearWeight:
        """Round a weight [N, K] in the model's data type, and pack it for a device."""
        return kernels.quantize(weight, self.spec)

    @abstractmethod
    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """Canonical rows from stored tensors: `codes`, `scale`, in some `zeros`, `permutation`.

        Dimension 0 of each is the outputs (of `permutation` the inputs); `kernels.pack` then packs
        them for a device. Raises LookupError where one is missing.
        """
