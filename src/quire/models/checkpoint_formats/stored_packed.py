"""Integers of compressed-tensors' `pack-quantized`. No torch at import.

weight_packed [N, K · bits / 32], the first code in the lowest bits, with half of their range added;
weight_scale [N, groups]; weight_zero_point [N · bits / 32, groups] likewise, or before 0.9.4 signed
int8 [N, groups]; weight_shape; perhaps weight_g_idx [K].

compressed-tensors before 0.17 had no code of 3, 5, 6 or 7 bits in two words: of each word the last
bits are free. Of inputs that are a multiple of 32 that always takes more words; where it takes as
many, nothing says which way it is.
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
        if k % 2:
            return f"{k} inputs are odd"
        if 32 % self.bits and len(words := self._words(k)) == 1 and words[0] > 1:
            return f"{k} codes of {self.bits} bits may be packed in two ways that take equal words"
        return group_problem(self.group)

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`."""
        zeros = not self.is_symmetric
        return integer_spec(self.bits, self.group, k, zeros=zeros, rounds=self.rounds)

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        groups = num_groups(self.group, k)
        packed = tuple((n, count) for count in self._words(k))
        shapes = *((count, groups) for count in self._words(n)), (n, groups)
        zeros = StoredTensor(shapes, ("I32", "I8"))
        has_layouts = bool(32 % self.bits)  # that only the shape tells from each other
        found = {
            "weight_packed": StoredTensor(packed, ("I32",)),
            "weight_scale": StoredTensor(((n, groups),), SCALE_DTYPES),
            "weight_shape": StoredTensor(((2,),), ("I64", "I32"), needed=has_layouts),
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
            words_as_rows,
        )

        codes, bits, zeros = tensors["weight_packed"], row_bits(self.bits), None
        k = self._inputs(codes, tensors.get("weight_shape"))
        padded = codes.shape[1] != num_words(k, self.bits)
        codes = words_as_rows(codes, self.bits, padded=padded)[:, : k * bits // 8]
        codes, permutation = sorted_by_group(codes, tensors.get("weight_g_idx"), bits)
        if not self.is_symmetric:
            zeros = self._zeros(tensors, padded=padded)
        scale = tensors["weight_scale"]
        return IntegerRows(codes, scale, zeros, bits, permutation, self.rounds)

    def _zeros(self, tensors: Mapping[str, Tensor], *, padded: bool) -> Tensor:
        """Zero points [N, groups] in the range of rows, uint8. Raises ValueError."""
        import torch

        from quire.models.checkpoint_formats.integer_rows import unpacked, unsigned, words_as_rows

        name, n = "weight_zero_point", len(tensors["weight_packed"])
        words, are_bytes = tensors[name].t(), tensors[name].dtype == torch.int8
        if words.shape[1] != (n if are_bytes else num_words(n, self.bits, padded=padded)):
            problem = f"its {name} and weight_packed are packed in different ways"
            raise ValueError(f"{problem}; download the file again")
        if are_bytes:
            return unsigned(name, tensors, self.bits)
        bits = row_bits(self.bits)
        return unpacked(words_as_rows(words, self.bits, padded=padded), bits)[:, :n].t()

    def _inputs(self, words: Tensor, stored: Tensor | None) -> int:
        """The number of inputs. Raises ValueError where weight_shape says otherwise."""
        n, count = words.shape
        shape = [n, count * 32 // self.bits] if stored is None else stored.tolist()
        if shape[0] != n or count not in self._words(shape[1]):
            raise ValueError(
                f"its weight_shape is {shape}, but weight_packed is {list(words.shape)}; download "
                "the file again"
            )
        return int(shape[1])

    def _words(self, count: int) -> list[int]:
        """Numbers of words that so many codes may take, today's first."""
        found = (num_words(count, self.bits, padded=padded) for padded in (False, True))
        return list(dict.fromkeys(found))
