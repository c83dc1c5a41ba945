"""Statistics of the inputs of linear layers for calibration, and what they correct.

Li et al., 2025 ("GPTAQ"): outputs should be W x for the inputs x of the model that is not
quantized, not W x̃ for those that rounded layers lead to. Here in closed form, before the weight is
rounded, or as what learned rounding aims at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from quire.compress.layer_stream import LayerRunner, batches, observed
from quire.models.families.llama import LlamaDecoderLayer

# of the way to the exact outputs; all of it follows the calibration text too closely
_SHARE = 0.5


@dataclass(slots=True)
class InputStatistics:
    """Statistics of the inputs x [T, K] of one linear layer.

    hessian: the mean of x xᵀ [K, K] over tokens; magnitude, largest: mean and maximum of |x| [K];
    errors: the mean of (x' - x) xᵀ [K, K] for exact inputs x', where these are known.
    The loss of a changed weight, the mean of ||ΔW x||², is the trace of ΔW · hessian · ΔWᵀ.
    """

    hessian: Tensor
    magnitude: Tensor
    largest: Tensor
    tokens: int = 0
    errors: Tensor | None = None

    @classmethod
    def empty(cls, like: Tensor) -> InputStatistics:
        """Statistics of no tokens. like: inputs [T, K]."""
        k = like.shape[1]
        return cls(like.new_zeros(k, k), like.new_zeros(k), like.new_zeros(k))

    def add(self, x: Tensor, exact: Tensor | None = None) -> None:
        """Add the inputs [T, K] of a sample, and the exact ones."""
        before, self.tokens = self.tokens, self.tokens + len(x)
        share = before / self.tokens
        self.hessian.mul_(share).addmm_(x.t(), x, alpha=1.0 / self.tokens)
        self.magnitude.mul_(share).add_(x.abs().sum(0), alpha=1.0 / self.tokens)
        self.largest = torch.maximum(self.largest, x.abs().amax(0))
        if exact is not None:
            known = torch.zeros_like(self.hessian) if self.errors is None else self.errors
            self.errors = known.mul_(share).addmm_((exact - x).t(), x, alpha=1.0 / self.tokens)

    def divided(self, scale: Tensor) -> InputStatistics:
        """Statistics of x / scale [K]."""
        hessian = self.hessian / scale / scale[:, None]
        return InputStatistics(hessian, self.magnitude / scale, self.largest / scale, self.tokens)

    def loss(self, change: Tensor) -> float:
        """The mean of ||ΔW x||² for a change [N, K] of the weight."""
        return float(((change @ self.hessian) * change).sum())


class ExactLayer(NamedTuple):
    """A layer before it is rounded, and the unquantized model's hidden states before it."""

    layer: LlamaDecoderLayer
    samples: list[Tensor]


def damped(hessian: Tensor, damping: float) -> Tensor:
    """A Hessian [K, K] with a share of its mean diagonal added to the diagonal."""
    diagonal = hessian.diagonal()
    mean = float(diagonal.mean()) or 1.0
    return hessian + torch.diag(torch.full_like(diagonal, damping * mean))


def corrected(weight: Tensor, stats: InputStatistics, damping: float) -> Tensor:
    """A weight W [N, K] changed towards the least mean of ||(W + Δ) x̃ - W x||²."""
    lower, failed = torch.linalg.cholesky_ex(damped(stats.hessian, damping))
    if failed or stats.errors is None:  # GPTQ then damps more, or says what is wrong
        return weight
    change = torch.cholesky_solve((weight @ stats.errors).t(), lower).t()
    return weight + _SHARE * change


def corrected_targets(outputs: list[Tensor], exact: list[Tensor]) -> list[Tensor]:
    """The hidden states [T, H] after a decoder layer that it is rounded for, of each sample.

    outputs: those before it is rounded, of inputs with errors. exact: those of exact inputs.
    """
    return [own.lerp(other, _SHARE) for own, other in zip(outputs, exact, strict=True)]


def input_statistics(
    layer: LlamaDecoderLayer,
    run: LayerRunner,
    samples: list[Tensor],
    names: Collection[str],
    exact: ExactLayer | None = None,
) -> dict[str, InputStatistics]:
    """Statistics of the inputs of the named linear layers, for hidden states before the layer."""
    found: dict[str, InputStatistics] = {}
    others = repeat({}) if exact is None else _inputs(exact.layer, run, exact.samples, names)
    for own, other in zip(_inputs(layer, run, samples, names), others, strict=False):
        for name, x in own.items():
            found.setdefault(name, InputStatistics.empty(x)).add(x, other.get(name))
    return found


class _Reached(Exception):  # noqa: N818
    """Ends a forward pass once the last of the wanted inputs is known."""


def _inputs(
    layer: LlamaDecoderLayer, run: LayerRunner, samples: list[Tensor], names: Collection[str]
) -> Iterator[dict[str, Tensor]]:
    """The inputs [T, K] of the named linear layers, a batch of samples at a time."""
    found: dict[str, Tensor] = {}

    def add(name: str, x: Tensor) -> None:
        if name in names:
            found[name] = x
        if len(found) == len(names):
            raise _Reached

    for states in batches(samples):
        found.clear()
        with observed(layer, add), suppress(_Reached):
            run(layer, states)
        yield found
