"""MXFP4 and NVFP4 weights of checkpoints: e2m1 codes, and scales of 32 or 16 inputs. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.operands import QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import (
    LARGEST_EXPONENT,
    StoredLinear,
    StoredTensor,
    check_exponents,
    scale_shapes,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight

MXFP4_GROUP, NVFP4_GROUP = 32, 16


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
        check_exponents(scale)
        return CodebookWeight(tensors[self.codes].flatten(1), scale, "mxfp4", MXFP4_GROUP)


@dataclass(frozen=True, slots=True)
class Nvfp4Linear(StoredLinear):
    """Codes uint8 [N, K / 2] as MXFP4's, scales in e4m3 [N, groups], and one of the whole weight.

    codes, whole: names of the tensors. group: inputs that share a scale. divides: whether the
    scale of the whole weight does, or multiplies.
    """

    config_names: ClassVar[Mapping[str, str]] = {
        "codes": "", "whole": "", "group": "group_size", "divides": "",
    }  # fmt: skip
    codes: str
    whole: str
    group: int
    divides: bool

    def problem(self, n: int, k: int) -> str | None:  # noqa: ARG002
        """See `StoredLinear`."""
        if k % self.group or k % 2:
            return f"{k} inputs are not a multiple of {self.group}, or odd"
        return None

    def spec(self, k: int) -> QuantSpec | None:  # noqa: ARG002
        """See `StoredLinear`."""
        return QuantSpec("nvfp4", NVFP4_GROUP) if self.group == NVFP4_GROUP else None

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        return {
            self.codes: StoredTensor(((n, k // 2),), ("U8",)),
            "weight_scale": StoredTensor(((n, k // self.group),), ("F8_E4M3",)),
            self.whole: StoredTensor(scale_shapes(n, "tensor"), ("F32",)),
        }

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `StoredLinear`."""
        from quire.kernels.operands import CodebookWeight

        codes, by = tensors[self.codes], self._whole_scale(tensors)
        scale = tensors["weight_scale"]
        return CodebookWeight(codes, scale, "nvfp4", self.group, by.repeat(len(codes)))

    def _whole_scale(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The factor of all scales, float32. Raises ValueError for 0."""
        whole = tensors[self.whole].reshape(())
        if not float(whole) >= 2.0**-LARGEST_EXPONENT:  # numbers divided by it might overflow
            raise ValueError(f"its {self.whole} is 0 or too small; download the file again")
        return 1.0 / whole if self.divides else whole
