"""The model runner of a GPU: launches a step without waiting for the one before it.

Owns the order of a step's work on the device, and how its outcome gets back. A step is launched
from what the scheduler knows; the token that the step before draws for a row is read on the device.
Only `collect` waits for the device, and it is called when the next step has been launched.

Requests whose logits are changed (penalties, biases) are sampled after the recorded part
(step_logits.py). Where the change depends on the answer so far (grammars, bad words), the host
first takes the outcome of the step before. Embeddings and prompt log-probabilities are computed
from the host: such a step is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from quire.array_types import Int32s, Ints
from quire.core.request_limits import RequestLimits
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.engine.core.executor import Failed, Outcome
from quire.engine.core.input_batch import StepOrder
from quire.engine.core.running_requests import RunningRequests, finite_requests
from quire.engine.core.step_sizes import StepSizes
from quire.engine.gpu.device_batch import DeviceBatch, PinnedBuffers
from quire.engine.gpu.step_graphs import Record, StepGraphs
from quire.engine.gpu.step_logits import StepLogits, WantedScores
from quire.engine.gpu.step_work import DeviceDraw, ModelWork
from quire.kernels.batch_layout import have_few_keys
from quire.kernels.dispatch import Kernels
from quire.models.families.llama import LlamaForCausalLM
from quire.models.runtimes.torch_model import KVCaches, TorchStates
from quire.sampling.device_logits_processors import DRAWN, EXHAUSTED, DeviceLogitsProcessors
from quire.sampling.structured_mask import GrammarConstraint, advance_grammars


@dataclass(slots=True)
class PendingStep:
    """A launched step; its outcome is on the host once the event `arrival` has occurred."""

    plan: SchedulerOutput
    order: StepOrder
    due: Ints  # [D] indices into the order: requests that get a token
    rows: Ints  # [D] their rows
    tenancies: Ints  # [D] whose rows these were: they may belong to other requests by now
    grammars: dict[int, GrammarConstraint]  # by row, likewise
    num_samples: int  # S
    scores: list[WantedScores]
    outcome: Tensor  # int32 [2 S + T] on the host, see kernels.reference_step.finish_step
    arrival: torch.cuda.Event | None
    replayed: bool
    output: ModelRunnerOutput | None = None


class DeviceRunner:
    """The `Executor` of one rank on a device that works while the host goes on.

    max_num_tokens: of a step. num_warmed_up: see `ModelWork`. record: records parts of steps as
    graphs; None: kernels are launched one by one. shares_prefixes: whether requests may hold the
    same blocks.
    """

    max_in_flight = 2

    def __init__(
        self,
        model: LlamaForCausalLM,
        kv_caches: KVCaches,
        limits: RequestLimits,
        running: RunningRequests,
        sampler: DeviceDraw,
        kernels: Kernels,
        max_num_tokens: int,
        device: torch.device,
        *,
        num_warmed_up: int,
        record: Record | None,
        shares_prefixes: bool = False,
    ) -> None:
        self._model = model
        self._running = running
        self._sampler = sampler
        self._kernels = kernels
        self._batch = DeviceBatch(
            running.batch, max_num_tokens, kernels, device, shares_prefixes=shares_prefixes
        )
        self._sizes = StepSizes(
            limits.max_num_seqs, max_num_tokens,
            pads_mixed=record is not None, shares_prefixes=shares_prefixes,
        )  # fmt: skip
        self._processors = DeviceLogitsProcessors(
            running.sampling, limits.max_num_seqs, sampler.sample, kernels, device
        )
        self._logits = StepLogits(running, self._processors, self._batch.last_tokens)
        self._work = ModelWork(
            model, kv_caches, self._batch, sampler, kernels, running.heartbeat,
            has_head=limits.generates, num_warmed_up=num_warmed_up,
        )  # fmt: skip
        self._graphs = StepGraphs(self._work, self._sizes, record)
        self.step_sizes: Sequence[int] = self._sizes.mixed
        self._on_gpu = device.type == "cuda"
        self._buffers = PinnedBuffers(2 * limits.max_num_seqs + max_num_tokens, device)
        self._pending: deque[PendingStep] = deque()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Launch each kernel of recorded steps, and those that may follow them."""
        self._graphs.warm_up_all(self._batch.clear)
        self._processors.warm_up()
        self._receive(self._batch.last_tokens)

    @torch.inference_mode()
    def record(self) -> None:
        """Record what steps replay; call `warm_up` first."""
        self._graphs.record_all(self._batch.clear)

    def execute(self, plan: SchedulerOutput) -> Outcome:
        """Launch a step; an error, at once or later, is raised by the outcome."""
        try:
            step = self.launch(plan)
        except Exception as failure:  # any error of a step; the engine must outlive it
            return Failed(failure)
        return lambda: self.collect(step)

    @torch.inference_mode()
    def launch(self, plan: SchedulerOutput) -> PendingStep:
        """Start a step. Changes the batch and, when it runs, the KV cache."""
        entered = self._running.apply_differences(plan)
        order = self._batch.order(plan)
        due = self._running.due(order.scheduled)
        rows = order.rows[due]
        num_tokens = int(order.query_start[-1])
        has_prefills, has_shared = num_tokens > len(order.rows), self._batch.take(order)
        has_few_keys = has_prefills and have_few_keys(np.diff(order.query_start), order.seq_lens)
        size = self._sizes.of(num_tokens, len(due), has_prefills, has_shared, has_few_keys)
        self._batch.send(order, size, due, np.where(self._processors.among(rows), -1, rows))
        tensors = self._graphs.run(size, partial(self._upload_sampling, entered))
        if self._processors.read_answers(rows):
            self._finish_pending()  # while the device is busy
        self._logits.draw(tensors, size.num_samples, rows, order.seq_lens[due])
        step = PendingStep(
            plan, order, due, rows,
            tenancies=self._running.batch.tenancies[rows],
            grammars=self._running.sampling.grammars.copy(),
            num_samples=size.num_samples,
            scores=self._logits.score(tensors, rows),
            outcome=self._receive(tensors.outcome[: 2 * size.num_samples + num_tokens]),
            arrival=self._mark(),
            replayed=self._graphs.replays(size),
        )  # fmt: skip
        self._pending.append(step)
        if self._running.needs_hidden_states(order):
            own = tensors.tokens.map(lambda rows: rows[:num_tokens])
            self._finish_pending(self._work.hidden_states(own))
        return step

    def _upload_sampling(self, rows: list[int]) -> None:
        """Upload the sampling params of rows that have new requests."""
        self._sampler.upload(rows)
        self._processors.enter(rows, self._running.batch.history)

    def collect(self, step: PendingStep) -> ModelRunnerOutput:
        """Wait for a step's outcome; steps are collected in the order of their launches."""
        while step.output is None:
            if not self._pending:
                raise RuntimeError("this step was lost in the failure of a later one")
            self._finish(self._pending.popleft(), None)
        return step.output

    def reset(self) -> None:
        """Wait for the device, and drop all steps and requests."""
        if self._on_gpu:
            torch.cuda.synchronize()
        self._pending.clear()
        self._running.reset()

    def _receive(self, outcome: Tensor) -> Tensor:
        """Start the copy of an outcome to the host; returns where it will be."""
        target = self._buffers.take()[: len(outcome)]
        self._kernels.move(target, outcome)
        return target

    def _mark(self) -> torch.cuda.Event | None:
        """An event that occurs when the device has done all that was launched; None on a CPU."""
        if not self._on_gpu:
            return None
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record()
        return arrival

    def _finish_pending(self, hidden: Tensor | None = None) -> None:
        """Wait for the outcomes of all pending steps. hidden: states of the last one."""
        while self._pending:
            step = self._pending.popleft()
            self._finish(step, None if self._pending else hidden)

    def _finish(self, step: PendingStep, hidden: Tensor | None) -> None:
        """Turn a step's outcome into results. hidden: states [N, H], if the host reads them."""
        if step.arrival is not None:
            step.arrival.synchronize()
        order = step.order
        drawn, failed, finite = np.split(
            step.outcome.numpy(), [step.num_samples, 2 * step.num_samples]
        )
        count = len(step.due)
        ordered = self._take_drawn(step, drawn[:count], failed[:count])
        states = None if hidden is None else TorchStates(hidden, self._model)
        flags = finite != 0
        if states is not None:  # the last layer's MLP was computed for all tokens after the outcome
            flags &= states.finite()
        if not flags.all():
            sound = finite_requests(order, flags)
            ordered = [
                each if is_sound else SampleResult(failed=True)
                for each, is_sound in zip(ordered, sound, strict=True)
            ]
        results = {
            entry.request_id: result for entry, result in zip(order.scheduled, ordered, strict=True)
        }
        if states is not None:
            self._running.process_hidden_states(order, states, results)
        step.output = ModelRunnerOutput(
            results=[results[entry.request_id] for entry in step.plan.scheduled],
            replayed=step.replayed,
        )

    def _take_drawn(self, step: PendingStep, drawn: Int32s, failed: Int32s) -> list[SampleResult]:
        """Keep the tokens [D] in rows not given away; what each request of the order gets."""
        batch, rows = self._running.batch, step.rows
        is_drawn = failed == DRAWN
        whole = advance_grammars(step.grammars, rows[is_drawn], drawn[is_drawn])
        valid = is_drawn & (batch.tenancies[rows] == step.tenancies)
        batch.append_tokens(rows[valid], drawn[valid])
        results = _results(step, drawn, failed)
        if not is_drawn.all():
            for result, entry in zip(results, step.order.scheduled, strict=True):
                if result.exhausted:
                    result.grammar_problem = self._running.grammar_problem(entry.request_id)
        if whole:
            for index, row in zip(step.due.tolist(), rows.tolist(), strict=True):
                results[index].grammar_terminated = row in whole
        return results


def _results(step: PendingStep, drawn: Int32s, failed: Int32s) -> list[SampleResult]:
    """The result of each request of the order, by its token and its sampling status [D]."""
    indices, statuses = step.due.tolist(), failed.tolist()
    tokens: list[int | None] = [None] * len(step.order.scheduled)
    for index, token_id in zip(indices, drawn.tolist(), strict=True):
        tokens[index] = token_id
    results = [SampleResult(token_id=token_id) for token_id in tokens]
    for wanted in step.scores:
        for sample, scores in wanted.report().items():
            results[indices[sample]].logprobs = scores
    if any(statuses):
        for index, status in zip(indices, statuses, strict=True):
            if status != DRAWN:
                is_exhausted = status == EXHAUSTED
                results[index] = SampleResult(exhausted=is_exhausted, failed=not is_exhausted)
    return results
