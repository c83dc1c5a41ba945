"""How many tokens a prompt gets of a step. No torch.

Owns the rules by which prompts share what decodes leave of the budget: the settings say what may be
cut, and chunk_policy.py what running requests can bear. It does not know who is in line.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from quire.config import SchedulerConfig
from quire.core.request import Request
from quire.scheduler.chunk_policy import ChunkPolicy
from quire.scheduler.step_plan import StepPlan

LEAST_FILLED = 0.75  # of what prompts may have, so that a budget that is tried out still grows
# Beside so many decodes the end of a prompt waits for the next step if this one would be padded by
# more than this share: there is a next step soon, and most likely with another prompt.
MANY_DECODES = 32
MOST_PADDING = 0.05


class Chunks:
    """The settings and the policy, joined.

    step_sizes: numbers of tokens to which steps with parts of prompts are padded, ascending.
    """

    def __init__(
        self, config: SchedulerConfig, policy: ChunkPolicy, step_sizes: Sequence[int] = ()
    ) -> None:
        self._is_on = config.enable_chunked_prefill
        self._max_num_tokens = config.max_num_batched_tokens
        self._step_sizes = step_sizes if self._is_on else ()
        self._threshold = config.long_prefill_token_threshold
        self._limit = self._threshold or max(1, config.max_num_batched_tokens // 2)
        self._policy = policy

    def begin(
        self, step: StepPlan, num_decodes: int, num_requests: int, num_prompts: int, lacking: int
    ) -> None:
        """Bound what prompts may have, now that those who decode have their tokens.

        num_requests: all, in the batch or in line. num_prompts: of them those that can have prompt
        tokens in this step. lacking: how many these lack; beyond its budget no matter how many.
        """
        step.num_decodes = num_decodes
        num_given = self._max_num_tokens - step.budget
        budget = self._policy.prompt_tokens(num_decodes, step.budget, num_prompts)
        step.leaves_rest = self._is_on and self._leaves_rest(num_decodes, num_requests)
        step.chunk_limit = self._limit
        if not self._threshold and self._may_take_all(num_decodes):
            step.chunk_limit = max(1, budget // 2)  # the policy may give less than all
        if lacking >= budget or self._pads_too_much(num_given + lacking, num_decodes):
            budget = self._up_to_a_size(min(budget, lacking), num_given)
        step.budget = budget

    def _pads_too_much(self, num_tokens: int, num_decodes: int) -> bool:
        """Whether a step of so many tokens had better leave some of them to the next."""
        place = bisect.bisect_left(self._step_sizes, num_tokens)
        if num_decodes < MANY_DECODES or place == len(self._step_sizes):
            return False
        return self._step_sizes[place] - num_tokens > MOST_PADDING * num_tokens

    def _up_to_a_size(self, budget: int, num_given: int) -> int:
        """The largest budget, no greater, with which a step of so many tokens ends on a size.

        Beyond a size it would be padded to the next. But if much of the budget would have to go
        for that, padding is the lesser loss.
        """
        place = bisect.bisect_right(self._step_sizes, num_given + budget)
        filled = self._step_sizes[place - 1] - num_given if place else 0
        return filled if filled >= LEAST_FILLED * budget else budget

    def size(self, step: StepPlan, request: Request, lacking: int) -> int:
        """How many of the tokens that it lacks a prompt gets in its turn; 0: no room for it."""
        if not self._is_on:
            return lacking if lacking <= step.budget else 0
        limit, left = step.chunk_limit, request.due - step.now
        if not self._threshold and self._policy.is_late(left, lacking, limit, step.num_decodes):
            limit = lacking
        return min(lacking, step.budget, limit)

    def _leaves_rest(self, num_decodes: int, num_requests: int) -> bool:
        """Whether prompts may go beyond the chunk limit, so that nobody waits longer for it.

        A limit that was asked for gives way only to a request that is alone.
        """
        return num_requests == 1 if self._threshold else self._may_take_all(num_decodes)

    def _may_take_all(self, num_decodes: int) -> bool:
        """Whether one prompt may take what the policy gives to all, if no other wants it.

        Nobody decodes in this step, or the pace of those who do was thought of.
        """
        return not num_decodes or self._policy.is_paced
