"""A step's work on a device: from its packed inputs through the model to sampled tokens.

Owns which kernels are launched, and in which order; both depend on the step's size alone. Does not
know how a step gets to the device (device_batch.py) nor what becomes of its outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from quire.engine.core.step_sizes import StepSize
from quire.engine.gpu.device_batch import DeviceBatch
from quire.engine.gpu.step_graphs import StepTensors, TokenStates
from quire.kernels.dispatch import Kernels
from quire.layers.forward_context import ForwardContext, Heartbeat
from quire.models.families.llama import LlamaForCausalLM
from quire.models.runtimes.torch_model import KVCaches


class DeviceDraw(Protocol):
    """Samples tokens on the device; see `sampling.device_sampler.DeviceSampler`."""

    def upload(self, rows: list[int]) -> None:
        """Start the copy of these rows of the sampling state."""

    def sample(self, logits: Tensor, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """logits [S, V], int32 rows and positions [S] → int32 token ids and failures [S].

        Rows of -1 are skipped. Never waits, and always launches the same kernels.
        """


class ModelWork:
    """A model's steps; see `step_graphs.StepWork`.

    num_warmed_up: see `layers_of_all_kinds`. heartbeat: called while kernels are launched.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        kv_caches: KVCaches,
        batch: DeviceBatch,
        sampler: DeviceDraw,
        kernels: Kernels,
        heartbeat: Heartbeat,
        *,
        has_head: bool,
        num_warmed_up: int,
    ) -> None:
        self._model = model
        self._kv_caches = kv_caches
        self._batch = batch
        self._sampler = sampler
        self._kernels = kernels
        self._heartbeat = heartbeat
        self._has_head = has_head
        self._num_warmed_up = num_warmed_up

    def forward(self, size: StepSize, *, is_warm_up: bool = False) -> TokenStates:
        """Run the packed step through the layers; in a warm-up through few of them.

        Beside prompts few tokens are sampled from, and the others end with their keys and values.
        """
        inputs = self._batch.build(size)
        count = self._num_warmed_up if is_warm_up else len(self._kv_caches)
        context = ForwardContext(inputs.layout, self._kv_caches, self._heartbeat)
        splits = size.has_prefills and self._has_head
        return run_layers(
            self._model, inputs.input_ids, inputs.positions, context, count, splits=splits
        )

    def finish(self, tokens: TokenStates, num_samples: int) -> StepTensors:
        """Compute the outcome that the host reads from what the layers found."""
        samples = self._batch.samples(num_samples)
        logits, drawn, failed = None, samples.rows, samples.rows
        if self._has_head and num_samples:
            # the look-up of rows of the embedding, as it is launched early
            sampled = tokens.map(lambda rows: self._kernels.embedding(samples.tokens, rows))
            logits = self._model.compute_logits(self.hidden_states(sampled))
            drawn, failed = self._sampler.sample(logits, samples.rows, samples.positions)
        outcome = self._kernels.finish_step(
            tokens.checked, samples.step_len, drawn, failed, samples.rows, self._batch.last_tokens
        )
        return StepTensors(tokens, logits, outcome)

    def hidden_states(self, tokens: TokenStates) -> Tensor:
        """Hidden states [N, H] of these tokens, over whose rows they may be written."""
        return hidden_states(self._model, tokens)


def run_layers(
    model: LlamaForCausalLM,
    input_ids: Tensor,
    positions: Tensor,
    context: ForwardContext,
    num_layers: int,
    *,
    splits: bool,
) -> TokenStates:
    """Run tokens [T] through a model's first layers; the context has the KV caches of all layers.

    splits: the last layer follows up to its attention, and the rest of it is left to
    `hidden_states`. Not of a single layer, in whose warm-up no other would launch these kernels.
    """
    if splits and len(context.kv) > 1:
        return TokenStates(*model.attend(input_ids, positions, context, num_layers))
    context = ForwardContext(context.layout, context.kv[:num_layers], context.heartbeat)
    return TokenStates(model.forward(input_ids, positions, context))


def hidden_states(model: LlamaForCausalLM, tokens: TokenStates) -> Tensor:
    """Hidden states [N, H] of what `run_layers` found; may be written over its rows."""
    return tokens.states if tokens.heads is None else model.finish(tokens.states, tokens.heads)


def layers_of_all_kinds(layers: Sequence[object]) -> int:
    """The number of a model's first layers that together launch every kernel of all its layers.

    Layers with equal records launch the same ones. The first layer has a norm of its own before it,
    where the others take what the layer before left.
    """
    others = layers[1:]
    return 1 + max((1 + others.index(layer) for layer in set(others)), default=0)
