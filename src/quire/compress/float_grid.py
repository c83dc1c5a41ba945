"""The numbers that FP8 codes can stand for: e4m3, times a scale for each output.

Such a code has three bits of mantissa, so a number is off by 1/16 of itself at most, whatever its
scale; scales only decide where between two powers of two an output's numbers lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.compress.integer_grid import GroupScales
from quire.kernels.reference import FP8, quantize_fp8
from quire.kernels.torch_dtypes import torch_dtype

_MOST = 448.0  # of e4m3
_SCALES = 16  # that are tried, from one power of two to the next


@dataclass(frozen=True, slots=True)
class FloatGrid:
    """The grid of FP8 codes (e4m3). dtype: of scales in the checkpoint, by name."""

    dtype: str

    def group_size(self, k: int) -> int:
        """Inputs that share a scale, of k."""
        return k

    def scales_of(self, weight: Tensor) -> GroupScales:
        """The scale of each output of a weight [N, K] with the least error: [N, 1]."""
        largest = quantize_fp8(weight)[1][:, None]
        best, least = largest, torch.full_like(largest, torch.inf)
        for index in range(_SCALES):
            scale = (largest * 2.0 ** (index / _SCALES)).to(torch_dtype(self.dtype)).float()
            error = (self.number(self.code(weight, scale), scale) - weight).square().sum(1)[:, None]
            best = torch.where(error < least, scale, best)
            least = torch.minimum(error, least)
        return GroupScales(best, torch.zeros_like(best))

    def code(self, value: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """The nearest codes of values, as float32."""
        return (value / scale).clamp_(-_MOST, _MOST).to(FP8).float()

    def number(self, code: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """The numbers that codes stand for: code · scale."""
        return code * scale
