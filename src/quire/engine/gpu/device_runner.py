"""Keeps a GPU busy: launches a step without waiting for the one before it.

Owns the order of a step's work on the device and the way of its outcome back. A step is launched
from what the scheduler knows; the token that the step before will draw for a row is read on the
device. Nothing on this path waits for the device but `collect`, which is called when the next step
is on its way.

Penalties, biases and other wishes that change logits are drawn for behind the recorded part
(step_logits.py). For those that look at the answer itself (forms, bad words) the host takes the
outcome of the step before meanwhile. Embeddings and scores of prompts are made on the host's side:
such a step is waited for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from quire.array_types import Int32s, Ints
from quire.core.request_limits import RequestLimits
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.engine.core.input_batch import StepOrder
from quire.engine.core.running_requests import RunningRequests, finite_requests
from quire.engine.core.step_sizes import StepSizes
from quire.engine.gpu.device_batch import DeviceBatch
from quire.engine.gpu.pinned_buffers import PinnedBuffers
from quire.engine.gpu.step_graphs import Record, StepGraphs, StepTensors
from quire.engine.gpu.step_logits import StepLogits, WantedScores
from quire.engine.gpu.step_work import DeviceDraw, ModelWork
from quire.kernels.batch_layout import have_few_keys
from quire.kernels.dispatch import Kernels
from quire.models.runtimes.torch_model import CausalLM, KVCaches, TorchStates
from quire.sampling.device_logits_processors import DRAWN, EXHAUSTED


@dataclass(slots=True)
class PendingStep:
    """A step that was launched; its outcome is on the host once `arrival` has happened."""

    plan: SchedulerOutput
    order: StepOrder
    due: Ints  # [D] places in the order that are due a token
    rows: Ints  # [D] their rows
    tenancies: Ints  # [D] whose rows these were, as they may have been given to others since
    num_samples: int  # S
    scores: WantedScores | None
    outcome: Tensor  # int32 [2 S + T] on the host, see kernels.reference_step.finish_step
    arrival: torch.cuda.Event | None
    replayed: bool
    output: ModelRunnerOutput | None = None


class DeviceRunner:
    """One rank's steps on a device that works while the host goes on.

    max_num_tokens: of a step. num_warmed_up: see `ModelWork`. record: makes graphs of parts of
    steps; None: kernels are launched one by one. shares_prefixes: whether requests may hold the
    same blocks.
    """

    def __init__(
        self,
        model: CausalLM,
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
        self._wishes = StepLogits(running, sampler, kernels, self._batch.last_tokens)
        work = ModelWork(
            model, kv_caches, self._batch, sampler, kernels, running.heartbeat,
            has_head=limits.generates, num_warmed_up=num_warmed_up,
        )  # fmt: skip
        self._graphs = StepGraphs(work, self._sizes, record)
        self._on_gpu = device.type == "cuda"
        self._buffers = PinnedBuffers(2 * limits.max_num_seqs + max_num_tokens, device)
        self._pending: deque[PendingStep] = deque()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Launch each kernel that recorded steps will have, and those that may follow them."""
        self._graphs.warm_up_all(self._batch.clear)
        self._wishes.warm_up()
        self._receive(self._batch.last_tokens)

    @torch.inference_mode()
    def record(self) -> None:
        """Record what steps replay; their kernels are there."""
        self._graphs.record_all(self._batch.clear)

    @property
    def step_sizes(self) -> list[int]:
        """See `Executor`."""
        return self._sizes.mixed

    @torch.inference_mode()
    def launch(self, plan: SchedulerOutput) -> PendingStep:
        """Start a step. Changes the batch and, when it runs, the KV cache."""
        entered = self._running.apply_differences(plan)
        order = self._batch.order(plan)
        due = self._running.due(order.scheduled)
        rows = order.rows[due]
        num_tokens = int(order.query_start[-1])
        has_prefills, has_shared = num_tokens > len(order.rows), self._batch.take(order)
        lengths = _lengths(order)
        has_few_keys = has_prefills and have_few_keys(np.diff(order.query_start), lengths)
        size = self._sizes.of(num_tokens, len(due), has_prefills, has_shared, has_few_keys)
        self._batch.send(order, size, due, np.where(self._wishes.among(rows), -1, rows))
        tensors = self._graphs.run(size, partial(self._take_wishes, entered))
        if self._wishes.read_answers(rows):
            self._settle()  # while the device is busy
        self._wishes.draw(tensors, size.num_samples, rows, lengths[due])
        step = PendingStep(
            plan, order, due, rows,
            tenancies=self._running.batch.tenancies[rows],
            num_samples=size.num_samples,
            scores=self._wishes.score(tensors, rows),
            outcome=self._receive(tensors.outcome[: 2 * size.num_samples + num_tokens]),
            arrival=self._mark(),
            replayed=self._graphs.replays(size),
        )  # fmt: skip
        self._pending.append(step)
        if self._running.needs_hidden_states(order):
            self._settle(tensors)
        return step

    def _take_wishes(self, rows: list[int]) -> None:
        """Bring the wishes of rows that were given to requests to the device."""
        self._sampler.upload(rows)
        self._wishes.enter(rows)

    def collect(self, step: PendingStep) -> ModelRunnerOutput:
        """Wait for a step's outcome; steps are collected in the order of their launches."""
        while step.output is None:
            if not self._pending:
                raise RuntimeError("this step was lost in the failure of a later one")
            self._finish(self._pending.popleft(), None)
        return step.output

    def _receive(self, outcome: Tensor) -> Tensor:
        """Start its copy to the host."""
        kept = self._buffers.take()[: len(outcome)]
        self._kernels.move(kept, outcome)
        return kept

    def _mark(self) -> torch.cuda.Event | None:
        """What happens when the device has done all that was launched."""
        if not self._on_gpu:
            return None
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record()
        return arrival

    def _settle(self, tensors: StepTensors | None = None) -> None:
        """Take the outcomes of all steps; tensors: of the last one."""
        while self._pending:
            step = self._pending.popleft()
            self._finish(step, None if self._pending else tensors)

    def _finish(self, step: PendingStep, tensors: StepTensors | None) -> None:
        """Make results of a step's outcome. tensors: where the host reads more than that."""
        if step.arrival is not None:
            step.arrival.synchronize()
        order = step.order
        drawn, failed, finite = np.split(
            step.outcome.numpy(), [step.num_samples, 2 * step.num_samples]
        )
        count = len(step.due)
        ordered = self._take_drawn(step, drawn[:count], failed[:count])
        if not finite.all():
            sound = finite_requests(order, finite != 0)
            ordered = [
                each if is_sound else SampleResult(failed=True)
                for each, is_sound in zip(ordered, sound, strict=True)
            ]
        results = {
            entry.request_id: result for entry, result in zip(order.scheduled, ordered, strict=True)
        }
        if tensors is not None:
            hidden = TorchStates(tensors.hidden, self._model)
            self._running.process_hidden_states(order, hidden, results)
        step.output = ModelRunnerOutput(
            results=[results[entry.request_id] for entry in step.plan.scheduled],
            replayed=step.replayed,
        )

    def _take_drawn(self, step: PendingStep, drawn: Int32s, failed: Int32s) -> list[SampleResult]:
        """Keep the tokens [D] in rows not given away; what each request of the order gets."""
        batch, rows = self._running.batch, step.rows
        kept = (failed == DRAWN) & (batch.tenancies[rows] == step.tenancies)
        whole = self._running.advance_grammars(rows[kept], drawn[kept])
        batch.append_tokens(rows[kept], drawn[kept])
        results = _results(step, drawn, failed)
        if whole:
            for place, row in zip(step.due.tolist(), rows.tolist(), strict=True):
                results[place].grammar_terminated = row in whole
        return results


def _results(step: PendingStep, drawn: Int32s, failed: Int32s) -> list[SampleResult]:
    """Of each request of the order, by tokens and what came of their draws [D]."""
    places, statuses = step.due.tolist(), failed.tolist()
    tokens: list[int | None] = [None] * len(step.order.scheduled)
    for place, token_id in zip(places, drawn.tolist(), strict=True):
        tokens[place] = token_id
    results = [SampleResult(token_id=token_id) for token_id in tokens]
    if step.scores is not None:
        for sample, scores in step.scores.report().items():
            results[places[sample]].logprobs = scores
    if any(statuses):
        for place, status in zip(places, statuses, strict=True):
            if status != DRAWN:
                is_exhausted = status == EXHAUSTED
                results[place] = SampleResult(exhausted=is_exhausted, failed=not is_exhausted)
    return results


def _lengths(order: StepOrder) -> Ints:
    """How many tokens each request has with this step: [B]."""
    return np.array([entry.start + entry.num_tokens for entry in order.scheduled], np.int64)
