"""The scheduler's requests: the waiting queue and the running batch, with admission and preemption.

Owns the states of unfinished requests, and that their blocks are allocated and freed with them.
planner.py decides whom to admit and when to preempt. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.request import Request, RequestStatus
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.step_plan import StepPlan
from quire.scheduler.waiting_queue import WaitingQueue

# After this many preemptions a request is admitted only with all the blocks that it can ever need,
# and is never preempted again: this bounds the work that preemption wastes.
MAX_PREEMPTIONS = 4


def is_preemption_exempt(request: Request) -> bool:
    """Whether it was preempted so often that it must not be preempted again."""
    return request.num_preemptions >= MAX_PREEMPTIONS


class Burst:
    """Requests that have come since there was none, of which none has ended."""

    def __init__(self) -> None:
        self.num_requests = self.num_prompt_tokens = self.num_answer_tokens = 0

    def add(self, request: Request) -> None:
        """Count a request, with the most tokens that its answer may have."""
        self.num_requests += 1
        self.num_prompt_tokens += request.num_tokens
        self.num_answer_tokens += request.max_total_tokens - request.num_tokens


class Batch:
    """All unfinished requests: waiting, or running with blocks of their own."""

    def __init__(self, kv: KVCacheManager) -> None:
        self.requests: dict[str, Request] = {}
        self.waiting = WaitingQueue()
        self.running: dict[str, Request] = {}
        self.burst: Burst | None = None  # until a request ends
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.num_prompt_tokens = 0
        # In all steps, and cached ones of admitted requests: what due times are counted in.
        self.num_planned_tokens = 0
        self._kv = kv
        self._removed_ids: list[str] = []  # left the batch since the last plan

    def add(self, request: Request) -> None:
        """Add a new request to the waiting queue."""
        assert request.request_id not in self.requests
        if not self.requests:
            self.burst = Burst()
        if self.burst is not None:
            self.burst.add(request)
        self.requests[request.request_id] = request
        self.waiting.push(request)

    def find(self, request_ids: Iterable[str]) -> list[Request]:
        """The unfinished requests among these ids."""
        found = dict.fromkeys(request_ids)
        return [self.requests[request_id] for request_id in found if request_id in self.requests]

    def split_decodes_prefills(self) -> tuple[list[Request], list[Request]]:
        """Running requests with one uncomputed token (decodes), and those with more (prefills)."""
        decodes, prompts = [], []
        for request in self.running.values():
            num_known = len(request.token_ids) + request.num_in_flight_tokens
            remaining = num_known - request.num_computed_tokens
            if remaining > 1:
                prompts.append(request)
            elif num_known < request.max_total_tokens:  # else its last token is in flight
                decodes.append(request)
        return decodes, prompts

    def start(self, step: StepPlan, hits: list[int], num_tokens: int) -> None:
        """Admit the first waiting request into the batch and plan its first tokens.

        hits: the cached blocks of its prefix.
        """
        request = self.waiting.pop()
        num_cached = len(hits) * self._kv.block_size
        self.num_planned_tokens += num_cached
        num_slots = (
            request.max_total_tokens - 1
            if is_preemption_exempt(request)
            else num_cached + num_tokens
        )
        block_ids = self._kv.admit(request, hits, num_slots)
        assert block_ids is not None, "a request that fits by RequestLimits does not fit"
        if request.status is RequestStatus.WAITING:
            request.num_cached_tokens = min(num_cached, request.num_prompt_tokens)
            self.num_prompt_tokens += request.num_prompt_tokens
        else:  # these may be its own blocks, which do not count as cache hits
            request.num_cached_tokens = min(request.num_cached_tokens, num_cached)
            self.num_recomputed_tokens += max(0, request.num_lost_tokens - num_cached)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached
        self.running[request.request_id] = request
        step.enter(request)
        step.add(request, num_tokens, block_ids)
        request.check_lengths()

    def preempt(self, step: StepPlan) -> None:
        """Preempt the running request that is last in order: it waits, and recomputes its tokens.

        The first request is preempted last and always fits alone, so there is always progress.
        """
        candidates = (r for r in self.running.values() if not is_preemption_exempt(r))
        request = max(candidates, key=self.waiting.key)
        step.is_closed = True
        step.remove(request)
        self._return_to_queue(request)

    def preempt_all(self) -> None:
        """Preempt all running requests, also those that are exempt."""
        for request in list(self.running.values()):
            self._return_to_queue(request)

    def _return_to_queue(self, request: Request) -> None:
        self._remove_from_batch(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        request.num_lost_tokens = request.num_computed_tokens
        request.num_computed_tokens = 0
        self.waiting.push(request)
        self.num_preemptions += 1

    def finish(self, request: Request) -> None:
        """Remove a request that has ended, waiting or running."""
        if request.status is RequestStatus.RUNNING:
            self._remove_from_batch(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        self.burst = None
        del self.requests[request.request_id]

    def take_removed(self) -> list[str]:
        """Ids of requests that have left the batch since the last call."""
        removed, self._removed_ids = self._removed_ids, []
        return removed

    def _remove_from_batch(self, request: Request) -> None:
        del self.running[request.request_id]
        self._removed_ids.append(request.request_id)
        self._kv.free(request)
