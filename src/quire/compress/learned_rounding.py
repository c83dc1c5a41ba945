"""SignRound: whether a number is rounded up or down is learned, and where groups are cut off.

Cheng et al., 2024 ("Optimize weight rounding via signed gradient descent"; AutoRound), section 3:
a number w becomes round(w / s + v) with v in [-0.5, 0.5], and a group's extremes are multiplied by
alpha and beta in [0, 1]; all three follow the sign of the gradient of the layer's output error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.compress.integer_grid import GroupScales, IntegerGrid, limits
from quire.compress.layer_stream import LayerRunner, batches
from quire.compress.model_parts import Operation, linears_of, set_linear, weight_of
from quire.compress.quantized_rows import IntegerCodes
from quire.kernels import reference
from quire.models.families.llama import LlamaDecoderLayer

_BATCH = 8  # samples of a step
_LOOKS = 10  # how often all samples are looked at


@dataclass(slots=True)
class LearnedWeight:
    """A weight [N, K] with what is learned of its rounding. low, high: of groups, [N, G]."""

    grid: IntegerGrid
    weight: Tensor
    low: Tensor
    high: Tensor
    offset: Tensor  # v, [N, K]
    below: Tensor  # alpha, [N, G]
    above: Tensor  # beta, [N, G]

    @classmethod
    def start(cls, grid: IntegerGrid, weight: Tensor, known: GroupScales | None) -> LearnedWeight:
        """A rounding to the nearest to start from. known: its scales, if there are some."""
        low, high = limits(grid.groups(weight)) if known is None else _limits_of(grid, known)
        learned = [torch.zeros_like(weight), torch.ones_like(low), torch.ones_like(low)]
        return cls(grid, weight, low, high, *(each.requires_grad_() for each in learned))

    @property
    def learned(self) -> tuple[Tensor, Tensor, Tensor]:
        """The parameters that are trained: offsets, and factors of the limits."""
        return self.offset, self.below, self.above

    def scales(self) -> GroupScales:
        """The scales of its groups; gradients pass through their rounding."""
        low, high, grid = self.low * self.below, self.high * self.above, self.grid
        found = grid.scales(low, high)
        scale = _passing(grid.steps(low, high), found.scale)
        if grid.symmetric:
            return GroupScales(scale, found.zero)
        return GroupScales(scale, _passing(-low / scale, found.zero))

    def numbers(self) -> Tensor:
        """The numbers of its codes, with gradients as if nothing was rounded."""
        codes, scales = self._codes()
        return self.grid.numbers(codes, scales)

    @torch.no_grad()
    def codes(self) -> IntegerCodes:
        """The codes by the current values of the parameters."""
        codes, scales = self._codes()
        return IntegerCodes(self.grid, codes.to(torch.uint8), scales)

    def _codes(self) -> tuple[Tensor, GroupScales]:
        scales, grid = self.scales(), self.grid
        wanted = grid.groups(self.weight) / scales.scale[:, :, None] + grid.groups(self.offset)
        rounded = _passing(wanted, wanted.round()) + scales.zero[:, :, None]
        return rounded.clamp(0, grid.most).flatten(1), scales

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move against the sign of the gradient."""
        for tensor, low, high in zip(self.learned, (-0.5, 0.0, 0.0), (0.5, 1.0, 1.0), strict=True):
            if tensor.grad is not None:
                tensor.sub_(tensor.grad.sign(), alpha=rate).clamp_(low, high)
                tensor.grad = None


class RoundingLearner:
    """Learns the rounding of one decoder layer's linear layers, all together."""

    def __init__(
        self,
        layer: LlamaDecoderLayer,
        run: LayerRunner,
        grid: IntegerGrid,
        known: dict[str, GroupScales],
        chosen: list[str],
    ) -> None:
        self._layer, self._run, linears = layer, run, linears_of(layer)
        self.weights = {
            name: LearnedWeight.start(grid, weight_of(linears[name]), known.get(name))
            for name in chosen
        }

    def learn(
        self, inputs: list[Tensor], targets: list[Tensor], steps: int, seed: int
    ) -> dict[str, IntegerCodes]:
        """The codes with the least error on all samples, of those looked at on the path."""
        drawn = torch.Generator().manual_seed(seed)
        best, least = self._codes(), self._error(inputs, targets)
        every = max(1, steps // _LOOKS)
        for step in range(1, steps + 1):
            batch = torch.randperm(len(inputs), generator=drawn)[:_BATCH].tolist()
            self._descend([inputs[i] for i in batch], [targets[i] for i in batch])
            for weight in self.weights.values():
                weight.step((1.0 - (step - 1) / steps) / steps)
            if step % every == 0 or step == steps:
                error = self._error(inputs, targets)
                if error < least:
                    best, least = self._codes(), error
        return best

    def _codes(self) -> dict[str, IntegerCodes]:
        return {name: weight.codes() for name, weight in self.weights.items()}

    @torch.no_grad()
    def _error(self, inputs: list[Tensor], targets: list[Tensor]) -> float:
        self._take([weight.numbers() for weight in self.weights.values()])
        pairs = zip(batches(inputs), batches(targets), strict=True)
        errors = [(self._run(self._layer, x) - y).square().sum() for x, y in pairs]
        return float(torch.stack(errors).sum())

    @torch.enable_grad()
    def _descend(self, inputs: list[Tensor], targets: list[Tensor]) -> None:
        """Leave the gradient of some samples' error in what is learned."""
        numbers = [weight.numbers() for weight in self.weights.values()]
        leaves = [each.detach().requires_grad_() for each in numbers]
        self._take(leaves)
        count = sum(target.numel() for target in targets)
        for x, y in zip(batches(inputs), batches(targets), strict=True):
            ((self._run(self._layer, x) - y).square().sum() / count).backward()  # type: ignore[no-untyped-call]
        torch.autograd.backward(numbers, [leaf.grad for leaf in leaves])

    def _take(self, numbers: list[Tensor]) -> None:
        linears = linears_of(self._layer)
        for name, weight in zip(self.weights, numbers, strict=True):
            set_linear(linears[name], _multiplying(weight))


def _multiplying(weight: Tensor) -> Operation:
    return lambda x, _, bias: reference.linear(x, weight, bias)


def _passing(exact: Tensor, rounded: Tensor) -> Tensor:
    """The rounded values, with gradients as of the exact ones (a straight-through estimator)."""
    return rounded.detach() + (exact - exact.detach())


def _limits_of(grid: IntegerGrid, scales: GroupScales) -> tuple[Tensor, Tensor]:
    """Extremes that lead to given scales."""
    if grid.symmetric:
        largest = scales.scale.abs() * grid.middle
        is_low = scales.scale > 0
        return torch.where(is_low, -largest, 0.0), torch.where(is_low, 0.0, largest)
    return -scales.zero * scales.scale, (grid.most - scales.zero) * scales.scale
