"""Weights of 2 to 8 bits, wherever a checkpoint has their bits: what is known before any is read.

No torch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire.kernels.formats.int8 import GROUP_STEP
from quire.kernels.operands import QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import StoredLinear, row_bits

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight
    from quire.models.checkpoint_formats.integer_rows import IntegerRows

_WORD = 32  # bits


def num_words(count: int, bits: int, *, padded: bool = False) -> int:
    """Words of 32 bits that have so many codes, one after the other.

    padded: whether no code lies in two words, so that of each the last bits may be free.
    """
    return -(-count // (_WORD // bits)) if padded else -(-count * bits // _WORD)


def whole_words(bits: int) -> int:
    """The least number of codes that fills words of 32 bits."""
    return _WORD // math.gcd(_WORD, bits)


class IntegerLinear(StoredLinear):
    """A weight whose tensors come down to `IntegerRows`. group: inputs that share a scale."""

    __slots__ = ()
    group: int

    @abstractmethod
    def integer_rows(self, tensors: Mapping[str, Tensor]) -> IntegerRows:
        """Its codes in rows, with the groups as they are stored.

        Raises ValueError for content that the config file excludes.
        """

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `StoredLinear`."""
        return self._in_equal_groups(tensors).canonical()

    def numbers(self, tensors: Mapping[str, Tensor], dtype: str) -> Tensor:
        """See `StoredLinear`: also where no run-time format holds scales or groups."""
        from quire.kernels.torch_dtypes import torch_dtype

        return self._in_equal_groups(tensors).numbers(torch_dtype(dtype))

    def _in_equal_groups(self, tensors: Mapping[str, Tensor]) -> IntegerRows:
        rows = self.integer_rows(tensors)
        if self.group == -1:
            return rows
        return rows.in_groups(self.group, equal_group(self.group, rows.k))


def group_problem(group: int) -> str | None:
    """Why no weight has groups of that size, or None. group: -1 for all inputs."""
    return f"group_size is {group}" if group == 0 or group < -1 else None


def num_groups(group: int, k: int) -> int:
    """Groups of k inputs, of which the last may be partial. group: -1 for all inputs."""
    return 1 if group == -1 else -(-k // group)


def equal_group(group: int, k: int) -> int:
    """The largest size of equal groups of k inputs, none of which has two scales.

    Below 1 where `group_problem` has something to say.
    """
    if group == -1:
        return k
    return math.gcd(group, k) if group > 0 else 0


def integer_spec(
    bits: int, group: int, k: int, *, zeros: bool, permuted: bool = False, rounds: bool = False
) -> QuantSpec | None:
    """The spec of canonical rows of such codes; None where no run-time format holds them.

    rounds: whether activations are rounded to bytes as well, as with INT8 while the model runs.
    """
    size, bits = equal_group(group, k), row_bits(bits)
    if bits == 4 and size > 0 and size % GROUP_STEP == 0:
        return QuantSpec("int4", size, zeros, permuted=permuted and size < k)
    if bits == 8 and size == k and rounds and not zeros:
        return QuantSpec("int8")
    if bits == 8 and not rounds and size > 0 and size % GROUP_STEP == 0:
        return QuantSpec("int8_group", size, zeros, permuted=permuted and size < k)
    return None
