"""Learned rounding: weights are fixed to codes little by little, and the others make up for it.

Zhou et al., 2017 ("Incremental network quantization"): a part of the weights is rounded for good,
the rest is trained on, until none is left. Here those that are nearest to a code go first, and what
is trained on is the error of one decoder layer's output (Li et al., 2021, "BRECQ"). Codes that are
trained by straight-through gradients have more loss: nothing makes up for their last roundings.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import torch
from torch import Tensor

from quire.compress.code_grids import GroupScales, IntegerGrid
from quire.compress.layer_stream import LayerRunner, batches
from quire.compress.model_parts import Operation, linears_of, set_linear, weight_of
from quire.compress.quantized_rows import IntegerCodes
from quire.kernels import reference
from quire.models.families.llama import LlamaDecoderLayer

BATCH = 4  # samples of a step
_RATE = 0.015  # of a code, in a step
_BETAS = (0.9, 0.95)  # of Adam
_SAMPLE = 1 << 14  # values by which the nearest share is found; among rows it would lose more


class LearnedWeight:
    """A weight [N, K] in units of its codes. values: [N, K]; those that are fixed are whole."""

    def __init__(self, grid: IntegerGrid, weight: Tensor, scales: GroupScales) -> None:
        self._grid, self._scales = grid, scales
        scale, zero = scales.scale[:, :, None], scales.zero[:, :, None]
        exact = (grid.groups(weight) / scale + zero).flatten(1)
        self.values = exact.clamp_(0, grid.most).requires_grad_()
        self._fixed = torch.zeros_like(weight, dtype=torch.bool)

    def numbers(self) -> Tensor:
        """The numbers [N, K] that the values stand for, with gradients."""
        return self._grid.numbers(self.values, self._scales)

    def codes(self) -> IntegerCodes:
        """The codes that the values are, or are nearest to."""
        codes = self.values.detach().round()
        return IntegerCodes(self._grid, codes.to(torch.uint8), self._scales)

    @torch.no_grad()
    def fix(self, share: float) -> None:
        """Fix so much of the weight, after a step that has moved all values."""
        values = self.values.clamp_(0, self._grid.most)
        whole = values.round()  # a step is less than half a code
        distance = (values - whole).abs_()
        some = slice(None, None, distance.numel() // _SAMPLE | 1)
        sample = distance.flatten()[some].masked_fill(self._fixed.flatten()[some], -1.0)
        if count := round(share * len(sample)):
            self._fixed |= distance <= sample.kthvalue(count).values
        torch.where(self._fixed, whole, values, out=values)


class RoundingLearner:
    """Learns the rounding of one decoder layer's linear layers, all together.

    scales: of the linear layers that are quantized, by their names.
    """

    def __init__(
        self,
        layer: LlamaDecoderLayer,
        run: LayerRunner,
        grid: IntegerGrid,
        scales: dict[str, GroupScales],
    ) -> None:
        self._layer, self._run, linears = layer, run, linears_of(layer)
        self.weights = {
            name: LearnedWeight(grid, weight_of(linears[name]), own) for name, own in scales.items()
        }

    def learn(
        self, inputs: list[Tensor], targets: list[Tensor], steps: int, seed: int
    ) -> dict[str, IntegerCodes]:
        """The codes. inputs, targets: hidden states of samples before and after the layer."""
        drawn = torch.Generator().manual_seed(seed)
        values = [weight.values for weight in self.weights.values()]
        # gradients are small numbers, and Adam's usual eps is not
        adam = torch.optim.Adam(values, _RATE, _BETAS, eps=1e-20, fused=True)
        for step in range(1, steps + 1):
            batch = torch.randperm(len(inputs), generator=drawn)[:BATCH].tolist()
            self._descend([inputs[i] for i in batch], [targets[i] for i in batch])
            adam.step()
            for weight in self.weights.values():
                weight.fix(1.0 - (1.0 - step / steps) ** 2)  # the last ones have more time each
        return {name: weight.codes() for name, weight in self.weights.items()}

    @torch.enable_grad()
    def _descend(self, inputs: list[Tensor], targets: list[Tensor]) -> None:
        """Leave the gradient of some samples' error in what is learned."""
        eps = self._layer.pre_attention_norm.eps
        numbers = [weight.numbers() for weight in self.weights.values()]
        leaves = [each.detach().requires_grad_() for each in numbers]
        self._take(leaves)
        for x, y in zip(batches(inputs), batches(targets), strict=True):
            error = relative_error(self._run(self._layer, x), y, eps)
            error.backward()  # type: ignore[no-untyped-call]
        for weight in self.weights.values():
            weight.values.grad = None
        torch.autograd.backward(numbers, [leaf.grad for leaf in leaves])

    def _take(self, numbers: list[Tensor]) -> None:
        linears = linears_of(self._layer)
        for name, weight in zip(self.weights, numbers, strict=True):
            set_linear(linears[name], _multiplying(weight))


def step_seconds(
    layer: LlamaDecoderLayer,
    run: LayerRunner,
    grid: IntegerGrid,
    names: Collection[str],
    inputs: list[Tensor],
) -> float:
    """The seconds of a step, measured. The layer is of no use after it. names: of linear layers."""
    linears = linears_of(layer)
    scales = {name: grid.scales_of(weight_of(linears[name])) for name in names}
    learner = RoundingLearner(layer, run, grid, scales)
    for _ in range(2):  # the first one starts threads and allocates memory
        began = time.perf_counter()
        learner.learn(inputs[:BATCH], inputs[:BATCH], 1, 0)
    return time.perf_counter() - began


def relative_error(states: Tensor, targets: Tensor, eps: float) -> Tensor:
    """The summed squares of the errors of hidden states [..., H], each token's over its target's.

    What comes next sees a token's states divided by their root mean square. eps: added, as there.
    """
    return ((states - targets).square() / (targets.square().mean(-1, keepdim=True) + eps)).sum()


def _multiplying(weight: Tensor) -> Operation:
    return lambda x, _, bias: reference.linear(x, weight, bias)
