"""From one decoder layer in float32 to the codes of its linear layers, by a run's recipe.

First scales are moved between weights and activations, where the method does that; then each
weight is rounded, with inputs that come from what is rounded already.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor

from quire.compress.block_error import BlockError
from quire.compress.checkpoint_layout import CheckpointLayout, Packing
from quire.compress.clipping import clipped_scales
from quire.compress.code_grids import FloatGrid, IntegerGrid
from quire.compress.foldings import Folding, foldings
from quire.compress.hessian_rounding import HessianRounding
from quire.compress.input_scales import best_scale, smoothing_scale
from quire.compress.input_statistics import (
    ExactLayer,
    InputStatistics,
    corrected,
    corrected_targets,
    input_statistics,
)
from quire.compress.layer_stream import LayerRunner
from quire.compress.learned_rounding import RoundingLearner
from quire.compress.model_parts import linears_of, set_weight, weight_of
from quire.compress.packing import LEAST_ZERO
from quire.compress.quantized_rows import CodedRows, nearest, nearest_codebook, nearest_fp8
from quire.compress.recipe import Recipe
from quire.core.layer_spec import LayerSpec
from quire.kernels.formats.fp4 import MXFP4
from quire.kernels.formats.nf4 import NF4
from quire.kernels.operands import QuantSpec
from quire.models.families.llama import LlamaDecoderLayer

_CODEBOOKS: dict[Packing, QuantSpec] = {"nf4": NF4.spec, "mxfp4-pack-quantized": MXFP4.spec}

Coded = dict[str, CodedRows]  # by the name of a linear layer in its decoder layer


class ExactStates(NamedTuple):
    """Hidden states of samples before and after a layer, in the model that is not quantized."""

    before: list[Tensor]
    after: list[Tensor]


class LayerRounding:
    """Quantizes one decoder layer in place.

    run: of samples through it. inputs: hidden states of the samples before it, none where the
    method does not calibrate. exact: None where it compares with none. chosen: names of the
    linear layers that are quantized. dtype: of the checkpoint's other tensors.
    """

    def __init__(
        self,
        recipe: Recipe,
        layout: CheckpointLayout,
        spec: LayerSpec,
        layer: LlamaDecoderLayer,
        run: LayerRunner,
        dtype: torch.dtype,
    ) -> None:
        self._recipe, self._layout, self._spec = recipe, layout, spec
        self._layer, self._run, self._dtype = layer, run, dtype
        self._method, self._linears = recipe.steps_of_method, linears_of(layer)

    def round(
        self, inputs: list[Tensor], exact: ExactStates | None, chosen: Collection[str]
    ) -> Coded:
        """The codes of the chosen linear layers, which from then on multiply by these."""
        names = [name for name in self._linears if name in chosen]
        known = self._rescale(inputs, names)
        if exact is None or not names:
            return {name: self._take(name, self._nearest(name)) for name in names}
        if self._method.rounding != "learned":
            return self._round_in_turn(inputs, exact.before, names)
        return self._learn(inputs, exact.after, names, known)

    def _rescale(self, inputs: list[Tensor], names: list[str]) -> dict[str, InputStatistics]:
        """Move scales between weights and inputs, if the method does; statistics of the latter."""
        if self._method.scaling == "none":
            return {}
        found = input_statistics(self._layer, self._run, inputs, names)
        for folding in foldings(self._spec, names):
            name = folding.linear.module
            wanted = self._scale(folding, found[name], inputs)
            scale = folding.apply(self._layer, wanted, self._dtype)
            found[name] = found[name].divided(scale)
        return found

    def _scale(self, folding: Folding, stats: InputStatistics, inputs: list[Tensor]) -> Tensor:
        linear, last = (self._linears[each.module] for each in (folding.linear, folding.last))
        weight = weight_of(linear)
        if self._method.scaling == "smoothquant":
            return smoothing_scale(weight, stats, folding, self._recipe.smoothing)
        loss_of: BlockError | None = None
        if linear is not last and self._recipe.objective == "block":
            loss_of = BlockError(self._layer, self._run, inputs, linear, last)
        return best_scale(weight, stats, grid_of(self._layout), folding, loss_of)

    def _learn(
        self,
        inputs: list[Tensor],
        exact: list[Tensor],
        names: list[str],
        known: dict[str, InputStatistics],
    ) -> Coded:
        """Learn all roundings together. known: statistics, where they are known already."""
        known = known or input_statistics(self._layer, self._run, inputs, names)
        targets = corrected_targets(self._run.each(self._layer, inputs), exact)
        grid, steps, seed = grid_of(self._layout), self._recipe.steps, self._recipe.seed
        scales = {
            name: clipped_scales(weight_of(self._linears[name]), known[name].hessian, grid)
            for name in names
        }
        learner = RoundingLearner(self._layer, self._run, grid, scales)
        return dict(learner.learn(inputs, targets, steps, seed))

    def _round_in_turn(
        self, inputs: list[Tensor], exact_inputs: list[Tensor], names: list[str]
    ) -> Coded:
        """Round linear layers one after the other, each for the inputs that it then gets."""
        coded, exact = Coded(), ExactLayer(deepcopy(self._layer), exact_inputs)
        for name in names:
            stats = input_statistics(self._layer, self._run, inputs, [name], exact)[name]
            weight = corrected(weight_of(self._linears[name]), stats, self._recipe.damping)
            coded[name] = self._take(name, self._rounded(weight, stats))
        return coded

    def _rounded(self, weight: Tensor, stats: InputStatistics) -> CodedRows:
        """The codes of a weight [N, K] for inputs with such statistics."""
        layout = self._layout
        if layout.packing == "float-quantized":
            grid: IntegerGrid | FloatGrid = FloatGrid(layout.scale_dtype)
        else:
            grid = grid_of(layout)
            if self._method.rounding == "nearest":
                return nearest(weight, grid, clipped_scales(weight, stats.hessian, grid))
        return HessianRounding(grid, layout.act_order, self._recipe.damping)(weight, stats)

    def _nearest(self, name: str) -> CodedRows:
        weight = weight_of(self._linears[name])
        if self._layout.packing == "float-quantized":
            return nearest_fp8(weight, FloatGrid(self._layout.scale_dtype))
        if (codebook := _CODEBOOKS.get(self._layout.packing)) is not None:
            return nearest_codebook(weight, codebook)
        return nearest(weight, grid_of(self._layout))

    def _take(self, name: str, rows: CodedRows) -> CodedRows:
        set_weight(self._linears[name], rows.numbers())
        return rows


def grid_of(layout: CheckpointLayout) -> IntegerGrid:
    """The grid of a layout with integers."""
    least_zero = LEAST_ZERO if layout.packing == "gptq" else 0
    return IntegerGrid(layout.bits, layout.group, layout.symmetric, layout.scale_dtype, least_zero)
