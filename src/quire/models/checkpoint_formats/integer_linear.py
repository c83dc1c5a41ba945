"""Weights of 4 and 8 bits, wherever a checkpoint has their bits: what is known before any is read.

No torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire.kernels.formats.int8 import GROUP_STEP
from quire.kernels.operands import QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import StoredLinear

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight
    from quire.models.checkpoint_formats.integer_rows import IntegerRows


class IntegerLinear(StoredLinear):
    """A weight whose tensors come down to `IntegerRows`."""

    __slots__ = ()

    @abstractmethod
    def integer_rows(self, tensors: Mapping[str, Tensor]) -> IntegerRows:
        """Its codes in rows. Raises ValueError for content that the config file excludes."""

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `StoredLinear`."""
        return self.integer_rows(tensors).canonical()

    def numbers(self, tensors: Mapping[str, Tensor], dtype: str) -> Tensor:
        """See `StoredLinear`: also where no run-time format holds scales or groups."""
        from quire.kernels.torch_dtypes import torch_dtype

        return self.integer_rows(tensors).numbers(torch_dtype(dtype))


def group_problem(group: int, k: int) -> str | None:
    """Why groups of that size do not fit k inputs, or None. group: -1 for all inputs."""
    if group == 0 or group < -1:
        return f"group_size is {group}"
    return f"{k} inputs are not a multiple of group_size {group}" if k % group else None


def num_groups(group: int, k: int) -> int:
    """Groups of k inputs. group: -1 for all inputs."""
    return 1 if group == -1 else k // group


def integer_spec(
    bits: int, group: int, k: int, *, zeros: bool, permuted: bool = False, rounds: bool = False
) -> QuantSpec | None:
    """The spec of canonical rows of such codes; None where no run-time format holds them.

    rounds: whether activations are rounded to bytes as well, as with INT8 while the model runs.
    """
    size = k if group == -1 else group
    if bits == 4 and size > 0 and size % GROUP_STEP == 0:
        return QuantSpec("int4", size, zeros, permuted=permuted and size < k)
    if bits == 8 and size == k and rounds and not zeros:
        return QuantSpec("int8")
    if bits == 8 and not rounds and size > 0 and size % GROUP_STEP == 0:
        return QuantSpec("int8_group", size, zeros, permuted=permuted and size < k)
    return None
