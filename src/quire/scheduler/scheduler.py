"""Requests from their arrival to their end, and the steps that are in flight between.

Owns what becomes of a plan: it is numbered, and its result taken in order. It does not own whom a
step serves (planner.py), the ways into the batch and out (scheduler_batch.py), blocks
(kvcache/kv_cache_manager.py), tensors, or time. No torch.

Steps may overlap: `schedule` advances lengths at once, so it may be called again before `update`
has told the tokens. Freed blocks are reused at once because steps run in order on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.config import SchedulerConfig
from quire.core.messages import EngineStats, ErrorKind, RequestDelta
from quire.core.request import FinishReason, Request, RequestStatus
from quire.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.chunk_policy import ChunkPolicy
from quire.scheduler.planner import Planner
from quire.scheduler.prefill_chunks import Chunks
from quire.scheduler.request_outputs import (
    NON_FINITE,
    NOTHING_TO_DRAW,
    WAITED_TOO_LONG,
    delivered,
    ending,
)
from quire.scheduler.scheduler_batch import Batch
from quire.scheduler.step_plan import PlannedRequest


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0


class Scheduler:
    """Continuous batching with chunked prefill, prefix sharing, and preemption by recomputation.

    paces_prompts: whether prompts are cut so that they do not slow down answers too much, though no
    target was set. measured: steps to begin with, as (decodes, prompt tokens, seconds). step_sizes:
    see `Executor`. Raises ConfigError as `SchedulerConfig.check_longest_prompt` does.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        max_model_len: int,
        *,
        paces_prompts: bool = False,
        measured: Iterable[tuple[int, int, float]] = (),
        step_sizes: Sequence[int] = (),
    ) -> None:
        config.check_longest_prompt(max_model_len)
        self._policy = ChunkPolicy(
            _seconds(config.itl_target_ms),
            _seconds(config.ttft_target_ms),
            paces=paces_prompts and config.enable_chunked_prefill,
        )
        for step in measured:
            self._policy.observe(*step)
        self._kv = kv
        self._batch = Batch(kv, config.scheduling_policy)
        chunks = Chunks(config, self._policy, step_sizes)
        self._planner = Planner(config, kv, self._batch, self._policy, chunks)
        self._in_flight: dict[int, list[PlannedRequest]] = {}  # step_id → its requests, in order
        self._num_steps = 0
        self._num_graph_steps = 0
        self._num_generation_tokens = 0
        self._num_corrupted_requests = 0

    @property
    def num_generation_tokens(self) -> int:
        """Tokens of answers so far, of all requests."""
        return self._num_generation_tokens

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._batch.requests)

    def add(self, request: Request) -> None:
        """Put a request in line; it has passed RequestLimits.check.

        Raises InvalidRequestError if its id is that of a request that has not ended.
        """
        assert 0 < request.num_tokens < request.max_total_tokens
        assert self._kv.num_blocks_for(request.max_total_tokens - 1) <= self._kv.pool.num_blocks
        if self._policy.has_due_times:
            has_begun = request.num_output_tokens > 0  # for another engine: its caller waits
            request.due = (
                request.queued
                if has_begun
                else self._policy.due(request.queued, request.num_tokens)
            )
        self._batch.add(request)

    def abort(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """End these requests, in whatever state they are; unknown and ended ids are ignored."""
        return [self._end(r, FinishReason.ABORT) for r in self._batch.find(request_ids)]

    def expire(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """End those of these requests that have not begun; the others go on."""
        return [
            self._end(request, FinishReason.ERROR, WAITED_TOO_LONG, ErrorKind.OVERLOAD)
            for request in self._batch.find(request_ids)
            if request.status is RequestStatus.WAITING and request.num_output_tokens == 0
        ]

    def reset_prefix_cache(self) -> None:
        """Let no later request find what was computed before."""
        self._kv.reset_prefix_cache()

    def schedule(self, now: float = 0.0) -> SchedulerOutput | None:
        """Plan the next step; None when nothing can run before a step in flight has its result.

        now: seconds of the clock by which requests were queued.
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

    def update(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[RequestDelta]:
        """Take the result of a step; plans are answered in the order in which they were made.

        Tokens of requests that have ended meanwhile are dropped. A token sampled for a request
        that was preempted meanwhile is as good as any other.
        """
        deltas = []
        planned = self._take_planned(plan)
        is_caching = self._kv.enable_prefix_caching
        self._num_graph_steps += output.replayed
        for (request, entry, num_preemptions), result in zip(planned, output.results, strict=True):
            request.num_in_flight_tokens -= entry.samples
            if request.status is RequestStatus.FINISHED:  # by an earlier token, or from outside
                continue
            if result.failed:
                self._kv.forget(request)
                self._num_corrupted_requests += 1
                deltas.append(self._end(request, FinishReason.ERROR, NON_FINITE))
                continue
            if is_caching and request.num_preemptions == num_preemptions:  # it has the blocks still
                self._kv.cache_blocks(request, entry.start + entry.num_tokens)
            if result.exhausted:
                deltas.append(
                    self._end(request, FinishReason.ERROR, NOTHING_TO_DRAW, ErrorKind.REQUEST)
                )
            elif result.embedding is not None:
                deltas.append(self._end(request, FinishReason.STOP))
                deltas[-1].embedding = result.embedding
            elif entry.samples or result.prompt_logprobs:
                self._num_generation_tokens += entry.samples
                delta = delivered(request, entry, result)
                if delta is None:
                    continue
                deltas.append(delta)
                if delta.finish_reason is not None:
                    self._batch.finish(request)
        return deltas

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        """Learn from what a step took."""
        lengths = [entry.num_tokens for entry in plan.scheduled]
        num_decodes = lengths.count(1)
        self._policy.observe(num_decodes, sum(lengths) - num_decodes, seconds)

    def fail(self, plan: SchedulerOutput, message: str) -> list[RequestDelta]:
        """The step raised: its requests end with an error, and nothing it wrote is kept."""
        deltas = []
        for request, entry, _ in self._take_planned(plan):
            request.num_in_flight_tokens -= entry.samples
            if not request.is_finished:
                deltas.append(self._end(request, FinishReason.ERROR, message))
        return deltas

    def stats(self) -> EngineStats:
        """Gauges and counters as of now."""
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
            num_generation_tokens=self._num_generation_tokens,
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
        """End a request, in whatever state it is, without a token."""
        self._batch.finish(request)
        return ending(request, reason, error, error_kind)
