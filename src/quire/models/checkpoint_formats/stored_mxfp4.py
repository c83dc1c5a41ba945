"""MXFP4 weights of checkpoints: e2m1 codes, and an exponent for each 32 inputs. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.operands import QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import (
    LARGEST_EXPONENT,
    StoredLinear,
    StoredTensor,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight

MXFP4_GROUP = 32
_BIAS = 127  # of e8m0


@dataclass(frozen=True, slots=True)
class Mxfp4Linear(StoredLinear):
    """Codes uint8 [N, K / 2], of two the first in the lower bits, and exponents [N, K / 32].

    codes, scale: names of the tensors.
    """

    config_names: ClassVar[Mapping[str, str]] = {"codes": "", "scale": ""}
    codes: str
    scale: str

    def problem(self, n: int, k: int) -> str | None:  # noqa: ARG002
        """See `StoredLinear`."""
        return f"{k} inputs are not a multiple of {MXFP4_GROUP}" if k % MXFP4_GROUP else None

    def spec(self, k: int) -> QuantSpec | None:  # noqa: ARG002
        """See `StoredLinear`."""
        return QuantSpec("mxfp4", MXFP4_GROUP)

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        groups = k // MXFP4_GROUP
        shapes = ((n, k // 2), (n, groups, MXFP4_GROUP // 2))
        return {
            self.codes: StoredTensor(shapes, ("U8",)),
            self.scale: StoredTensor(((n, groups),), ("U8", "F8_E8M0")),
        }

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `StoredLinear`."""
        import torch

        from quire.kernels.operands import CodebookWeight

        scale = tensors[self.scale].view(torch.uint8)
        if bool((scale > _BIAS + LARGEST_EXPONENT).any()):  # 255: not a number
            raise ValueError("a scale is too large, or not a number; download the file again")
        return CodebookWeight(tensors[self.codes].flatten(1), scale, "mxfp4", MXFP4_GROUP)
