"""Who waits and who is in the batch: the ways in and out of it, and what is counted on them.

Owns the states of requests that have not ended, and that their blocks come and go with them. It
chooses nobody: planner.py says who enters, and when somebody has to leave. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from quire.core.request import Request, RequestStatus
from quire.errors import invalid_value
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.step_plan import StepPlan
from quire.scheduler.waiting_queue import WaitingQueue

# A request that was preempted so often is admitted again only with all the blocks that it can
# ever need, and is then never preempted: the work that preemption throws away is bounded.
MAX_PREEMPTIONS = 4


def is_preemption_exempt(request: Request) -> bool:
    """Whether it was preempted so often that it must not be any more."""
    return request.num_preemptions >= MAX_PREEMPTIONS


class Batch:
    """All requests that have not ended: in line, or running with blocks of their own."""

    def __init__(self, kv: KVCacheManager, scheduling_policy: Literal["fcfs", "priority"]) -> None:
        self.requests: dict[str, Request] = {}
        self.waiting = WaitingQueue(scheduling_policy)
        self.running: dict[str, Request] = {}
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.num_prompt_tokens = 0
        self._kv = kv
        self._removed_ids: list[str] = []  # have left the batch since the last plan

    def add(self, request: Request) -> None:
        """Put a new request in line.

        Raises InvalidRequestError if its id is that of a request that has not ended.
        """
        if request.request_id in self.requests:
            raise invalid_value(
                "request_id",
                f"{request.request_id!r} is running already; give each request its own",
            )
        self.requests[request.request_id] = request
        self.waiting.push(request)

    def find(self, request_ids: Iterable[str]) -> list[Request]:
        """Those of these that have not ended."""
        found = dict.fromkeys(request_ids)
        return [self.requests[request_id] for request_id in found if request_id in self.requests]

    def split(self) -> tuple[list[Request], list[Request]]:
        """Of those that run, those that lack one token, and those in the middle of more."""
        decodes, prompts = [], []
        for request in self.running.values():
            num_known = len(request.token_ids) + request.num_in_flight_tokens
            lacking = num_known - request.num_computed_tokens
            if lacking > 1:
                prompts.append(request)
            elif num_known < request.max_total_tokens:  # else its last token is in flight
                decodes.append(request)
        return decodes, prompts

    def start(self, step: StepPlan, hits: list[int], num_tokens: int) -> None:
        """Move the first in line into the batch; its first tokens go into this step.

        hits: the blocks of its prefix that are there already.
        """
        request = self.waiting.pop()
        num_cached = len(hits) * self._kv.block_size
        num_slots = (
            request.max_total_tokens - 1
            if is_preemption_exempt(request)
            else num_cached + num_tokens
        )
        block_ids = self._kv.admit(request, hits, num_slots)
        assert block_ids is not None, "a request that fits by RequestLimits does not fit"
        if request.status is RequestStatus.WAITING:
            request.num_cached_tokens = num_cached
            self.num_prompt_tokens += request.num_prompt_tokens
        else:  # what it finds now it may have computed itself, which is not the cache's merit
            request.num_cached_tokens = min(request.num_cached_tokens, num_cached)
            self.num_recomputed_tokens += max(0, request.num_lost_tokens - num_cached)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached
        self.running[request.request_id] = request
        step.enter(request)
        step.add(request, num_tokens, block_ids)
        request.check_lengths()

    def preempt(self, step: StepPlan) -> None:
        """Take the last in line out of the batch: it will wait, and compute all its tokens again.

        The first in line is taken last, and alone it always fits, so somebody always advances.
        """
        candidates = (r for r in self.running.values() if not is_preemption_exempt(r))
        request = max(candidates, key=self.waiting.key)
        step.is_closed = True
        step.take_back(request)
        self._leave(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        request.num_lost_tokens = request.num_computed_tokens
        request.num_computed_tokens = 0
        self.waiting.push(request)
        self.num_preemptions += 1

    def finish(self, request: Request) -> None:
        """The request has ended, in whatever state it was."""
        if request.status is RequestStatus.RUNNING:
            self._leave(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        del self.requests[request.request_id]

    def take_removed(self) -> list[str]:
        """Who has left the batch since this was asked last."""
        removed, self._removed_ids = self._removed_ids, []
        return removed

    def _leave(self, request: Request) -> None:
        del self.running[request.request_id]
        self._removed_ids.append(request.request_id)
        self._kv.free(request)
