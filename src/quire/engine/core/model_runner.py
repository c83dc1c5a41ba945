"""The model runner of a CPU: runs a step to its end, from inputs to sampling. No torch.

Forward pass, logits, sampling, pooling. A GPU has gpu/device_runner.py, which overlaps steps.
"""

from __future__ import annotations

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
        hidden = self._model.forward(inputs.input_ids, inputs.ragged, running.heartbeat)
        results = {
            entry.request_id: SampleResult(failed=not sound)
            for entry, sound in zip(
                inputs.scheduled, finite_requests(inputs, hidden.finite()), strict=True
            )
        }
        self._sample(inputs, hidden, results)
        running.process_hidden_states(inputs, hidden, results)
        return ModelRunnerOutput(results=[results[entry.request_id] for entry in plan.scheduled])

    def reset(self) -> None:
        """Drop all requests."""
        self._running.reset()

    def _sample(self, inputs: StepInputs, hidden: HiddenStates, results: Results) -> None:
        due = [
            index
            for index, entry in enumerate(inputs.scheduled)
            if self._running.is_due(entry) and not results[entry.request_id].failed
        ]
        if due:
            every_token = len(due) == len(inputs.input_ids)  # all requests decode
            tokens = slice(None) if every_token else inputs.query_start[1:][due] - 1
            self._running.sample(inputs, due, hidden.logits(tokens), results)
