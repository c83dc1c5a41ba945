"""Integer weights of checkpoints, a byte each: scales per tensor, output or group. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.operands import Int8Weight, QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import (
    SCALE_DTYPES,
    StoredLinear,
    StoredTensor,
    row_bits,
    scale_shapes,
)
from quire.models.checkpoint_formats.integer_linear import (
    IntegerLinear,
    group_problem,
    integer_spec,
    num_groups,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight
    from quire.models.checkpoint_formats.integer_rows import IntegerRows


@dataclass(frozen=True, slots=True)
class Int8Linear(StoredLinear):
    """Signed codes [N, K], symmetric, and a scale, or one per output.

    rounds: whether activations are in eight bits, too. Their scales follow from each token. per:
    what has a scale, see `scale_shapes`.
    """

    config_names: ClassVar[Mapping[str, str]] = {"rounds": "", "per": "strategy"}
    rounds: bool
    per: str

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`."""
        return integer_spec(8, -1, k, zeros=False, rounds=self.rounds)

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        return {
            "weight": StoredTensor(((n, k),), ("I8",)),
            "weight_scale": StoredTensor(scale_shapes(n, self.per), SCALE_DTYPES),
        }

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `StoredLinear`."""
        from quire.kernels.byte_operands import ByteWeight

        codes = tensors["weight"]
        scale = tensors["weight_scale"].float().flatten().expand(len(codes)).contiguous()
        if not self.rounds:
            return ByteWeight(codes, scale[:, None], None, "int8_group", codes.shape[1])
        return Int8Weight(codes, scale, hadamard=False)


@dataclass(frozen=True, slots=True)
class GroupedBytesLinear(IntegerLinear):
    """Signed codes [N, K] of 2 to 8 bits, a byte each, and scales [N, groups], perhaps zero points.

    group: inputs that share a scale; -1 for all. rounds: whether activations are in eight bits.
    """

    config_names: ClassVar[Mapping[str, str]] = {
        "bits": "num_bits", "group": "group_size", "is_symmetric": "symmetric", "rounds": "",
    }  # fmt: skip
    bits: int
    group: int
    is_symmetric: bool
    rounds: bool

    def problem(self, n: int, k: int) -> str | None:  # noqa: ARG002
        """See `StoredLinear`."""
        return f"{k} inputs are odd" if k % 2 else group_problem(self.group)

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`."""
        zeros = not self.is_symmetric
        return integer_spec(self.bits, self.group, k, zeros=zeros, rounds=self.rounds)

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        of_groups = ((n, num_groups(self.group, k)),)
        found = {
            "weight": StoredTensor(((n, k),), ("I8",)),
            "weight_scale": StoredTensor(of_groups, SCALE_DTYPES),
        }
        zeros = StoredTensor(of_groups, ("I8",))
        return found if self.is_symmetric else {**found, "weight_zero_point": zeros}

    def integer_rows(self, tensors: Mapping[str, Tensor]) -> IntegerRows:
        """See `IntegerLinear`."""
        from quire.models.checkpoint_formats.integer_rows import IntegerRows, packed, unsigned

        bits, zeros = row_bits(self.bits), None
        if not self.is_symmetric:
            zeros = unsigned("weight_zero_point", tensors, self.bits)
        rows = packed(unsigned("weight", tensors, self.bits), bits)
        return IntegerRows(rows, tensors["weight_scale"], zeros, bits, rounds=self.rounds)
