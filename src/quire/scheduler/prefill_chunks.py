"""Chunked prefill: how many tokens each prompt gets of a step. No torch.

Owns how prompts share the token budget that decodes leave, by the settings and by chunk_policy.py.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from quire.config import SchedulerConfig
from quire.scheduler.chunk_policy import ChunkPolicy
from quire.scheduler.step_plan import StepPlan

LEAST_FILLED = 0.75  # least share of the budget that cutting to a step size leaves
# With at least this many decodes, the end of a prompt waits for the next step if this one would be
# padded by more than this share.
MANY_DECODES = 32
MOST_PADDING = 0.05


class PrefillChunks:
    """The share of each prompt in a step, by the settings and the chunk policy.

    step_sizes: numbers of tokens, ascending, to which steps with prompt chunks are padded.
    """

    def __init__(
        self, config: SchedulerConfig, policy: ChunkPolicy, step_sizes: Sequence[int] = ()
    ) -> None:
        self._is_on = config.enable_chunked_prefill
        self._max_num_tokens = config.max_num_batched_tokens
        self._step_sizes = step_sizes if self._is_on else ()
        self._threshold = config.long_prefill_token_threshold
        self._policy = policy

    def begin(
        self, step: StepPlan, num_decodes: int, num_requests: int, remaining: int, limit: int
    ) -> None:
        """Set the prompt token budget of a step, after its decodes have been planned.

        num_requests: running and waiting. remaining: uncomputed tokens of all prompts that can run
        (exact only below the budget). limit: most prompt tokens, if prompts may be cut.
        """
        num_given = self._max_num_tokens - step.budget
        budget = step.budget
        if self._is_on:
            budget = min(self._policy.prompt_tokens(num_decodes, budget), limit)
        step.chunk_limit = self._threshold if num_requests > 1 and self._threshold else budget
        if remaining >= budget or self._pads_too_much(num_given + remaining, num_decodes):
            budget = self._up_to_a_size(min(budget, remaining), num_given)
        step.reserved, step.budget = step.budget - budget, budget

    def _pads_too_much(self, num_tokens: int, num_decodes: int) -> bool:
        """Whether padding a step of this many tokens costs more than leaving some to the next."""
        index = bisect.bisect_left(self._step_sizes, num_tokens)
        if num_decodes < MANY_DECODES or index == len(self._step_sizes):
            return False
        return self._step_sizes[index] - num_tokens > MOST_PADDING * num_tokens

    def _up_to_a_size(self, budget: int, num_given: int) -> int:
        """The largest smaller budget with which the step ends exactly on a step size.

        The given budget itself, if that would leave less than LEAST_FILLED of it.
        """
        index = bisect.bisect_right(self._step_sizes, num_given + budget)
        filled = self._step_sizes[index - 1] - num_given if index else 0
        return filled if filled >= LEAST_FILLED * budget else budget

    def size(self, step: StepPlan, remaining: int) -> int:
        """The number of remaining tokens that a prompt gets in this step; 0: it does not fit."""
        if not self._is_on:
            return remaining if remaining <= step.budget else 0
        return min(remaining, step.budget, step.chunk_limit)
