"""Runs one planned step on one device: inputs, forward, logits, sampling or pooling.

Owns the model, the KV cache's tensors and the batch's rows. Knows nothing of waiting requests,
of block ownership or of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from quire.core.messages import TokenLogprobs
from quire.core.request import RequestLimits
from quire.core.step import ModelRunnerOutput, SampleResult, ScheduledRequest, SchedulerOutput
from quire.engine.input_batch import InputBatch, StepInputs
from quire.engine.pooling import Pooler
from quire.layers.context import Beat, ForwardContext, unwatched
from quire.sampling.sampler import Sampler, prompt_logprobs
from quire.sampling.state import SamplingState
from quire.sampling.structured import Matcher

KVCaches = list[tuple[Tensor, Tensor]]

# prompt positions whose logits exist at one time, so that a long prompt's fit in memory
PROMPT_LOGPROBS_CHUNK = 256


class CausalLM(Protocol):
    """What a model has to offer."""

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """input_ids, positions int64 [T] → hidden states [T, H]; writes the KV cache."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [S, H] → float32 [S, V]."""


class ModelRunner:
    """One rank's step."""

    def __init__(
        self,
        model: CausalLM,
        kv_caches: KVCaches,
        limits: RequestLimits,
        block_size: int,
        device: torch.device,
        matchers: Mapping[str, Matcher] | None = None,
        beat: Beat = unwatched,
    ) -> None:
        self._model = model
        self._beat = beat
        self._matchers = {} if matchers is None else matchers
        self._kv_caches = kv_caches
        self._batch = InputBatch(
            max_num_seqs=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            block_size=block_size,
            device=device,
        )
        self._sampling = SamplingState(limits.max_num_seqs, limits.vocab_size)
        self._sampler = Sampler(self._sampling)
        self._pooler = Pooler()
        self._prompt_logprobs: dict[str, int] = {}  # request id → how many it asked for

    @torch.inference_mode()
    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run a plan to its end. Changes the batch and the KV cache."""
        self._apply_differences(plan)
        inputs = self._batch.prepare(plan)
        context = ForwardContext(layout=inputs.layout, kv=self._kv_caches, beat=self._beat)
        hidden = self._model.forward(inputs.input_ids, inputs.positions, context)  # [T, H]
        results = {
            entry.request_id: SampleResult(failed=not sound)
            for entry, sound in zip(inputs.scheduled, _are_finite(inputs, hidden), strict=True)
        }
        self._sample(inputs, hidden, results)
        self._pooler.pool(inputs, hidden, results)
        for index, entry in enumerate(inputs.scheduled):
            result = results[entry.request_id]
            if entry.request_id in self._prompt_logprobs and not result.failed:
                result.prompt_logprobs = self._score_prompt(inputs, hidden, index)
        return ModelRunnerOutput(results=[results[entry.request_id] for entry in plan.scheduled])

    def _apply_differences(self, plan: SchedulerOutput) -> None:
        for request_id in plan.removed_ids:
            row = self._batch.remove(request_id)
            if row is not None:
                self._sampling.clear_row(row)
                self._prompt_logprobs.pop(request_id, None)
                self._pooler.remove(request_id)
        for request in plan.new_requests:
            row = self._batch.add(request)
            self._pooler.add(request)
            self._sampling.set_row(
                row,
                request.sampling,
                seed=request.sampling.seed or 0,
                eos_token_ids=request.eos_token_ids,
                bad_words_ids=request.bad_words_ids,
                matcher=self._matchers.get(request.request_id),
            )
            if request.sampling.prompt_logprobs is not None:
                self._prompt_logprobs[request.request_id] = request.sampling.prompt_logprobs

    def _sample(self, inputs: StepInputs, hidden: Tensor, results: dict[str, SampleResult]) -> None:
        """Draw a token for each request that is due one, and keep it in the batch."""
        due = [
            index
            for index, entry in enumerate(inputs.scheduled)
            if entry.samples
            and entry.request_id not in self._pooler
            and not results[entry.request_id].failed
        ]
        if not due:
            return
        last_tokens = torch.from_numpy(inputs.query_start[1:][due] - 1).to(hidden.device)
        logits = self._model.compute_logits(hidden[last_tokens])  # [S, V]
        rows = inputs.rows[due].tolist()
        batch = self._batch
        drawn = self._sampler.sample(
            logits, rows, batch.token_ids, batch.num_tokens, batch.num_prompt_tokens
        )
        for place, index in enumerate(due):
            result = results[inputs.scheduled[index].request_id]
            result.failed, result.exhausted = drawn.failed[place], drawn.exhausted[place]
            if not (result.failed or result.exhausted):
                result.token_id = drawn.token_ids[place]
                result.logprobs = drawn.logprobs[place]
                result.whole = drawn.whole[place]
                batch.append_token(rows[place], result.token_id)

    def _score_prompt(self, inputs: StepInputs, hidden: Tensor, index: int) -> list[TokenLogprobs]:
        """Log-probabilities of the prompt tokens that follow this step's positions."""
        entry, row = inputs.scheduled[index], int(inputs.rows[index])
        count = min(entry.num_tokens, self._num_scored(row, entry))
        first = int(inputs.query_start[index])
        following = self._batch.token_ids[row, entry.start + 1 : entry.start + 1 + count]
        scores: list[TokenLogprobs] = []
        for begin in range(0, count, PROMPT_LOGPROBS_CHUNK):
            self._beat()
            end = min(begin + PROMPT_LOGPROBS_CHUNK, count)
            logits = self._model.compute_logits(hidden[first + begin : first + end])
            scores += prompt_logprobs(
                logits, following[begin:end].tolist(), self._prompt_logprobs[entry.request_id]
            )
        return scores

    def _num_scored(self, row: int, entry: ScheduledRequest) -> int:
        """How many prompt tokens lie after the entry's first position."""
        return max(0, int(self._batch.num_prompt_tokens[row]) - 1 - entry.start)


def _are_finite(inputs: StepInputs, hidden: Tensor) -> list[bool]:
    """Whether all hidden states [T, H] of each request [B] are finite, sampled from or not.

    A prompt's chunk is cached and shared like everything else, so it must not be damaged unseen.
    """
    finite = hidden.isfinite().all(-1).cpu().numpy()  # [T]
    sound: list[bool] = np.logical_and.reduceat(finite, inputs.query_start[:-1]).tolist()
    return sound
