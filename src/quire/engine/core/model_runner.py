"""The model runner of a CPU: runs a step to its end, from inputs to sampling. No torch.

Forward pass, logits, sampling, pooling. A GPU has gpu/device_runner.py, which overlaps steps.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Flags, Ints
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.engine.core.input_batch import StepInputs
from quire.engine.core.running_requests import Results, RunningRequests, finite_requests
from quire.models.runtimes.host_model import HiddenStates, HostModel


class ModelRunner:
    """Runs steps of one model on the host."""

    def __init__(self, model: HostModel, running: RunningRequests) -> None:
        self._model = model
        self._running = running

    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run a plan to its end. Changes the batch and the KV cache."""
        running = self._running
        running.apply_differences(plan)
        inputs = running.batch.prepare(plan)
        due = running.due(inputs.scheduled)
        needed = self._needed(inputs, due)
        hidden = self._model.forward(inputs.input_ids, inputs.ragged, running.heartbeat, needed)
        sound = finite_requests(inputs, hidden.finite())
        results = {
            entry.request_id: SampleResult(failed=not is_sound)
            for entry, is_sound in zip(inputs.scheduled, sound.tolist(), strict=True)
        }
        only_due = needed is not None or len(due) == len(inputs.input_ids)
        self._sample(inputs, hidden, due, sound, results, only_due=only_due)
        running.process_hidden_states(inputs, hidden, results)
        return ModelRunnerOutput(results=[results[entry.request_id] for entry in plan.scheduled])

    def reset(self) -> None:
        """Drop all requests."""
        self._running.reset()

    def _needed(self, inputs: StepInputs, due: Ints) -> Ints | None:
        """The tokens that are sampled from, if no other's hidden states are read."""
        is_every_token = len(due) == len(inputs.input_ids)  # all requests decode
        if is_every_token or self._running.needs_hidden_states(inputs):
            return None
        return _last_tokens(inputs, due)

    def _sample(
        self,
        inputs: StepInputs,
        hidden: HiddenStates,
        due: Ints,
        sound: Flags,
        results: Results,
        *,
        only_due: bool,
    ) -> None:
        """Draw a token for each request that is due [D] and sound (flags [B]).

        only_due: whether `hidden` has the states of their last tokens alone, in this order.
        """
        tokens: slice | Ints = slice(None)
        if not (only_due and sound.all()):
            states = np.arange(len(due)) if only_due else _last_tokens(inputs, due)
            are_sound = sound[due]
            due, tokens = due[are_sound], states[are_sound]
        if len(due):
            self._running.sample(inputs, due, hidden.logits(tokens), results)


def _last_tokens(inputs: StepInputs, requests: Ints) -> Ints:
    """Indices of the last token that each of these requests has in a step."""
    return inputs.query_start[requests + 1] - 1
