"""Who runs next, with how many tokens.

Owns the choice: whose tokens go into a step, who enters the batch, and who has to leave it. It does
not own the ways in and out (batch.py), how much of a prompt is one chunk (chunks.py), blocks
(kvcache/manager.py), tensors, or time. No torch.

There is one rule and no phases: a request has known tokens and computed tokens, and each step
hands out a budget so that computed catches up with known. A long prompt, a chunk of it, the rest
after a prefix-cache hit, the recomputation after a preemption, and the one token of a decode are
all this rule.

    token_ids:  [ prompt ........................ | answer ... ] (in flight)
                [ computed ......... ]
                                     [ this step ]               <- samples if it reaches the end

Steps may overlap: `schedule` advances lengths at once, so it may be called again before `update`
has told the tokens. Freed blocks are reused at once because steps run in order on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.config import SchedulerConfig
from quire.core.messages import EngineStats, ErrorKind, RequestDelta
from quire.core.request import FinishReason, Request, RequestStatus
from quire.core.step import ModelRunnerOutput, SchedulerOutput
from quire.kvcache.manager import KVCacheManager
from quire.scheduler.batch import Batch, is_spared
from quire.scheduler.chunks import Chunks
from quire.scheduler.plan import PlannedRequest, StepPlan
from quire.scheduler.policy import ChunkPolicy
from quire.scheduler.queue import Place
from quire.scheduler.results import (
    NON_FINITE,
    NOTHING_TO_DRAW,
    WAITED_TOO_LONG,
    delivered,
    ending,
)

# Prompt tokens, in token budgets, of the requests that one step may send to wait for a prefix:
# hashing them takes time that running requests would wait, too.
MAX_PARKED_BUDGETS = 32


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
        self._config = config
        self._policy = ChunkPolicy(
            _seconds(config.itl_target_ms),
            _seconds(config.ttft_target_ms),
            paces=paces_prompts and config.enable_chunked_prefill,
        )
        for step in measured:
            self._policy.observe(*step)
        self._chunks = Chunks(config, self._policy, step_sizes)
        self._kv = kv
        self._batch = Batch(kv, config.scheduling_policy)
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

    # ------------------------------------------------------------------ planning a step

    def schedule(self, now: float = 0.0) -> SchedulerOutput | None:
        """Plan a step: requests that decode first, if they are not held back, then prompts.

        now: seconds of the clock by which requests were queued. Returns None when nothing can run
        before the result of a step in flight is known.
        """
        budget = self._config.max_num_batched_tokens
        step = StepPlan(budget, now, MAX_PARKED_BUDGETS * budget)
        for request in self._kv.take_ready():
            self._batch.waiting.push(request)
        decodes, prompts = self._batch.split()
        room = self._config.max_num_seqs - len(self._batch.running)
        num_prompts = len(prompts) + min(room, len(self._batch.waiting))
        held = decodes if num_prompts and self._holds(decodes, now) else []
        served = [] if held else decodes
        self._serve_decodes(step, served)
        lacking = self._lacking(prompts, step.budget)
        self._chunks.begin(step, len(served), len(self._batch.requests), num_prompts, lacking)
        self._serve_prompts(step, prompts)
        for request in step.cut:
            self._use_rest(step, request)
        if held and not step.planned:  # no prompt has room
            self._serve_decodes(step, held)
        return self._emit(step)

    def _holds(self, decodes: list[Request], now: float) -> bool:
        """Whether those who decode have only begun, and wait for prompts; never by priority."""
        if not decodes or self._config.scheduling_policy != "fcfs":
            return False
        first = min(request.queued for request in decodes)
        if not self._policy.holds(len(self._batch.requests), now - first):
            return False
        return all(request.num_computed_tokens == request.num_prompt_tokens for request in decodes)

    def _lacking(self, prompts: list[Request], most: int) -> int:
        """Tokens that the prompts under way lack, and those that may enter; counted up to most."""
        lacking = sum(request.num_uncomputed_tokens for request in prompts)
        room = self._config.max_num_seqs - len(self._batch.running)
        for request in self._batch.waiting.some(room):
            if lacking >= most:
                break
            lacking += request.num_tokens
        return lacking

    def _serve_decodes(self, step: StepPlan, decodes: list[Request]) -> None:
        """A token for each; most have room for it in their last block."""
        block_size = self._kv.block_size
        for request in decodes:
            has_room = request.num_computed_tokens % block_size > 0
            if has_room and request.status is RequestStatus.RUNNING:
                step.add_decode(request, [])
            else:
                self._advance(step, request, 1)

    def _serve_prompts(self, step: StepPlan, prompts: list[Request]) -> None:
        """Prompts under way get their turns, then new ones; or all of them in order of their place
        in line, if they have due times."""
        admitted: list[Request] = []
        by_due, place = self._policy.has_due_times, self._batch.waiting.key
        for request in sorted(prompts, key=place) if by_due else prompts:
            if by_due:
                admitted += self._admit(step, prompts + admitted, place(request))
            lacking = request.num_uncomputed_tokens
            self._let_finish(step, request, lacking)
            self._advance(step, request, self._turn(step, request, lacking))
        self._admit(step, prompts + admitted)

    def _advance(self, step: StepPlan, request: Request, num_tokens: int) -> None:
        """Plan a running request's next tokens; preempt others, or itself, when blocks run out."""
        while request.status is RequestStatus.RUNNING and num_tokens:
            new_block_ids = self._kv.allocate_slots(request, num_tokens)
            if new_block_ids is not None:
                step.add(request, num_tokens, new_block_ids)
                return
            self._batch.preempt(step)

    def _turn(self, step: StepPlan, request: Request, lacking: int) -> int:
        """How many of the tokens that it lacks a prompt gets in its turn."""
        num_tokens = self._chunks.size(step, request, lacking)
        if step.leaves_rest and num_tokens < lacking:
            step.cut.append(request)
        return num_tokens

    def _let_finish(self, step: StepPlan, request: Request, lacking: int) -> int:
        """Before a prompt that lacks so many tokens gets any, those in front of it that were cut
        get the rest of theirs, but for those that lack at least twice as many; returns how many
        blocks they took.

        Two prompts of one length that share each step both end when the last one does.
        """
        place = self._batch.waiting.key
        shorter = [
            each
            for each in step.cut
            if each.num_tokens - each.num_computed_tokens < 2 * lacking
            and place(each) <= place(request)
        ]
        return sum(self._use_rest(step, each) for each in shorter)

    def _use_rest(self, step: StepPlan, request: Request) -> int:
        """Give what is left of the budget to a prompt that was cut at the limit; returns how many
        blocks it took."""
        num_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)
        if num_tokens == 0 or request.status is not RequestStatus.RUNNING:
            return 0
        new_block_ids = self._kv.allocate_slots(request, num_tokens)
        if new_block_ids is None:
            return 0
        step.add(request, num_tokens, new_block_ids)
        return len(new_block_ids)

    def _emit(self, step: StepPlan) -> SchedulerOutput | None:
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

    # ------------------------------------------------------------------ entering the batch

    def _admit(
        self, step: StepPlan, prompts: list[Request], before: Place | None = None
    ) -> list[Request]:
        """Start waiting requests, in their order, while there is room; returns them.

        prompts: those under way. before: only requests whose place is before this one.
        """
        admitted: list[Request] = []
        promised: int | None = None
        while step.budget and (request := self._next_entrant(step, before)) is not None:
            hits = self._kv.get_computed_blocks(request)
            if self._kv.wait_for_prefix(request, len(hits)):
                self._batch.waiting.pop()
                step.patience -= request.num_tokens
                continue
            if promised is None:
                promised = sum(map(self._kv.num_missing_blocks, prompts))
            taken = self._let_finish(step, request, self._lacking_beside(request, hits))
            if taken:  # perhaps of the blocks that were found
                hits = self._kv.get_computed_blocks(request)
            promised -= taken
            num_tokens = self._turn(step, request, self._lacking_beside(request, hits))
            if num_tokens == 0 or not self._has_room(request, hits, promised):
                step.is_closed = True
                break
            self._batch.start(step, hits, num_tokens)
            promised += self._kv.num_missing_blocks(request)
            admitted.append(request)
        return admitted

    def _lacking_beside(self, request: Request, hits: list[int]) -> int:
        """Tokens to compute for a request that enters with these blocks of its prefix."""
        return request.num_tokens - len(hits) * self._kv.block_size

    def _next_entrant(self, step: StepPlan, before: Place | None) -> Request | None:
        """The first in line, if anybody may enter now."""
        is_full = len(self._batch.running) >= self._config.max_num_seqs
        if step.is_closed or step.patience <= 0 or is_full:
            return None
        request = self._batch.waiting.peek()
        if request is None or request.num_in_flight_tokens:  # a token of it is not known yet
            return None
        return request if before is None or self._batch.waiting.key(request) < before else None

    def _has_room(self, request: Request, hits: list[int], promised: int) -> bool:
        """Whether blocks suffice for all that the request lacks, so that it need not be preempted.

        promised: blocks that running requests lack for their prompts. Besides them, each running
        request is left a block to grow into. Alone, every request fits (RequestLimits).
        """
        wanted = request.max_total_tokens - 1 if is_spared(request) else request.num_tokens
        num_running = len(self._batch.running)
        num_needed = self._kv.num_blocks_for(wanted) - len(hits) + promised + num_running
        return not num_running or num_needed <= self._kv.num_available_beside(hits)

    # ------------------------------------------------------------------ taking a result

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
            if (
                is_caching and request.num_preemptions == num_preemptions
            ):  # it still holds the blocks
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
