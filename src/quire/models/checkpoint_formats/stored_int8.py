"""INT8 weights of checkpoints, a byte each, with scales per tensor or output. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.kernels.operands import Int8Weight, QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import (
    SCALE_DTYPES,
    StoredLinear,
    StoredTensor,
    scale_shapes,
)
from quire.models.checkpoint_formats.integer_layout import integer_spec

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight


@dataclass(frozen=True, slots=True)
class Int8Linear(StoredLinear):
    """Signed codes [N, K], symmetric, and a scale, or one per output.

    rounds: whether activations are in eight bits, too. Their scales follow from each token. per:
    what has a scale, see `scale_shapes`.
    """

    rounds: bool
    per: str

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`."""
        return integer_spec(8, -1, k, zeros=False, rounds=self.rounds)

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        of_activations = StoredTensor(((), (1,)), (*SCALE_DTYPES, "I8", "I32"), needed=False)
        return {
            "weight": StoredTensor(((n, k),), ("I8",)),
            "weight_scale": StoredTensor(scale_shapes(n, self.per), SCALE_DTYPES),
            **dict.fromkeys(("input_scale", "input_zero_point"), of_activations),
        }

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `StoredLinear`."""
        from quire.kernels.byte_operands import ByteWeight

        codes, scale = tensors["weight"], self._scale(tensors)
        if not self.rounds:
            return ByteWeight(codes, scale[:, None], None, "int8_group", codes.shape[1])
        return Int8Weight(codes, scale, hadamard=False)

    def _scale(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A scale for each output."""
        scale = tensors["weight_scale"].float().flatten()
        return scale.expand(len(tensors["weight"])).contiguous()

    def numbers(self, tensors: Mapping[str, Tensor], dtype: str) -> Tensor:
        """See `StoredLinear`."""
        from quire.kernels.torch_dtypes import torch_dtype

        codes, scale = tensors["weight"], self._scale(tensors)
        return (codes.float() * scale[:, None]).to(torch_dtype(dtype))
