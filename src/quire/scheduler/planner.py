"""Whose tokens go into a step, who enters the batch, and who has to leave it.

Owns the choice. It does not own the ways in and out (scheduler_batch.py), how much of a prompt is
one chunk (prefill_chunks.py), blocks (kvcache/kv_cache_manager.py), or what becomes of a plan
(scheduler.py). No torch.

There is one rule and no phases: a request has known tokens and computed tokens, and each step
hands out a budget so that computed catches up with known. A long prompt, a chunk of it, the rest
after a prefix-cache hit, the recomputation after a preemption, and the one token of a decode are
all this rule.

    token_ids:  [ prompt ........................ | answer ... ] (in flight)
                [ computed ......... ]
                                     [ this step ]               <- samples if it reaches the end
"""

from __future__ import annotations

from quire.config import SchedulerConfig
from quire.core.request import Request, RequestStatus
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.chunk_policy import ChunkPolicy
from quire.scheduler.prefill_chunks import Chunks
from quire.scheduler.scheduler_batch import Batch, is_preemption_exempt
from quire.scheduler.step_plan import StepPlan
from quire.scheduler.waiting_queue import QueuePosition

# Prompt tokens, in token budgets, of the requests that one step may send to wait for a prefix:
# hashing them takes time that running requests would wait, too.
MAX_PARKED_BUDGETS = 32


class Planner:
    """Plans steps of one batch."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        batch: Batch,
        policy: ChunkPolicy,
        chunks: Chunks,
    ) -> None:
        self._config = config
        self._kv = kv
        self._batch = batch
        self._policy = policy
        self._chunks = chunks

    def plan(self, now: float) -> StepPlan:
        """A step: requests that decode first, if they are not held back, then prompts.

        now: seconds of the clock by which requests were queued.
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
        return step

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

    # ------------------------------------------------------------------ entering the batch

    def _admit(
        self, step: StepPlan, prompts: list[Request], before: QueuePosition | None = None
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

    def _next_entrant(self, step: StepPlan, before: QueuePosition | None) -> Request | None:
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
        wanted = (
            request.max_total_tokens - 1 if is_preemption_exempt(request) else request.num_tokens
        )
        num_running = len(self._batch.running)
        num_needed = self._kv.num_blocks_for(wanted) - len(hits) + promised + num_running
        return not num_running or num_needed <= self._kv.num_available_beside(hits)
