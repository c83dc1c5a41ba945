"""A weight format as one object. No torch at import.

Owns all that is particular to a format: its name, the sizes that it takes, its bytes in memory, how
stored tensors become canonical rows, its native kernel and what that reads, and what its numbers
mean (rounding and the reference product, whose code is in a `reference_*.py` file beside this
folder and is imported at use). table.py finds the format of a `QuantSpec`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.formats.native_format import BLOCK, MOST_INPUTS, STEP, WIDE, NativeFormat
from quire.kernels.operands import EARLY_LAUNCH_BYTES, QuantizedWeight, QuantSpec

if TYPE_CHECKING:
    from torch import Tensor

Variants = Mapping[tuple[bool, bool], NativeFormat]  # by (zeros, hadamard) of a `QuantSpec`


@dataclass(frozen=True, slots=True)
class WeightFormat(ABC):
    """A weight format: how weights [N, K] are stored and multiplied, if not in the model's type."""

    spec: QuantSpec

    codes_per_byte: ClassVar[int] = 1
    has_groups: ClassVar[bool] = False  # of inputs that share a scale
    native_formats: ClassVar[Variants] = {}  # those with a native kernel on a CPU
    is_rounded_natively: ClassVar[bool] = False  # whether the library also makes the codes
    has_float16_scales: ClassVar[bool] = False
    early_launch_bytes: ClassVar[int] = EARLY_LAUNCH_BYTES  # see `AttentionParams`

    @property
    def name(self) -> str:
        """Name in logs and in the memory plan."""
        return self.spec.codes

    def fits(self, n: int, k: int) -> bool:
        """Whether a weight [n, k] can have this format."""
        return n > 0 and k % (self.spec.group or self.codes_per_byte) == 0

    @abstractmethod
    def row_bytes(self, k: int) -> int:
        """Bytes of one output's k codes with what goes with them, as packed on a CPU."""

    def num_bytes(self, n: int, k: int) -> int:
        """Bytes of a weight [n, k] in memory, scales included."""
        return n * self.row_bytes(k) + (4 * k if self.spec.permuted else 0)

    def native_format(self, n: int, k: int) -> NativeFormat | None:
        """The packed layout of a weight [n, k] on a CPU; None where no native kernel serves it."""
        group = self.spec.group
        if self.has_groups != (group > 0):
            return None
        if n % BLOCK or k % (group or STEP) or group % STEP:
            return None
        if n <= 0 or not 0 < k <= MOST_INPUTS:
            return None
        return self.native_formats.get((self.spec.zeros, self.spec.hadamard))

    def packed_bytes(self, n: int, k: int) -> int:
        """Bytes of a weight [n, k] in its packed layout. Raises ValueError for sizes it lacks."""
        if self.native_format(n, k) is None:
            raise ValueError("sizes that no packed weight has")
        return -(-n // WIDE) * WIDE * self.row_bytes(k)

    def size_of(self, weight: QuantizedWeight) -> tuple[int, int]:
        """Outputs and inputs of canonical rows. Raises LookupError where tensors disagree."""
        (n, width), tensors = weight.codes.shape, weight.tensors
        k = int(width) * self.codes_per_byte
        groups = (n, k // self.spec.group) if self.spec.group else (n,)
        wanted = {"scale": groups, "zeros": groups, "row_scale": (n,)}
        for name in tensors.keys() & wanted:
            shape = tuple(tensors[name].shape)
            if shape != wanted[name]:
                raise LookupError(
                    f"its {name} has the shape {list(shape)}, not {list(wanted[name])}"
                )
        return int(n), k

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """Canonical rows from stored tensors: `codes`, `scale`, in some `zeros`, `permutation`.

        Dimension 0 of each is the outputs (of `permutation` the inputs); `kernels.pack` then packs
        them for a device. Raises LookupError where one is missing.
        """
        zeros = tensors["zeros"] if self.spec.zeros else None
        permutation = tensors["permutation"] if self.spec.permuted else None
        return self._weight(tensors["codes"], tensors["scale"], zeros, permutation)

    def round_rows(self, weight: Tensor) -> QuantizedWeight:
        """A weight [N, K] rounded to canonical rows, some rows at a time. Twin of the library's.

        Inputs are in their own order.
        """
        import torch

        from quire.kernels.reference_quantized import by_pieces

        tensors = dict(zip(self.row_names, by_pieces(weight, self._round), strict=True))
        if self.spec.permuted:
            order = torch.arange(weight.shape[1], dtype=torch.int32, device=weight.device)
            tensors["permutation"] = order
        return self.rows(tensors)

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names of the tensors that rounding makes."""
        return ("codes", "scale", "zeros") if self.spec.zeros else ("codes", "scale")

    @abstractmethod
    def _weight(
        self, codes: Tensor, scale: Tensor, zeros: Tensor | None, permutation: Tensor | None
    ) -> QuantizedWeight:
        """Canonical rows. zeros, permutation: as its spec has them."""

    @abstractmethod
    def _round(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Codes, scales and, where there are any, zero points of some rows of a weight."""

    @abstractmethod
    def dequantize(self, weight: QuantizedWeight) -> Tensor:
        """The numbers that canonical rows stand for: float32 [N, K], rotated where they are."""

    @abstractmethod
    def linear(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        """The reference product: x [T, K] · weightᵀ + bias → [T, N] in x's data type."""
