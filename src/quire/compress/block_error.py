"""The error of attention's or the MLP's output when one of its linear layers has another weight.

AWQ ranks scales by it (Lin et al., 2024: the authors' code compares outputs of the module that the
scaled inputs feed): errors of queries and keys matter as far as attention's softmax passes them on.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from quire.compress.layer_stream import LayerRunner, batches
from quire.compress.model_parts import Operation, set_linear, set_weight, weight_of
from quire.kernels.operands import LinearWeight
from quire.layers.linear_layers import LinearBase
from quire.models.families.llama import LlamaDecoderLayer

_TOKENS = 4096  # of samples that are looked at


class _Reached(Exception):  # noqa: N818
    """Ends a forward pass at the block's output. output: [T, N]."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output


class BlockError:
    """Compares outputs of a block's last linear layer with those of the weights as they are now.

    linear: whose weight changes. last: the block's last one. inputs: hidden states of samples
    before the layer.
    """

    def __init__(
        self,
        layer: LlamaDecoderLayer,
        run: LayerRunner,
        inputs: Sequence[Tensor],
        linear: LinearBase,
        last: LinearBase,
    ) -> None:
        self._layer, self._run, self._linear, self._last = layer, run, linear, last
        self._inputs = list(batches(inputs[: max(1, _TOKENS // len(inputs[0]))]))
        self._exact = self._outputs()

    def __call__(self, weight: Tensor) -> float:
        """The summed squares of the output's errors with another weight [N, K]."""
        own = weight_of(self._linear)
        set_weight(self._linear, weight)
        try:
            pairs = zip(self._outputs(), self._exact, strict=True)
            return sum(float((ours - exact).square().sum()) for ours, exact in pairs)
        finally:
            set_weight(self._linear, own)

    def _outputs(self) -> list[Tensor]:
        before = self._last.method.kernels.linear
        set_linear(self._last, _raising(before))
        try:
            return [self._output(states) for states in self._inputs]
        finally:
            set_linear(self._last, before)

    def _output(self, states: Tensor) -> Tensor:
        try:
            self._run(self._layer, states)
        except _Reached as reached:
            return reached.output
        raise AssertionError


def _raising(run: Operation) -> Operation:
    def operation(x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        raise _Reached(run(x, weight, bias))

    return operation
