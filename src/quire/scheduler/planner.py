"""Plans a step: which requests get tokens of its budget, which are admitted or preempted.

Owns these choices. Entering and leaving the batch is in scheduler_batch.py, the chunk size in
prefill_chunks.py, blocks in kvcache/kv_cache_manager.py, results of steps in scheduler.py. No
torch.

There is one rule and no phases: a request has known tokens and computed tokens, and each step
gives out its token budget so that computed catches up with known. Chunked prefill, the rest after a
prefix-cache hit, recomputation after a preemption, and the one token of a decode are all this rule.

    token_ids:  [ prompt ........................ | answer ... ] (in flight)
                [ computed ......... ]
                                     [ this step ]               <- samples if it reaches the end
"""

from __future__ import annotations

from quire.config import SchedulerConfig
from quire.core.request import Request, RequestStatus
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.chunk_policy import FEW_REQUESTS, ChunkPolicy
from quire.scheduler.prefill_chunks import PrefillChunks
from quire.scheduler.scheduler_batch import Batch, is_preemption_exempt
from quire.scheduler.step_plan import StepPlan
from quire.scheduler.waiting_queue import QueuePosition

# How many tokens of waiting prompts, in token budgets, one step may hash and look up in the prefix
# cache, to put them aside or to count cached ones: that delays the running requests.
MAX_LOOKUP_BUDGETS = 32


class Planner:
    """Plans each step of a batch: which requests run, with how many tokens."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        batch: Batch,
        policy: ChunkPolicy,
        chunks: PrefillChunks,
    ) -> None:
        self._config = config
        self._kv = kv
        self._batch = batch
        self._policy = policy
        self._chunks = chunks
        self._num_paused_steps = 0  # that decodes have sat out in a row

    def plan(self, now: float) -> StepPlan:
        """Plan a step: decodes first, unless they sit it out, then prompts.

        now: seconds, by the clock of Request.queued.
        """
        budget = self._config.max_num_batched_tokens
        step = StepPlan(budget, MAX_LOOKUP_BUDGETS * budget)
        for request in self._kv.take_ready():
            self._batch.waiting.push(request)
        decodes, prompts = self._batch.split_decodes_prefills()
        num_requests = len(self._batch.requests)
        most = max(budget, self._policy.largest_backlog)
        remaining, num_prompts = self._count_remaining(prompts, most)
        paused = decodes if self._pauses(decodes, remaining, now) else []
        running = [] if paused else decodes
        self._plan_decodes(step, running)
        limit = self._policy.step_limit(num_requests, num_prompts, remaining)
        self._chunks.begin(step, len(running), num_requests, remaining, limit)
        self._plan_prompts(step, prompts)
        if paused and step.budget and step.budget + step.reserved >= len(paused):
            # prompts leave some of the step, and may have preempted
            step.budget, step.reserved = step.budget + step.reserved, 0
            self._plan_decodes(step, [r for r in paused if r.status is RequestStatus.RUNNING])
            paused = []
        self._batch.num_planned_tokens += budget - step.budget - step.reserved
        self._num_paused_steps = self._num_paused_steps + 1 if paused else 0
        return step

    def _pauses(self, decodes: list[Request], num_prompt_tokens: int, now: float) -> bool:
        """Whether decodes sit out this step, so that prompts get all of it; only with fcfs."""
        is_last = num_prompt_tokens <= self._policy.prompt_tokens(
            0, self._config.max_num_batched_tokens
        )
        if is_last or not decodes or self._config.scheduling_policy != "fcfs":
            return False
        burst = self._batch.burst
        goes_on = burst is not None and self._policy.staggers_ends(
            burst.num_requests, burst.num_prompt_tokens, burst.num_answer_tokens
        )
        if not goes_on and self._policy.pauses_decodes(num_prompt_tokens, self._num_paused_steps):
            return True
        waited = now - min(request.queued for request in decodes)
        if not self._policy.holds_first_tokens(len(self._batch.requests), waited):
            return False
        return all(request.num_computed_tokens == request.num_prompt_tokens for request in decodes)

    def _count_remaining(self, prompts: list[Request], most: int) -> tuple[int, int]:
        """Uncomputed tokens of running prompts and of those that may enter, up to `most`.

        And the number of these prompts, without embeddings. Of few requests cached tokens do not
        count.
        """
        remaining = sum(request.num_uncomputed_tokens for request in prompts)
        num_prompts = sum(request.pooling is None for request in prompts)
        num_free_rows = self._config.max_num_seqs - len(self._batch.running)
        may_look_up = MAX_LOOKUP_BUDGETS * self._config.max_num_batched_tokens
        if len(self._batch.requests) > FEW_REQUESTS:
            may_look_up = 0
        for request in self._batch.waiting.some(num_free_rows):
            if remaining >= most:
                break
            remaining += request.num_tokens
            num_prompts += request.pooling is None
            may_look_up -= request.num_tokens
            if may_look_up >= 0:
                remaining -= len(self._kv.get_computed_blocks(request)) * self._kv.block_size
        return remaining, num_prompts

    def _plan_decodes(self, step: StepPlan, decodes: list[Request]) -> None:
        """Plan a token for each decode; most need no new block."""
        block_size = self._kv.block_size
        at_block_end = [r for r in decodes if r.num_computed_tokens % block_size == 0]
        step.add_decodes([r for r in decodes if r.num_computed_tokens % block_size])
        for request in at_block_end:
            self._advance(step, request, 1)

    def _plan_prompts(self, step: StepPlan, prompts: list[Request]) -> None:
        """Plan tokens of running prompts and of new ones, in the order in which they are due."""
        admitted: list[Request] = []
        position = self._batch.waiting.key
        for request in sorted(prompts, key=position):
            admitted += self._admit(step, prompts + admitted, position(request))
            num_tokens = self._chunks.size(step, request.num_uncomputed_tokens)
            self._advance(step, request, num_tokens)
        self._admit(step, prompts + admitted)

    def _advance(self, step: StepPlan, request: Request, num_tokens: int) -> None:
        """Plan a running request's next tokens; preempts requests, maybe itself, for blocks."""
        while request.status is RequestStatus.RUNNING and num_tokens:
            new_block_ids = self._kv.allocate_slots(request, num_tokens)
            if new_block_ids is not None:
                step.add(request, num_tokens, new_block_ids)
                return
            self._batch.preempt(step)

    # ------------------------------------------------------------------ entering the batch

    def _admit(
        self, step: StepPlan, prompts: list[Request], before: QueuePosition | None = None
    ) -> list[Request]:
        """Admit waiting requests in order, while rows and blocks are free; returns them.

        prompts: the running ones. before: only requests whose queue position is before this.
        """
        admitted: list[Request] = []
        promised: int | None = None
        while step.budget and (request := self._next_waiting(step, before)) is not None:
            hits = self._kv.get_computed_blocks(request)
            if self._kv.wait_for_prefix(request, len(hits)):
                self._batch.waiting.pop()
                step.prefix_wait_tokens -= request.num_tokens
                continue
            if promised is None:
                promised = sum(map(self._kv.num_missing_blocks, prompts))
            remaining = request.num_tokens - len(hits) * self._kv.block_size
            num_tokens = self._chunks.size(step, remaining)
            if num_tokens == 0 or not self._has_blocks(request, hits, promised):
                step.is_closed = True
                break
            self._batch.start(step, hits, num_tokens)
            promised += self._kv.num_missing_blocks(request)
            admitted.append(request)
        return admitted

    def _next_waiting(self, step: StepPlan, before: QueuePosition | None) -> Request | None:
        """The first waiting request, if one may be admitted now."""
        is_full = len(self._batch.running) >= self._config.max_num_seqs
        if step.is_closed or step.prefix_wait_tokens <= 0 or is_full:
            return None
        request = self._batch.waiting.peek()
        if request is None or request.num_in_flight_tokens:  # a token of it is not known yet
            return None
        return request if before is None or self._batch.waiting.key(request) < before else None

    def _has_blocks(self, request: Request, hits: list[int], promised: int) -> bool:
        """Whether enough blocks are free that the request need not be preempted soon.

        promised: blocks that running prompts still need. One more block is reserved for each
        running request. A request alone always fits (RequestLimits).
        """
        wanted = (
            request.max_total_tokens - 1 if is_preemption_exempt(request) else request.num_tokens
        )
        num_running = len(self._batch.running)
        num_needed = self._kv.num_blocks_for(wanted) - len(hits) + promised + num_running
        return not num_running or num_needed <= self._kv.pool.num_available_beside(hits)
