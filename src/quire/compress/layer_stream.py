"""Hidden states of samples on their way through the decoder layers, one layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from quire.compress.model_parts import ModelParts, Operation, linears_of, set_linear
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.operands import LinearWeight
from quire.kernels.ragged_batch import RaggedBatch
from quire.kvcache.kv_storage import allocate_kv
from quire.layers.forward_context import ForwardContext
from quire.models.families.llama import LlamaDecoderLayer

_BLOCK = 16  # tokens of a KV block
_TOKENS = 4096  # that go through a layer together

# the name of a linear layer within its decoder layer, and its input [T, K]
Observer = Callable[[str, Tensor], None]
Notify = Callable[[str, int, int], None]  # what is done, how many layers are, of how many


class LayerRunner:
    """Runs one decoder layer on samples. index: of the layer."""

    def __init__(self, parts: ModelParts, index: int, length: int) -> None:
        self._parts, self._index = parts, index
        self._rotary = parts.rotary(index, length)

    def __call__(self, layer: LlamaDecoderLayer, hidden: Tensor) -> Tensor:
        """Hidden states [T, H] of a sample, or [B, T, H] of several, before the layer → after."""
        device, length = hidden.device, hidden.shape[-2]
        states = hidden.flatten(0, -2)
        count = len(states) // length
        spec = self._parts.spec.layers[self._index].kv
        table = np.arange(count * -(-length // _BLOCK), dtype=np.int32).reshape(count, -1)
        kv = allocate_kv([spec], table.size, _BLOCK, torch.float32, device)
        lens = np.full(count, length)
        batch = RaggedBatch.of(lens, lens, table, _BLOCK)
        layout = BatchLayout.of(batch, device)
        rope = self._rotary(torch.from_numpy(batch.flat.positions).to(device))
        first = layer.pre_attention_norm
        # the norm after the layer is the next one's, which is not here: any will do
        found = layer.forward(first.begin(states), first, rope, ForwardContext(layout, kv))
        return found.residual.view_as(hidden)

    def each(self, layer: LlamaDecoderLayer, samples: Sequence[Tensor]) -> list[Tensor]:
        """Hidden states of samples before the layer → after it."""
        return [own for batch in batches(samples) for own in self(layer, batch)]


def batches(samples: Sequence[Tensor]) -> Iterator[Tensor]:
    """Samples [T, H] of one length that follow each other as [B, T, H], of bounded size."""
    for length, alike in groupby(samples, key=len):
        waiting, most = list(alike), max(1, _TOKENS // length)
        for start in range(0, len(waiting), most):
            yield torch.stack(waiting[start : start + most])


@contextmanager
def observed(layer: LlamaDecoderLayer, observer: Observer) -> Iterator[None]:
    """Within it, an observer gets the input of each linear layer before that runs."""
    before = {name: linear.method.kernels.linear for name, linear in linears_of(layer).items()}
    for name, linear in linears_of(layer).items():
        set_linear(linear, _observing(name, before[name], observer))
    try:
        yield
    finally:
        for name, linear in linears_of(layer).items():
            set_linear(linear, before[name])


def _observing(name: str, run: Operation, observer: Observer) -> Operation:
    def operation(x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        observer(name, x)
        return run(x, weight, bias)

    return operation
