"""A quantized weight before it is packed: codes in rows of outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quire.compress.code_grids import FloatGrid, GroupScales, IntegerGrid
from quire.kernels.formats.codebook_format import CodebookFormat
from quire.kernels.formats.table import format_of
from quire.kernels.operands import CodebookWeight, QuantSpec
from quire.kernels.reference import FP8


@dataclass(frozen=True, slots=True)
class IntegerCodes:
    """Codes [N, K] in uint8 on a grid. group_of: each input's group, where they are not in order.

    Column i of the codes is input i in either case.
    """

    grid: IntegerGrid
    codes: Tensor
    scales: GroupScales
    group_of: Tensor | None = None  # int32 [K]

    def rows(self, start: int, end: int) -> IntegerCodes:
        """The codes of outputs `start` to before `end`."""
        own = slice(start, end)
        scales = GroupScales(self.scales.scale[own], self.scales.zero[own])
        return replace(self, codes=self.codes[own], scales=scales)

    @property
    def largest_scale(self) -> float:
        """The largest magnitude of a scale."""
        return self.scales.scale.abs().max().item()

    def numbers(self) -> Tensor:
        """The numbers that the codes stand for: float32 [N, K]."""
        if self.group_of is None:
            return self.grid.numbers(self.codes.float(), self.scales)
        group = self.group_of.long()
        scale, zero = self.scales.scale[:, group], self.scales.zero[:, group]
        return (self.codes.float() - zero) * scale


@dataclass(frozen=True, slots=True)
class FloatCodes:
    """Codes [N, K] in e4m3, and a float32 scale for each output [N, 1]."""

    codes: Tensor
    scale: Tensor

    def rows(self, start: int, end: int) -> FloatCodes:
        """The codes of outputs `start` to before `end`."""
        return FloatCodes(self.codes[start:end], self.scale[start:end])

    @property
    def largest_scale(self) -> float:
        """The largest scale."""
        return self.scale.max().item()

    def numbers(self) -> Tensor:
        """The numbers that the codes stand for: float32 [N, K]."""
        return self.codes.float() * self.scale


@dataclass(frozen=True, slots=True)
class CodebookCodes:
    """Codes that are indices of 16 numbers (NF4, MXFP4), with the scales of their groups."""

    weight: CodebookWeight

    def rows(self, start: int, end: int) -> CodebookCodes:
        """The codes of outputs `start` to before `end`."""
        return CodebookCodes(self.weight.map_rows(lambda tensor: tensor[start:end]))

    @property
    def largest_scale(self) -> float:
        """The largest scale."""
        scale_format = format_of(self.weight.spec)
        assert isinstance(scale_format, CodebookFormat)
        return scale_format.wide_scales(self.weight.scale).max().item()

    def numbers(self) -> Tensor:
        """The numbers that the codes stand for: float32 [N, K]."""
        return format_of(self.weight.spec).dequantize(self.weight)


CodedRows = IntegerCodes | FloatCodes | CodebookCodes


def nearest(weight: Tensor, grid: IntegerGrid, scales: GroupScales | None = None) -> IntegerCodes:
    """A weight [N, K] rounded to the nearest codes. scales: None for those of its extremes."""
    scales = scales or grid.scales_of(weight)
    return IntegerCodes(grid, grid.codes(weight, scales).to(torch.uint8), scales)


def nearest_fp8(weight: Tensor, grid: FloatGrid) -> FloatCodes:
    """A weight [N, K] in e4m3 with a scale for each output."""
    scale = grid.scales_of(weight).scale
    return FloatCodes(grid.code(weight, scale).to(FP8), scale)


def nearest_codebook(weight: Tensor, spec: QuantSpec) -> CodebookCodes:
    """A weight [N, K] rounded to the nearest of a codebook's numbers."""
    rounded = format_of(spec).round_rows(weight)
    assert isinstance(rounded, CodebookWeight)
    return CodebookCodes(rounded)
