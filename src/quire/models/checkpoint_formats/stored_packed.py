"""Integers of compressed-tensors' `pack-quantized`. No torch at import.

weight_packed [N, K · bits / 32], the first code in the lowest bits, with half of their range added;
weight_scale [N, groups]; weight_zero_point [N · bits / 32, groups] likewise; weight_shape; perhaps
weight_g_idx [K].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.operands import QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import SCALE_DTYPES, StoredTensor, row_bits
from quire.models.checkpoint_formats.integer_linear import (
    IntegerLinear,
    group_problem,
    integer_spec,
    num_groups,
    num_words,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quire.models.checkpoint_formats.integer_rows import IntegerRows


@dataclass(frozen=True, slots=True)
class PackedLinear(IntegerLinear):
    """Codes of 2 to 8 bits in words. group: inputs that share a scale; -1 for all.

    rounds: whether activations are in eight bits, too. is_ordered: whether inputs of a group may
    lie anywhere, so that weight_g_idx is needed; files may also have it otherwise.
    """

    config_names: ClassVar[Mapping[str, str]] = {
        "bits": "num_bits", "group": "group_size", "is_symmetric": "symmetric", "rounds": "",
        "is_ordered": "",
    }  # fmt: skip
    bits: int
    group: int
    is_symmetric: bool
    rounds: bool
    is_ordered: bool = False

    def problem(self, n: int, k: int) -> str | None:  # noqa: ARG002
        """See `StoredLinear`."""
        return f"{k} inputs are odd" if k % 2 else group_problem(self.group)

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`."""
        zeros = not self.is_symmetric
        return integer_spec(self.bits, self.group, k, zeros=zeros, rounds=self.rounds)

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        groups = num_groups(self.group, k)
        zeros = StoredTensor(((num_words(n, self.bits), groups),), ("I32",))
        found = {
            "weight_packed": StoredTensor(((n, num_words(k, self.bits)),), ("I32",)),
            "weight_scale": StoredTensor(((n, groups),), SCALE_DTYPES),
            "weight_shape": StoredTensor(((2,),), ("I64", "I32"), needed=False),
            "weight_g_idx": StoredTensor(((k,),), ("I32", "I64"), needed=self.is_ordered),
        }
        return found if self.is_symmetric else {**found, "weight_zero_point": zeros}

    def order(self, k: int) -> tuple[str, int] | None:
        """See `StoredLinear`."""
        return "weight_g_idx", k if self.group == -1 else self.group

    def integer_rows(self, tensors: Mapping[str, Tensor]) -> IntegerRows:
        """See `IntegerLinear`."""
        from quire.models.checkpoint_formats.integer_rows import (
            IntegerRows,
            sorted_by_group,
            unpacked,
            words_as_rows,
        )

        codes, bits, zeros = tensors["weight_packed"], row_bits(self.bits), None
        n, k = self._shape(codes, tensors.get("weight_shape"))
        codes = words_as_rows(codes, self.bits)[:, : k * bits // 8]
        codes, permutation = sorted_by_group(codes, tensors.get("weight_g_idx"), bits)
        if not self.is_symmetric:
            words = tensors["weight_zero_point"].t()
            zeros = unpacked(words_as_rows(words, self.bits), bits)[:, :n].t()
        scale = tensors["weight_scale"]
        return IntegerRows(codes, scale, zeros, bits, permutation, self.rounds)

    def _shape(self, words: Tensor, stored: Tensor | None) -> tuple[int, int]:
        """Outputs and inputs. Raises ValueError where weight_shape says otherwise."""
        n, count = words.shape
        shape = [n, count * 32 // self.bits] if stored is None else stored.tolist()
        if shape[0] != n or num_words(shape[1], self.bits) != count:
            raise ValueError(
                f"its weight_shape is {shape}, but weight_packed is {list(words.shape)}; download "
                "the file again"
            )
        return n, shape[1]
