"""Statistics of the inputs of linear layers for calibration: sums over all tokens of the text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.compress.layer_stream import LayerRunner, batches, observed
from quire.models.families.llama import LlamaDecoderLayer


@dataclass(slots=True)
class InputStatistics:
    """Statistics of the inputs x [T, K] of one linear layer.

    hessian: the mean of x xᵀ [K, K] over tokens; magnitude, largest: mean and maximum of |x| [K].
    The loss of a changed weight, the mean of ||ΔW x||², is the trace of ΔW · hessian · ΔWᵀ.
    """

    hessian: Tensor
    magnitude: Tensor
    largest: Tensor
    tokens: int = 0

    @classmethod
    def empty(cls, like: Tensor) -> InputStatistics:
        """Statistics of no tokens. like: inputs [T, K]."""
        k = like.shape[1]
        return cls(like.new_zeros(k, k), like.new_zeros(k), like.new_zeros(k))

    def add(self, x: Tensor) -> None:
        """Add the inputs [T, K] of a sample."""
        before, self.tokens = self.tokens, self.tokens + len(x)
        share = before / self.tokens
        self.hessian.mul_(share).addmm_(x.t(), x, alpha=1.0 / self.tokens)
        self.magnitude.mul_(share).add_(x.abs().sum(0), alpha=1.0 / self.tokens)
        self.largest = torch.maximum(self.largest, x.abs().amax(0))

    def divided(self, scale: Tensor) -> InputStatistics:
        """Statistics of x / scale [K]."""
        hessian = self.hessian / scale / scale[:, None]
        return InputStatistics(hessian, self.magnitude / scale, self.largest / scale, self.tokens)

    def loss_of(self, weight: Tensor, other: Tensor) -> float:
        """`loss` with another weight in the place of a weight, both [N, K]."""
        return self.loss(other - weight)

    def loss(self, change: Tensor) -> float:
        """The mean of ||ΔW x||² for a change [N, K] of the weight."""
        return float(((change @ self.hessian) * change).sum())


class _Reached(Exception):  # noqa: N818
    """Ends a forward pass once the last of the wanted inputs is known."""


def input_statistics(
    layer: LlamaDecoderLayer, run: LayerRunner, samples: list[Tensor], names: Collection[str]
) -> dict[str, InputStatistics]:
    """Statistics of the inputs of the named linear layers, for hidden states before the layer."""
    found: dict[str, InputStatistics] = {}
    if not names:
        return found
    waiting = set[str]()

    def add(name: str, x: Tensor) -> None:
        if name in waiting:
            found.setdefault(name, InputStatistics.empty(x)).add(x)
            waiting.discard(name)
            if not waiting:
                raise _Reached

    with observed(layer, add):
        for states in batches(samples):
            waiting.update(names)
            try:
                run(layer, states)
            except _Reached:
                continue
    return found
