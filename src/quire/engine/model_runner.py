"""Runs one planned step on one device: inputs, forward, logits, sampling or pooling.

Owns the model, the KV cache's tensors and the batch's rows. Knows nothing of waiting requests,
of block ownership or of time. This one runs a step to its end, for devices with nothing to overlap;
device_runner.py keeps a GPU busy.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from quire.core.step import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.engine.input_batch import StepInputs
from quire.engine.running import Results, RunningRequests, sound_requests
from quire.kernels.dispatch import kernels_for
from quire.layers.context import ForwardContext

KVCaches = list[tuple[Tensor, Tensor]]


class CausalLM(Protocol):
    """What a model has to offer."""

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """input_ids, positions int64 [T] → hidden states [T, H]; writes the KV cache."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [S, H] → [S, V], in the type of the products."""


class ModelRunner:
    """One rank's step."""

    def __init__(self, model: CausalLM, kv_caches: KVCaches, running: RunningRequests) -> None:
        self._model = model
        self._kv_caches = kv_caches
        self._running = running

    @torch.inference_mode()
    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run a plan to its end. Changes the batch and the KV cache."""
        self._running.apply_differences(plan)
        inputs = self._running.batch.prepare(plan)
        context = ForwardContext(layout=inputs.layout, kv=self._kv_caches, beat=self._running.beat)
        hidden = self._model.forward(inputs.input_ids, inputs.positions, context)  # [T, H]
        finite = kernels_for(hidden.device.type).finite_rows(hidden).cpu().numpy()  # [T]
        results = {
            entry.request_id: SampleResult(failed=not sound)
            for entry, sound in zip(inputs.scheduled, sound_requests(inputs, finite), strict=True)
        }
        self._sample(inputs, hidden, results)
        self._running.read_hidden(inputs, hidden, self._model.compute_logits, results)
        return ModelRunnerOutput(results=[results[entry.request_id] for entry in plan.scheduled])

    def _sample(self, inputs: StepInputs, hidden: Tensor, results: Results) -> None:
        due = [
            index
            for index, entry in enumerate(inputs.scheduled)
            if self._running.is_due(entry) and not results[entry.request_id].failed
        ]
        if due:
            if len(due) < len(hidden):  # else each has one token, and one is drawn after it
                last_tokens = torch.from_numpy(inputs.query_start[1:][due] - 1)
                hidden = hidden.index_select(0, last_tokens.to(hidden.device))
            logits = self._model.compute_logits(hidden)  # [S, V]
            logits = kernels_for(logits.device.type).to_float(logits)
            self._running.sample(inputs, due, logits, results)
