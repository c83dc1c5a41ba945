"""GPTQ: inputs are rounded one after the other, and the rest of the weight makes up for each error.

Frantar et al., 2023 ("GPTQ"): algorithm 1, with blocks of columns ("lazy batch updates"), damping
and the Cholesky form of the inverse Hessian (section 3.3); columns in the order of activations as
in the authors' code (`act_order`), with groups in place ("static") or in that order ("group").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.compress.checkpoint_layout import ActOrder
from quire.compress.clipping import clipped_scales
from quire.compress.code_grids import FloatGrid, GroupScales, IntegerGrid
from quire.compress.input_statistics import InputStatistics, damped
from quire.compress.quantized_rows import FloatCodes, IntegerCodes
from quire.errors import CheckpointError
from quire.kernels.reference import FP8

_BLOCK = 128  # columns whose errors are carried to the others at once
_MOST_DAMPING = 1e3  # times what was asked for, before a Hessian is given up


@dataclass(frozen=True, slots=True)
class HessianRounding:
    """GPTQ's rounding. damping: share of the mean diagonal that is added to the Hessian's."""

    grid: IntegerGrid | FloatGrid
    act_order: ActOrder
    damping: float

    def __call__(self, weight: Tensor, stats: InputStatistics) -> IntegerCodes | FloatCodes:
        """The codes of a weight [N, K]."""
        k = weight.shape[1]
        size = self.grid.group_size(k)
        order = torch.arange(k, device=weight.device)
        if self.act_order != "off":
            order = torch.argsort(stats.hessian.diagonal(), descending=True, stable=True)
        by_rank = order if self.act_order == "static" else torch.arange(k, device=order.device)
        group_of = by_rank // size
        scales = None
        if self.act_order == "static" or size == k:
            scales = self._scales_of(weight, stats.hessian)
        hessian = stats.hessian[order][:, order]
        codes, scales = self._round(weight[:, order], hessian, group_of, scales)
        by_input = torch.empty_like(codes)
        by_input[:, order] = codes
        if isinstance(self.grid, FloatGrid):
            return FloatCodes(by_input.to(FP8), scales.scale)
        if self.act_order != "group":
            return IntegerCodes(self.grid, by_input, scales)
        groups = torch.empty_like(group_of)
        groups[order] = group_of
        return IntegerCodes(self.grid, by_input, scales, groups.int())

    def _scales_of(self, weight: Tensor, hessian: Tensor) -> GroupScales:
        """Scales of a weight's groups: of four bits, those with the least loss."""
        if isinstance(self.grid, FloatGrid) or self.grid.bits > 4:
            return self.grid.scales_of(weight)
        return clipped_scales(weight, hessian, self.grid)

    def _factor(self, hessian: Tensor) -> Tensor:
        """The upper Cholesky factor of the inverse Hessian [K, K]. Raises CheckpointError."""
        damping = self.damping
        while damping <= self.damping * _MOST_DAMPING:
            lower, failed = torch.linalg.cholesky_ex(damped(hessian, damping))
            if not failed:
                inverse = torch.cholesky_inverse(lower)
                upper: Tensor
                upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
                if not failed and bool(upper.isfinite().all()):
                    return upper
            damping *= 10
        raise CheckpointError(
            "activations of the calibration text are not finite, or all alike; use another text"
        )

    def _round(
        self, weight: Tensor, hessian: Tensor, group_of: Tensor, scales: GroupScales | None
    ) -> tuple[Tensor, GroupScales]:
        """Codes of a weight in order of rounding, and scales of its groups. Changes the weight.

        group_of: the group of each column. scales: None to take each group's as it is reached.
        """
        n, k = weight.shape
        factor = self._factor(hessian)
        size, groups = self.grid.group_size(k), group_of.tolist()
        is_open = scales is None
        scales = scales or GroupScales(*(weight.new_ones(n, k // size) for _ in range(2)))
        dtype = torch.float32 if isinstance(self.grid, FloatGrid) else torch.uint8
        codes = torch.empty_like(weight, dtype=dtype)
        for start in range(0, k, _BLOCK):
            end = min(start + _BLOCK, k)
            block = weight[:, start:end].t().contiguous()  # a column in one piece of memory
            coded, errors = torch.empty_like(block), torch.empty_like(block)
            rows = factor[start:end]
            for index, column in enumerate(range(start, end)):
                if is_open and column % size == 0:
                    # columns of later blocks have had all errors so far; this block's, own ones
                    later = slice(end, max(end, column + size))
                    changes = errors[:index].t() @ rows[:index, later]
                    values = [block[index : index + size].t(), weight[:, later] - changes]
                    inside = slice(column, column + size)
                    found = self._scales_of(torch.cat(values, 1), hessian[inside, inside])
                    scales.scale[:, column // size] = found.scale[:, 0]
                    scales.zero[:, column // size] = found.zero[:, 0]
                own, value = groups[column], block[index]
                scale, zero = scales.scale[:, own], scales.zero[:, own]
                coded[index] = code = self.grid.code(value, scale, zero)
                error = torch.sub(value, self.grid.number(code, scale, zero), out=errors[index])
                error /= rows[index, column]
                block[index + 1 :].addr_(rows[index, column + 1 : end], error, alpha=-1)
            codes[:, start:end] = coded.t()
            weight[:, end:] -= errors.t() @ rows[:, end:]
        return codes, scales
