"""Weights of 4 and 8 bits, wherever a checkpoint has their bits. No torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

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
        """See `StoredLinear`."""
        from quire.kernels.torch_dtypes import torch_dtype

        return self.integer_rows(tensors).numbers(torch_dtype(dtype))
