"""GPTQ: inputs are rounded one after the other, and the rest of the weight makes up for each error.

Frantar et al., 2023 ("GPTQ"): algorithm 1, with blocks of columns ("lazy batch updates"), damping
and the Cholesky form of the inverse Hessian (section 3.3); columns in the order of activations as
in the authors' code (`act_order`), with groups in place ("static") or in that order ("group").
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quire.compress.checkpoint_layout import ActOrder
from quire.compress.input_statistics import InputStatistics
from quire.compress.integer_grid import GroupScales, IntegerGrid
from quire.compress.quantized_rows import IntegerCodes
from quire.errors import CheckpointError

_BLOCK = 128  # columns whose errors are carried to the others at once
_MOST_DAMPING = 1e3  # times what was asked for, before a Hessian is given up


@dataclass(frozen=True, slots=True)
class HessianRounding:
    """damping: share of the mean diagonal that is added to it."""

    grid: IntegerGrid
    act_order: ActOrder
    damping: float

    def __call__(
        self, weight: Tensor, stats: InputStatistics, scales: GroupScales | None = None
    ) -> IntegerCodes:
        """The codes of a weight [N, K]. scales: of its groups, if they are known already."""
        k = weight.shape[1]
        order = torch.arange(k, device=weight.device)
        if self.act_order != "off":
            order = torch.argsort(stats.hessian.diagonal(), descending=True, stable=True)
        by_rank = order if self.act_order == "static" else torch.arange(k, device=order.device)
        group_of = by_rank // self.grid.group_size(k)
        if scales is None and self.act_order == "static":
            scales = self.grid.scales_of(weight)
        if self.act_order == "group":
            scales = None
        factor = self._factor(stats.hessian[order][:, order])
        codes, scales = self._round(weight[:, order].clone(), factor, group_of, scales)
        by_input = torch.empty_like(codes)
        by_input[:, order] = codes
        if self.act_order != "group":
            return IntegerCodes(self.grid, by_input, scales)
        groups = torch.empty_like(group_of)
        groups[order] = group_of
        return IntegerCodes(self.grid, by_input, scales, groups.int())

    def _factor(self, hessian: Tensor) -> Tensor:
        """The upper Cholesky factor of the inverse Hessian [K, K]. Raises CheckpointError."""
        diagonal = hessian.diagonal()
        mean = float(diagonal.mean()) or 1.0
        damping = self.damping
        while damping <= self.damping * _MOST_DAMPING:
            damped = hessian + torch.diag(torch.full_like(diagonal, damping * mean))
            lower, failed = torch.linalg.cholesky_ex(damped)
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
        self, weight: Tensor, factor: Tensor, group_of: Tensor, scales: GroupScales | None
    ) -> tuple[Tensor, GroupScales]:
        """Codes of a weight in order of rounding, and scales of its groups. Changes the weight.

        group_of: the group of each column. scales: None to take each group's as it is reached.
        """
        n, k = weight.shape
        size, groups = self.grid.group_size(k), group_of.tolist()
        is_open = scales is None
        scales = scales or GroupScales(*(weight.new_ones(n, k // size) for _ in range(2)))
        codes = torch.empty_like(weight, dtype=torch.uint8)
        for start in range(0, k, _BLOCK):
            end = min(start + _BLOCK, k)
            errors = torch.empty_like(weight[:, start:end])
            for column in range(start, end):
                if is_open and column % size == 0:
                    # columns of later blocks have had all errors so far; this block's, own ones
                    self._open_group(weight, column, size, factor, errors, start, scales)
                own = groups[column]
                scale, zero = scales.scale[:, own], scales.zero[:, own]
                value = weight[:, column]
                code = ((value / scale).round() + zero).clamp(0, self.grid.most)
                codes[:, column] = code.to(torch.uint8)
                error = (value - (code - zero) * scale) / factor[column, column]
                weight[:, column + 1 : end] -= torch.outer(error, factor[column, column + 1 : end])
                errors[:, column - start] = error
            weight[:, end:] -= errors @ factor[start:end, end:]
        return codes, scales

    def _open_group(
        self,
        weight: Tensor,
        column: int,
        size: int,
        factor: Tensor,
        errors: Tensor,
        start: int,
        scales: GroupScales,
    ) -> None:
        """Choose the scales of the group that begins at a column, by its numbers so far."""
        end, block_end = column + size, start + errors.shape[1]
        values = weight[:, column:end]
        if end > block_end:
            later = errors[:, : column - start] @ factor[start:column, block_end:end]
            values = torch.cat([weight[:, column:block_end], weight[:, block_end:end] - later], 1)
        found = replace(self.grid, group=-1).scales_of(values)
        scales.scale[:, column // size] = found.scale[:, 0]
        scales.zero[:, column // size] = found.zero[:, 0]
