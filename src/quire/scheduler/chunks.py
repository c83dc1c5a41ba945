"""How many tokens a prompt gets of a step. No torch.

Owns the rules by which prompts share what decodes leave of the budget: the settings say what may be
cut, and policy.py what running requests can bear. It does not know who is in line.
"""

from __future__ import annotations

from quire.config import SchedulerConfig
from quire.core.request import Request
from quire.scheduler.plan import StepPlan
from quire.scheduler.policy import ChunkPolicy


class Chunks:
    """The settings and the policy, joined."""

    def __init__(self, config: SchedulerConfig, policy: ChunkPolicy) -> None:
        self._is_on = config.enable_chunked_prefill
        self._threshold = config.long_prefill_token_threshold
        self._limit = self._threshold or max(1, config.max_num_batched_tokens // 2)
        self._policy = policy

    def begin(self, step: StepPlan, num_decodes: int) -> None:
        """Bound what prompts may have, now that those who decode have their tokens."""
        step.num_decodes = num_decodes
        step.budget = self._policy.prompt_tokens(num_decodes, step.budget)
        step.chunk_limit = self._limit
        if not self._threshold and self._may_take_all(num_decodes):
            step.chunk_limit = max(1, step.budget // 2)  # the policy may give less than all

    def size(self, step: StepPlan, request: Request, lacking: int) -> int:
        """How many of the tokens that it lacks a prompt gets in its turn; 0: no room for it."""
        if not self._is_on:
            return lacking if lacking <= step.budget else 0
        limit, left = step.chunk_limit, request.due - step.now
        if not self._threshold and self._policy.is_late(left, lacking, limit, step.num_decodes):
            limit = lacking
        return min(lacking, step.budget, limit)

    def leaves_rest(self, num_decodes: int, num_requests: int) -> bool:
        """Whether prompts may go beyond the chunk limit, so that nobody waits longer for it.

        A limit that was asked for gives way only to a request that is alone.
        """
        return num_requests == 1 if self._threshold else self._may_take_all(num_decodes)

    def _may_take_all(self, num_decodes: int) -> bool:
        """Whether one prompt may take what the policy gives to all, if no other wants it.

        Nobody decodes in this step, or the pace of those who do was thought of.
        """
        return not num_decodes or self._policy.is_paced
