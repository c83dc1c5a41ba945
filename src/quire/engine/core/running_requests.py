"""Host-side state of the running requests: rows, sampling state, pooling, prompt logprobs.

Model runners (model_runner.py, gpu/device_runner.py) compute steps; this file holds what they share
on the host. No torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from quire.array_types import Flags, Ints, Logits
from quire.core.messages import TokenLogprobs
from quire.core.request_limits import RequestLimits
from quire.core.scheduler_output import NewRequest, SampleResult, ScheduledRequest, SchedulerOutput
from quire.engine.core.input_batch import InputBatch, StepOrder
from quire.engine.core.pooler import Pooler
from quire.layers.forward_context import Heartbeat, no_heartbeat
from quire.models.runtimes.host_model import HiddenStates
from quire.sampling.sampler import Sampler
from quire.sampling.sampling_state import SamplingState
from quire.sampling.structured_mask import Matcher

# prompt positions whose logits exist at one time, to bound the memory of long prompts
PROMPT_LOGPROBS_CHUNK = 256

Results = dict[str, SampleResult]


class RunningRequests:
    """The requests in the batch; changed only by the differences that each plan brings.

    matchers: compiled grammars by request id. heartbeat: called during long host work.
    """

    def __init__(
        self,
        limits: RequestLimits,
        block_size: int,
        matchers: Mapping[str, Matcher],
        heartbeat: Heartbeat = no_heartbeat,
    ) -> None:
        self._matchers = matchers
        self.heartbeat = heartbeat
        self.batch = InputBatch(
            max_num_seqs=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            block_size=block_size,
        )
        self.sampling = SamplingState(limits.max_num_seqs, limits.vocab_size)
        self._sampler = Sampler(self.sampling)
        self.pooler = Pooler()
        self._prompt_logprobs: dict[str, int] = {}  # request id → number of top logprobs

    def apply_differences(self, plan: SchedulerOutput) -> list[int]:
        """Remove and add requests as the plan says; returns the rows of added requests."""
        self.sampling.step_begin = time.monotonic()
        for request_id in plan.removed_ids:
            row = self.batch.remove(request_id)
            if row is not None:
                self.sampling.clear_row(row)
                self._prompt_logprobs.pop(request_id, None)
                self.pooler.remove(request_id)
        entered = []
        for request in plan.new_requests:
            row = self.batch.add(request)
            self.pooler.add(request)
            self.sampling.set_row(
                row,
                request.sampling,
                seed=request.sampling.seed or 0,
                eos_token_ids=request.eos_token_ids,
                bad_words_ids=request.bad_words_ids,
                matcher=self._matchers.get(request.request_id),
                is_thinking=_is_thinking(request),
                caller=request.caller if request.pooling is None else None,
            )
            if request.sampling.prompt_logprobs is not None:
                self._prompt_logprobs[request.request_id] = request.sampling.prompt_logprobs
            entered.append(row)
        return entered

    def reset(self) -> None:
        """Drop all requests, whatever an interrupted step has left of them."""
        self.batch.reset()
        self.sampling.reset()
        self.pooler.reset()
        self._prompt_logprobs.clear()

    def due(self, scheduled: list[ScheduledRequest]) -> Ints:
        """Indices [D] of the scheduled requests for which this step draws a token."""
        if self.pooler:
            are_due = [e.samples and e.request_id not in self.pooler for e in scheduled]
        else:
            are_due = [entry.samples for entry in scheduled]
        return np.arange(len(are_due)) if all(are_due) else np.flatnonzero(are_due)

    def sample(self, order: StepOrder, due: Ints, logits: Logits, results: Results) -> None:
        """Draw a token for the requests `due` [S] from logits [S, V] and append it to their rows.

        due: indices into order.scheduled. The logits are overwritten.
        """
        batch, rows = self.batch, order.rows[due]
        drawn = self._sampler.sample(logits, rows, batch.history)
        lost = list[int]()
        for sample, index in enumerate(due.tolist()):
            request_id = order.scheduled[index].request_id
            result = results[request_id]
            result.failed, result.exhausted = drawn.failed[sample], drawn.exhausted[sample]
            if result.failed or result.exhausted:
                result.grammar_problem = self.grammar_problem(request_id)
                lost.append(sample)
                continue
            result.token_id = drawn.token_ids[sample]
            result.logprobs = drawn.logprobs[sample]
            result.grammar_terminated = drawn.grammar_terminated[sample]
        tokens = np.array(drawn.token_ids, np.int32)
        if lost:
            rows, tokens = np.delete(rows, lost), np.delete(tokens, lost)
        batch.append_tokens(rows, tokens)

    def grammar_problem(self, request_id: str) -> str | None:
        """Why a request's grammar allows no token any more; None if it has none, or goes on."""
        matcher = self._matchers.get(request_id)
        return None if matcher is None else matcher.problem

    def needs_hidden_states(self, order: StepOrder) -> bool:
        """Whether any request of this step needs hidden states for pooling or scores."""
        if not self._prompt_logprobs and not self.pooler:
            return False
        return any(
            entry.request_id in self.pooler or self._num_scored(int(row), entry) > 0
            for row, entry in zip(order.rows, order.scheduled, strict=True)
        )

    def process_hidden_states(
        self, order: StepOrder, hidden: HiddenStates, results: Results
    ) -> None:
        """Compute embeddings and prompt logprobs of the requests that asked for them."""
        if not self._prompt_logprobs and not self.pooler:
            return
        self.pooler.pool(order, hidden, results)
        for index, entry in enumerate(order.scheduled):
            result = results[entry.request_id]
            if not result.failed and self._num_scored(int(order.rows[index]), entry) > 0:
                result.prompt_logprobs = self._score_prompt(order, hidden, index)

    def _score_prompt(
        self, order: StepOrder, hidden: HiddenStates, index: int
    ) -> list[TokenLogprobs]:
        """Log-probabilities of the prompt tokens that follow this step's positions."""
        entry, row = order.scheduled[index], int(order.rows[index])
        count = self._num_scored(row, entry)
        first = int(order.query_start[index])
        following = self.batch.token_ids[row, entry.start + 1 : entry.start + 1 + count]
        scores: list[TokenLogprobs] = []
        for begin in range(0, count, PROMPT_LOGPROBS_CHUNK):
            self.heartbeat()
            end = min(begin + PROMPT_LOGPROBS_CHUNK, count)
            scores += hidden.scores(
                slice(first + begin, first + end),
                following[begin:end].tolist(),
                self._prompt_logprobs[entry.request_id],
            )
        return scores

    def _num_scored(self, row: int, entry: ScheduledRequest) -> int:
        """The number of the entry's positions that are followed by a prompt token to score."""
        if entry.request_id not in self._prompt_logprobs:
            return 0
        return max(
            0, min(entry.num_tokens, int(self.batch.num_prompt_tokens[row]) - 1 - entry.start)
        )


def _is_thinking(request: NewRequest) -> bool:
    """Whether the answer starts inside the reasoning, as far as a budget has to know it."""
    sampling = request.sampling
    if sampling.thinking_token_budget is None or sampling.reasoning_marks is None:
        return False
    return sampling.reasoning_marks.are_open_after(request.token_ids[: request.num_prompt_tokens])


def finite_requests(order: StepOrder, finite: Flags) -> Flags:
    """For each request [B], whether all its hidden states are finite. finite: flags of tokens [T].

    Prompt chunks are checked as well, because their KV blocks are cached and shared.
    """
    return np.logical_and.reduceat(finite, order.query_start[:-1])
