"""The numbers that codes can stand for: integers by group of inputs, and FP8 by output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.kernels.reference import FP8, quantize_fp8
from quire.kernels.torch_dtypes import torch_dtype

_MOST = 448.0  # of e4m3
_SCALES = 16  # of FP8 that are tried, from one power of two to the next


@dataclass(frozen=True, slots=True)
class GroupScales:
    """scale float32 [N, G] and zero float32 [N, G] of a weight's groups of inputs."""

    scale: Tensor
    zero: Tensor


@dataclass(frozen=True, slots=True)
class IntegerGrid:
    """The grid of unsigned integer codes, (code - zero) · scale for each group of inputs.

    Scales are numbers that the checkpoint's data type and float16 both hold, so that every reader
    has the same ones.
    group: inputs that share a scale; -1 for all. symmetric: zero is half of the codes' range.
    dtype: of scales, by name. least_zero: the smallest zero point that a checkpoint can hold.
    """

    bits: int
    group: int
    symmetric: bool
    dtype: str
    least_zero: int = 0

    @property
    def most(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """The zero point of symmetric codes."""
        return 1 << self.bits - 1

    def group_size(self, k: int) -> int:
        """Inputs that share a scale, of k."""
        return k if self.group == -1 else self.group

    def groups(self, weight: Tensor) -> Tensor:
        """weight [N, K] → [N, G, group]."""
        return torch.unflatten(weight, 1, (-1, self.group_size(weight.shape[1])))

    def scales(self, low: Tensor, high: Tensor) -> GroupScales:
        """Scales for groups whose numbers lie between low <= 0 and high >= 0, each [N, G].

        The zero point of a group of zeros is the middle, which every format can hold.
        """
        is_empty = (low == 0.0) & (high == 0.0)
        if self.least_zero:  # a range wide enough for the codes below such a zero point
            low = torch.minimum(low, -high * (self.least_zero / (self.most - self.least_zero)))
        scale = self._storable(self.steps(low, high))
        if self.symmetric:
            return GroupScales(scale, torch.full_like(scale, self.middle))
        zero = (-low / scale).round().clamp(self.least_zero, self.most)
        return GroupScales(scale, zero.masked_fill(is_empty, self.middle))

    def steps(self, low: Tensor, high: Tensor) -> Tensor:
        """Scales before they are rounded. Of four symmetric bits the larger extreme gets code 0,
        since there are more codes on that side; so the scale has the other sign of that extreme.
        """
        if not self.symmetric:
            return (high - low) / self.most
        if self.bits > 4:
            return torch.maximum(-low, high) * 2 / self.most
        return torch.where(-low >= high, -low, -high) / self.middle

    def scales_of(self, weight: Tensor) -> GroupScales:
        """Scales of a weight [N, K] by the smallest and the largest number of each group."""
        low, high = limits(self.groups(weight))
        return self.scales(low, high)

    def codes(self, weight: Tensor, scales: GroupScales) -> Tensor:
        """The nearest codes of a weight [N, K]: float32 [N, K] with whole numbers."""
        scale, zero = scales.scale[:, :, None], scales.zero[:, :, None]
        return self.code(self.groups(weight), scale, zero).flatten(1)

    def numbers(self, codes: Tensor, scales: GroupScales) -> Tensor:
        """The numbers that codes [N, K] stand for."""
        scale, zero = scales.scale[:, :, None], scales.zero[:, :, None]
        return self.number(self.groups(codes), scale, zero).flatten(1)

    def code(self, value: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """The nearest codes of values that have such scales and zero points."""
        return (value / scale).round_().add_(zero).clamp_(0, self.most)

    def number(self, code: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """The numbers that codes with these scales and zero points stand for."""
        return (code - zero) * scale

    def _storable(self, scale: Tensor) -> Tensor:
        scale = torch.where(scale == 0.0, torch.ones_like(scale), scale)
        if self.bits == 4:
            scale = scale.abs().clamp(2.0**-20, 65504.0).copysign(scale).half()
        return scale.to(torch_dtype(self.dtype)).float()


def limits(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest number (at most 0) and the largest (at least 0) of groups [N, G, g]: [N, G]."""
    return groups.amin(2).clamp(max=0.0), groups.amax(2).clamp(min=0.0)


@dataclass(frozen=True, slots=True)
class FloatGrid:
    """The grid of FP8 codes (e4m3), code · scale for each output. dtype: of stored scales, by name.

    A code has three bits of mantissa, so a number is off by 1/16 of itself at most, whatever its
    scale; scales only decide where between two powers of two an output's numbers lie.
    """

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
