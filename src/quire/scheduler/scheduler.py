"""Who runs next, with how many tokens.

Owns the life of a request from `add` to its last delta: waiting, running, preempted, finished. It
does not own blocks (kvcache/manager.py), tensors, or time. No torch.

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

from collections.abc import Iterable

from quire.config import SchedulerConfig
from quire.core.messages import EngineStats, ErrorKind, RequestDelta
from quire.core.request import FinishReason, Request, RequestStatus
from quire.core.step import ModelRunnerOutput, SampleResult, ScheduledRequest, SchedulerOutput
from quire.errors import ConfigError, InvalidRequestError
from quire.kvcache.manager import KVCacheManager
from quire.scheduler.plan import PlannedRequest, StepPlan
from quire.scheduler.policy import ChunkPolicy
from quire.scheduler.queue import Place, WaitingQueue

# A request that was preempted so often is admitted again only with all the blocks that it can
# ever need, and is then never preempted: the work that preemption throws away is bounded.
MAX_PREEMPTIONS = 4

# Prompt tokens, in token budgets, of the requests that one step may send to wait for a prefix:
# hashing them takes time that running requests would wait, too.
MAX_PARKED_BUDGETS = 32

NON_FINITE = (
    "the model computed non-finite numbers (NaN or infinity) for this request; send it again, or, "
    "if it happens every time, run the model in float32; if that is so already, check its weights"
)
NOTHING_TO_DRAW = (
    "the wishes of this request left no token that could come next: logit_bias, penalties, "
    "bad_words, structured_outputs and, until min_tokens are there, stop_token_ids ban or distort "
    "all of them; ban fewer tokens, lower min_tokens, use smaller values, or a simpler form"
)
WAITED_TOO_LONG = (
    "the request waited for its turn longer than it may; send it again when fewer are running"
)


def _is_spared(request: Request) -> bool:
    return request.num_preemptions >= MAX_PREEMPTIONS


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0


class Scheduler:
    """Continuous batching with chunked prefill, prefix sharing, and preemption by recomputation.

    paces_prompts: whether prompts are cut so that they do not slow down answers too much, though no
    target was set. measured: steps to begin with, as (decodes, prompt tokens, seconds). Raises
    ConfigError when a prompt could never be scheduled whole though it must.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        max_model_len: int,
        *,
        paces_prompts: bool = False,
        measured: Iterable[tuple[int, int, float]] = (),
    ) -> None:
        budget = config.max_num_batched_tokens
        if not config.enable_chunked_prefill and budget < max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens ({budget}) is below max_model_len ({max_model_len}), so "
                "the longest prompts could never run whole; raise the former, lower the latter, "
                "or set enable_chunked_prefill"
            )
        self._config = config
        self._chunk_limit = config.long_prefill_token_threshold or max(1, budget // 2)
        self._policy = ChunkPolicy(
            _seconds(config.itl_target_ms),
            _seconds(config.ttft_target_ms),
            paces=paces_prompts and config.enable_chunked_prefill,
        )
        for step in measured:
            self._policy.observe(*step)
        self._kv = kv
        self._requests: dict[str, Request] = {}  # all that have not ended
        self._waiting = WaitingQueue(config.scheduling_policy)
        self._running: dict[str, Request] = {}
        self._removed_ids: list[str] = []  # have left the batch since the last plan
        self._in_flight: dict[int, list[PlannedRequest]] = {}  # step_id → its requests, in order
        self._num_steps = 0
        self._num_preemptions = 0
        self._num_recomputed_tokens = 0
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_corrupted_requests = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Put a request in line; it has passed RequestLimits.check.

        Raises InvalidRequestError if its id is that of a request that has not ended.
        """
        assert 0 < request.num_tokens < request.max_total_tokens
        assert self._kv.num_blocks_for(request.max_total_tokens - 1) <= self._kv.pool.num_blocks
        if request.request_id in self._requests:
            raise InvalidRequestError(
                f"request_id: {request.request_id!r} is running already; give each request its own",
                param="request_id",
                code="invalid_value",
            )
        self._requests[request.request_id] = request
        if self._policy.has_due_times:
            has_begun = request.num_output_tokens > 0  # for another engine: its caller waits
            request.due = (
                request.queued
                if has_begun
                else self._policy.due(request.queued, request.num_tokens)
            )
        self._waiting.push(request)

    def abort(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """End these requests, in whatever state they are; unknown and ended ids are ignored."""
        found = (self._requests.get(request_id) for request_id in request_ids)
        return [self._end(request, FinishReason.ABORT) for request in found if request is not None]

    def expire(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """End those of these requests that have not begun; the others go on."""
        found = (self._requests.get(request_id) for request_id in request_ids)
        return [
            self._end(request, FinishReason.ERROR, WAITED_TOO_LONG, ErrorKind.OVERLOAD)
            for request in found
            if request is not None
            and request.status is RequestStatus.WAITING
            and request.num_output_tokens == 0
        ]

    def reset_prefix_cache(self) -> None:
        """Let no later request find what was computed before."""
        self._kv.reset_prefix_cache()

    # ------------------------------------------------------------------ planning a step

    def schedule(self, now: float = 0.0) -> SchedulerOutput | None:
        """Plan a step: requests that decode first, then prompts.

        now: seconds of the clock by which requests were queued. Returns None when nothing can run
        before the result of a step in flight is known.
        """
        budget = self._config.max_num_batched_tokens
        step = StepPlan(budget, now, MAX_PARKED_BUDGETS * budget)
        for request in self._kv.take_ready():
            self._waiting.push(request)
        decodes, prompts = self._split_running()
        for request in decodes:
            self._advance(step, request, 1)
        step.num_decodes = len(decodes)
        step.budget = self._policy.prompt_tokens(len(decodes), step.budget)
        step.chunk_limit = self._chunk_limit
        if not self._config.long_prefill_token_threshold and self._may_take_all(decodes):
            step.chunk_limit = max(1, step.budget // 2)  # the policy may give less than all
        prompts += self._serve_prompts(step, prompts)
        if self._leaves_rest(decodes):
            for request in prompts:
                self._use_rest(step, request)
        return self._emit(step)

    def _serve_prompts(self, step: StepPlan, prompts: list[Request]) -> list[Request]:
        """Prompts under way get their turns, then new ones; or all of them in order of their place
        in line, if they have due times. Returns those that were admitted."""
        admitted: list[Request] = []
        by_due = self._policy.has_due_times
        for request in sorted(prompts, key=self._waiting.key) if by_due else prompts:
            if by_due:
                admitted += self._admit(step, prompts + admitted, self._waiting.key(request))
            lacking = request.num_uncomputed_tokens
            self._advance(step, request, self._chunk(step, request, lacking))
        return admitted + self._admit(step, prompts + admitted)

    def _split_running(self) -> tuple[list[Request], list[Request]]:
        """Those that lack one token, and those in the middle of more."""
        decodes, prompts = [], []
        for request in self._running.values():
            num_known = len(request.token_ids) + request.num_in_flight_tokens
            lacking = num_known - request.num_computed_tokens
            if lacking > 1:
                prompts.append(request)
            elif num_known < request.max_total_tokens:  # else its last token is in flight
                decodes.append(request)
        return decodes, prompts

    def _chunk(self, step: StepPlan, request: Request, lacking: int) -> int:
        """How many of the tokens that it lacks a prompt gets in its turn; 0: no room for it."""
        if not self._config.enable_chunked_prefill:
            return lacking if lacking <= step.budget else 0
        limit, left = step.chunk_limit, request.due - step.now
        if not self._config.long_prefill_token_threshold and self._policy.is_late(
            left, lacking, limit, step.num_decodes
        ):
            limit = lacking
        return min(lacking, step.budget, limit)

    def _advance(self, step: StepPlan, request: Request, num_tokens: int) -> None:
        """Plan a running request's next tokens; preempt others, or itself, when blocks run out."""
        while request.status is RequestStatus.RUNNING and num_tokens:
            new_block_ids = self._kv.allocate_slots(request, num_tokens)
            if new_block_ids is not None:
                step.add(request, num_tokens, new_block_ids)
                return
            self._preempt(step)

    def _leaves_rest(self, decodes: list[Request]) -> bool:
        """Whether prompts may go beyond the chunk limit, so that nobody waits longer for it.

        A limit that was asked for gives way only to a request that is alone.
        """
        if self._config.long_prefill_token_threshold:
            return len(self._requests) == 1
        return self._may_take_all(decodes)

    def _may_take_all(self, decodes: list[Request]) -> bool:
        """Whether one prompt may take what the policy gives to all, if no other wants it.

        Nobody decodes in this step, or the pace of those who do was thought of.
        """
        return not decodes or self._policy.is_paced

    def _use_rest(self, step: StepPlan, request: Request) -> None:
        """Give what all others have left of the budget to a prompt that was cut at the limit."""
        num_tokens = min(request.num_tokens - request.num_computed_tokens, step.budget)
        if num_tokens and request.status is RequestStatus.RUNNING:
            new_block_ids = self._kv.allocate_slots(request, num_tokens)
            if new_block_ids is not None:
                step.add(request, num_tokens, new_block_ids)

    def _emit(self, step: StepPlan) -> SchedulerOutput | None:
        planned = step.planned
        if not planned:
            assert self._in_flight or not self._requests, "requests wait for nothing"
            return None
        plan = SchedulerOutput(
            step_id=self._num_steps,
            removed_ids=self._removed_ids,
            new_requests=step.new_requests,
            scheduled=[entry for _, entry, _ in planned],
        )
        self._in_flight[plan.step_id] = planned
        self._removed_ids = []
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
                self._waiting.pop()
                step.patience -= request.num_tokens
                continue
            if promised is None:
                promised = sum(map(self._kv.num_missing_blocks, prompts))
            num_cached = len(hits) * self._kv.block_size
            num_tokens = self._chunk(step, request, request.num_tokens - num_cached)
            if num_tokens == 0 or not self._has_room(request, hits, promised):
                step.is_closed = True
                break
            self._start(step, request, hits, num_tokens)
            promised += self._kv.num_missing_blocks(request)
            admitted.append(request)
        return admitted

    def _next_entrant(self, step: StepPlan, before: Place | None) -> Request | None:
        """The first in line, if anybody may enter now."""
        if step.is_closed or step.patience <= 0 or len(self._running) >= self._config.max_num_seqs:
            return None
        request = self._waiting.peek()
        if request is None or request.num_in_flight_tokens:  # a token of it is not known yet
            return None
        return request if before is None or self._waiting.key(request) < before else None

    def _has_room(self, request: Request, hits: list[int], promised: int) -> bool:
        """Whether blocks suffice for all that the request lacks, so that it need not be preempted.

        promised: blocks that running requests lack for their prompts. Besides them, each running
        request is left a block to grow into. Alone, every request fits (RequestLimits).
        """
        wanted = request.max_total_tokens - 1 if _is_spared(request) else request.num_tokens
        num_needed = self._kv.num_blocks_for(wanted) - len(hits) + promised + len(self._running)
        return not self._running or num_needed <= self._kv.num_available_beside(hits)

    def _start(self, step: StepPlan, request: Request, hits: list[int], num_tokens: int) -> None:
        """Move the first in line into the batch; its first tokens go into this step."""
        num_cached = len(hits) * self._kv.block_size
        num_slots = request.max_total_tokens - 1 if _is_spared(request) else num_cached + num_tokens
        block_ids = self._kv.admit(request, hits, num_slots)
        assert block_ids is not None, "a request that fits by RequestLimits does not fit"
        if request.status is RequestStatus.WAITING:
            request.num_cached_tokens = num_cached
            self._num_prompt_tokens += request.num_prompt_tokens
        else:  # what it finds now it may have computed itself, which is not the cache's merit
            request.num_cached_tokens = min(request.num_cached_tokens, num_cached)
            self._num_recomputed_tokens += max(0, request.num_lost_tokens - num_cached)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached
        self._waiting.pop()
        self._running[request.request_id] = request
        step.enter(request)
        step.add(request, num_tokens, block_ids)
        request.check_lengths()

    # ------------------------------------------------------------------ leaving the batch

    def _preempt(self, step: StepPlan) -> None:
        """Take the last in line out of the batch: it will wait, and compute all its tokens again.

        The first in line is taken last, and alone it always fits, so somebody always advances.
        """
        candidates = (r for r in self._running.values() if not _is_spared(r))
        request = max(candidates, key=self._waiting.key)
        step.is_closed = True
        step.take_back(request)
        self._leave_batch(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        request.num_lost_tokens = request.num_computed_tokens
        request.num_computed_tokens = 0
        self._waiting.push(request)
        self._num_preemptions += 1

    def _leave_batch(self, request: Request) -> None:
        del self._running[request.request_id]
        self._removed_ids.append(request.request_id)
        self._kv.free(request)

    def _finish(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._leave_batch(request)
        else:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        error: str | None = None,
        error_kind: ErrorKind = ErrorKind.ENGINE,
    ) -> RequestDelta:
        """End a request, in whatever state it is, without a token."""
        self._finish(request)
        return RequestDelta(
            request_id=request.request_id,
            num_cached_tokens=request.num_cached_tokens,
            finish_reason=reason.value,
            error=error,
            error_kind=error_kind,
        )

    # ------------------------------------------------------------------ taking a result

    def update(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> list[RequestDelta]:
        """Take the result of a step; plans are answered in the order in which they were made.

        Tokens of requests that have ended meanwhile are dropped. A token sampled for a request
        that was preempted meanwhile is as good as any other.
        """
        deltas = []
        planned = self._take_planned(plan)
        for (request, entry, num_preemptions), result in zip(planned, output.results, strict=True):
            request.num_in_flight_tokens -= entry.samples
            if request.is_finished:  # by an earlier token, or from outside
                continue
            if result.failed:
                self._kv.forget(request)
                self._num_corrupted_requests += 1
                deltas.append(self._end(request, FinishReason.ERROR, NON_FINITE))
                continue
            if request.num_preemptions == num_preemptions:  # it still holds the blocks
                self._kv.cache_blocks(request, entry.start + entry.num_tokens)
            if result.exhausted:
                deltas.append(
                    self._end(request, FinishReason.ERROR, NOTHING_TO_DRAW, ErrorKind.REQUEST)
                )
            elif result.embedding is not None:
                deltas.append(self._end(request, FinishReason.STOP))
                deltas[-1].embedding = result.embedding
            elif entry.samples or result.prompt_logprobs:
                deltas.append(self._deliver(request, entry, result))
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
            num_running=len(self._running),
            num_waiting=len(self._requests) - len(self._running),
            num_blocks=self._kv.pool.num_blocks,
            num_free_blocks=self._kv.pool.num_free,
            num_cached_blocks=self._kv.pool.num_evictable,
            num_shared_blocks=self._kv.pool.num_shared,
            num_steps=self._num_steps,
            num_preemptions=self._num_preemptions,
            num_recomputed_tokens=self._num_recomputed_tokens,
            num_prompt_tokens=self._num_prompt_tokens,
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

    def _deliver(
        self, request: Request, entry: ScheduledRequest, result: SampleResult
    ) -> RequestDelta:
        """Append the sampled token, if one was due, and tell what is new."""
        delta = RequestDelta(
            request_id=request.request_id, num_cached_tokens=request.num_cached_tokens
        )
        if result.prompt_logprobs:  # a recomputation gives again what was told before
            told = max(0, request.num_prompt_logprobs - entry.start)
            delta.prompt_logprobs = result.prompt_logprobs[told:]
            request.num_prompt_logprobs += len(delta.prompt_logprobs)
        if not entry.samples:
            return delta
        token_id = result.token_id
        assert token_id is not None, "a request was due a token and got none"
        self._num_generation_tokens += 1
        delta.token_ids = [token_id]
        if result.logprobs is not None:
            delta.logprobs = [result.logprobs]
        reason = request.append(token_id)
        if result.whole and reason is not FinishReason.STOP:
            reason, delta.whole = FinishReason.STOP, True
        if reason is not None:
            self._finish(request)
            delta.finish_reason = reason.value
            if (
                reason is FinishReason.STOP
                and not delta.whole
                and token_id in request.sampling.stop_token_ids
            ):
                delta.stop_token_id = token_id
        return delta
