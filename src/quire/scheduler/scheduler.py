"""The scheduler: continuous batching of requests, from arrival to end, over steps in flight.

Owns the steps in flight and what their results mean for requests. planner.py chooses what a step
runs, scheduler_batch.py holds waiting and running requests, kvcache/kv_cache_manager.py blocks. It
has no tensors and no clock. No torch.

Steps may overlap: `schedule` advances lengths at once, so it may be called again before `update`
has brought the tokens. Freed blocks are reused at once because steps run in order on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.config import SchedulerConfig
from quire.core.messages import EngineStats, ErrorKind, RequestDelta
from quire.core.request import FinishReason, Request, RequestStatus
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.chunk_policy import ChunkPolicy
from quire.scheduler.planner import Planner
from quire.scheduler.prefill_chunks import PrefillChunks
from quire.scheduler.request_outputs import (
    NON_FINITE,
    QUEUE_TIMEOUT,
    make_delta,
    make_final_delta,
    make_progress_delta,
    no_token_left,
)
from quire.scheduler.scheduler_batch import Batch
from quire.scheduler.step_plan import PlannedRequest


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0


class Scheduler:
    """Continuous batching with chunked prefill, prefix sharing, and preemption by recomputation.

    full_step: most prompt tokens of a step, in place of the settings'. measured: initial step costs
    as (decodes, prompt tokens, seconds). step_sizes: see `Executor`. Raises ConfigError as
    `SchedulerConfig.check_longest_prompt` does.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        max_model_len: int,
        *,
        full_step: int | None = None,
        measured: Iterable[tuple[int, int, float]] = (),
        step_sizes: Sequence[int] = (),
    ) -> None:
        config.check_longest_prompt(max_model_len)
        self._policy = ChunkPolicy(
            _seconds(config.itl_target_ms),
            _seconds(config.ttft_target_ms),
            full_step=full_step or config.full_step,
        )
        for step in measured:
            self._policy.observe(*step)
        self._kv = kv
        self._batch = Batch(kv)
        self._honours_priority = config.scheduling_policy == "priority"
        chunks = PrefillChunks(config, self._policy, step_sizes)
        self._planner = Planner(config, kv, self._batch, self._policy, chunks)
        self._in_flight: dict[int, list[PlannedRequest]] = {}  # step_id → its requests, in order
        self._num_steps = 0
        self._num_graph_steps = 0
        self.num_generation_tokens = 0  # so far, of all requests
        self._num_corrupted_requests = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._batch.requests)

    def add(self, request: Request) -> None:
        """Add a request to the waiting queue; it has passed RequestLimits.check.

        Its priority counts only with the scheduling policy of that name.
        """
        assert 0 < request.num_tokens < request.max_total_tokens
        assert self._kv.num_blocks_for(request.max_total_tokens - 1) <= self._kv.pool.num_blocks
        if not self._honours_priority:
            request.priority = 0
        is_new = request.num_output_tokens == 0  # else from another engine: its caller waits
        num_tokens = request.num_tokens if is_new else 0
        planned = self._batch.num_planned_tokens
        request.due_time = self._policy.due_time(request.queued, planned, num_tokens)
        self._batch.add(request)

    def abort(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """Abort these requests, waiting or running; unknown and ended ids are ignored."""
        return [self._end(r, FinishReason.ABORT) for r in self._batch.find(request_ids)]

    def expire(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """End those of these requests that have not started; queue timeout."""
        return [
            self._end(request, FinishReason.ERROR, QUEUE_TIMEOUT, ErrorKind.QUEUE_TIMEOUT)
            for request in self._batch.find(request_ids)
            if request.status is RequestStatus.WAITING and request.num_output_tokens == 0
        ]

    def reset_prefix_cache(self) -> None:
        """Clear the prefix cache."""
        self._kv.reset_prefix_cache()

    def schedule(self, now: float = 0.0) -> SchedulerOutput | None:
        """Plan the next step; None if nothing can run before a step in flight has its result.

        now: seconds, by the clock of Request.queued.
        """
        step = self._planner.plan(now)
        planned = step.planned
        if not planned:
            assert self._in_flight or not self._batch.requests, "requests wait for nothing"
            return None
        plan = SchedulerOutput(
            step_id=self._num_steps,
            removed_ids=self._batch.take_removed(),
            new_requests=step.new_requests,
            scheduled=[entry for _, entry, _ in planned],
        )
        self._in_flight[plan.step_id] = planned
        self._num_steps += 1
        return plan

    def progress_at_start(self, plan: SchedulerOutput) -> list[RequestDelta]:
        """The progress of the prompts that start with a step: what the prefix cache has of them."""
        requests = [self._batch.requests[new.request_id] for new in plan.new_requests]
        return [
            make_progress_delta(request, request.num_cached_tokens)
            for request in requests
            if request.reports_progress
        ]

    def update(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[RequestDelta]:
        """Process the result of the oldest step in flight; returns the deltas of its requests.

        Tokens of requests that have ended meanwhile are dropped. Tokens of requests that were
        preempted meanwhile are valid.
        """
        deltas = []
        planned = self._take_planned(plan)
        kv, finished = self._kv, RequestStatus.FINISHED
        self._num_graph_steps += output.replayed
        for (request, entry, num_preemptions), result in zip(planned, output.results, strict=True):
            samples, num_computed = entry.samples, entry.start + entry.num_tokens
            request.num_in_flight_tokens -= samples
            if request.status is finished:  # by an earlier token, or aborted
                continue
            may_fill_block = entry.num_tokens > 1 or num_computed % kv.block_size == 0
            if may_fill_block and not result.failed and request.num_preemptions == num_preemptions:
                kv.cache_blocks(request, num_computed)  # it has not lost them by a preemption
            if result.failed or result.exhausted or result.embedding is not None:
                deltas.append(self._end_without_token(request, result))
            elif samples or result.prompt_logprobs:
                self.num_generation_tokens += samples
                delta = make_delta(request, entry, result)
                if delta is None:
                    continue
                deltas.append(delta)
                if delta.finish_reason is not None:
                    self._batch.finish(request)
            elif request.reports_progress:
                deltas.append(make_progress_delta(request, num_computed))
        return deltas

    def _end_without_token(self, request: Request, result: SampleResult) -> RequestDelta:
        """End a request that got an embedding, or no token: the model or the sampling failed."""
        if result.failed:
            self._kv.forget(request)
            self._num_corrupted_requests += 1
            return self._end(request, FinishReason.ERROR, NON_FINITE)
        if result.exhausted:
            message, kind, param = no_token_left(request.sampling, result.grammar_problem)
            delta = self._end(request, FinishReason.ERROR, message, kind)
            delta.error_param = param
            return delta
        delta = self._end(request, FinishReason.STOP)
        delta.embedding = result.embedding
        return delta

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        """Update the cost model with the duration of a step."""
        num_prompt_tokens, num_decodes = plan.count_tokens()
        self._policy.observe(num_decodes, num_prompt_tokens, seconds)

    def fail(self, plan: SchedulerOutput, message: str) -> list[RequestDelta]:
        """End the requests of a failed step with an error; nothing that it wrote is cached."""
        deltas = []
        for request, entry, _ in self._take_planned(plan):
            request.num_in_flight_tokens -= entry.samples
            if not request.is_finished:
                deltas.append(self._end(request, FinishReason.ERROR, message))
        return deltas

    def preempt_all(self) -> None:
        """Let all running requests enter the batch anew; no step is in flight."""
        assert not self._in_flight
        self._batch.preempt_all()

    def stats(self) -> EngineStats:
        """The scheduler's current gauges and counters."""
        prefix = self._kv.prefix_stats
        return EngineStats(
            num_running=len(self._batch.running),
            num_waiting=len(self._batch.requests) - len(self._batch.running),
            num_blocks=self._kv.pool.num_blocks,
            num_free_blocks=self._kv.pool.num_free,
            num_cached_blocks=self._kv.pool.num_evictable,
            num_shared_blocks=self._kv.pool.num_shared,
            num_steps=self._num_steps,
            num_graph_steps=self._num_graph_steps,
            num_preemptions=self._batch.num_preemptions,
            num_recomputed_tokens=self._batch.num_recomputed_tokens,
            num_prompt_tokens=self._batch.num_prompt_tokens,
            num_generation_tokens=self.num_generation_tokens,
            prefix_cache_queries=prefix.queries,
            prefix_cache_hits=prefix.hits,
            prefix_cache_misses=prefix.misses.copy(),
            num_corrupted_requests=self._num_corrupted_requests,
        )

    def block_states(self) -> bytes:
        """One byte per KV block, for a live view."""
        return self._kv.pool.states()

    def _take_planned(self, plan: SchedulerOutput) -> list[PlannedRequest]:
        assert plan.step_id == next(iter(self._in_flight)), "steps are answered out of order"
        return self._in_flight.pop(plan.step_id)

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        error: str | None = None,
        error_kind: ErrorKind = ErrorKind.ENGINE,
    ) -> RequestDelta:
        """End a request, waiting or running, without another token."""
        self._batch.finish(request)
        return make_final_delta(request, reason, error, error_kind)
