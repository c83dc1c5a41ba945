"""How many prompt tokens a step may compute while others decode, so that these keep their pace, and
by when each prompt should be done.

Owns the rules; what a step costs is told by step_costs.py. There is no clock here: the engine tells
what steps took.
"""

from __future__ import annotations

from collections import deque

from quire.scheduler.step_costs import StepCosts

AIM = 0.95  # of the target
FIRST_CHUNK = 64  # prompt tokens, while nothing is known
TRUST = 16  # steps with prompts and decodes, whose outcome bounds the next
LEAST_CHUNK = 16  # prompt tokens that every step may have, whatever they cost
LEAST_SHARE = 0.1  # of the target that prompts may take even when decodes alone exceed it
LONG = 8.0  # times what it takes alone, a prompt may take if that is more than the target
# Without a target, where steps are paced: a step with prompts may take so many times as long as one
# that only decodes. Few answers keep their pace; where many run, prompts in small parts would cost
# all of them more, since each step reads all their keys and values, however few the prompt tokens.
# And where many prompts wait, each would begin later for the sake of few.
LEAST_SLOWDOWN, MOST_SLOWDOWN = 2.5, 10.0
DECODES_PER_SLOWDOWN, PROMPTS_PER_SLOWDOWN = 8, 4
# Seconds that prompts may always make a step: which nobody notices where one waits alone, and which
# is still quicker than anybody reads where several do.
SHORT_STEP, CROWDED_STEP = 0.010, 0.020
# Of so few requests, answers that have only begun wait for prompts that came with them. These are
# computed sooner in whole steps than in parts beside decodes, and then all answers run undisturbed.
FEW_REQUESTS = 32
LONGEST_WAIT = 1.0  # seconds after a request came, no such step keeps its second token waiting
UNPACED_CHUNK = 512  # prompt tokens beside decodes, while nothing is known
WHOLE_STEP = 2048  # prompt tokens of a step without decodes: more make nobody's first token earlier


class ChunkPolicy:
    """Prompt tokens for each step, and whose come first.

    itl_target: seconds between two tokens of a request, or None. ttft_target: seconds from a
    request's arrival to its first token, or None. paces: whether steps without a target are bounded
    by what was measured. The costs say how many prompt tokens there may be; but with an ITL target
    never more than twice what has lately been seen to keep it, so that a wrong guess stays small.
    """

    def __init__(
        self, itl_target: float | None, ttft_target: float | None = None, *, paces: bool = False
    ) -> None:
        self._asked = itl_target
        self._ttft_target = ttft_target
        self._paces = paces
        self.costs = StepCosts()
        self._within: deque[int] = deque(maxlen=TRUST)  # prompt tokens; 0 where it was exceeded

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Take what a step took."""
        if self._asked is not None or self._ttft_target is not None or self._paces:
            self.costs.observe(num_decodes, num_prompt_tokens, seconds)
        if self._asked is not None and num_decodes and num_prompt_tokens:
            self._within.append(num_prompt_tokens if seconds <= self._asked else 0)

    def prompt_tokens(self, num_decodes: int, budget: int, num_prompts: int = 1) -> int:
        """How many of a step's budget prompts may have beside so many decodes.

        num_prompts: requests that can have some of them.
        """
        if self._asked is None:
            paced = self._paced_tokens(num_decodes, num_prompts) if self._paces else budget
            return min(budget, paced)
        if num_decodes == 0:
            return budget
        trusted = min(budget, max(FIRST_CHUNK, 2 * max(self._within, default=0)))
        if not self.costs.is_known:
            return trusted
        return min(trusted, self._affordable(num_decodes, AIM * self._asked))

    def _paced_tokens(self, num_decodes: int, num_prompts: int) -> int:
        """How many without a target: none is missed, so what is planned need not be cautious."""
        if num_decodes == 0:
            return WHOLE_STEP
        if not self.costs.is_known:
            return UNPACED_CHUNK
        wanted = max(num_decodes / DECODES_PER_SLOWDOWN, num_prompts / PROMPTS_PER_SLOWDOWN)
        slowdown = max(LEAST_SLOWDOWN, min(MOST_SLOWDOWN, wanted))
        least = SHORT_STEP if num_prompts == 1 else CROWDED_STEP
        decodes = self.costs.predict(num_decodes, 0)
        return self._affordable(num_decodes, max(least, slowdown * decodes))

    def holds(self, num_requests: int, waited: float) -> bool:
        """Whether answers that have only begun are held back for prompts.

        num_requests: all, in the batch or in line. waited: seconds since the first of those answers
        was asked for.
        """
        if not self._paces or self._asked is not None or num_requests > FEW_REQUESTS:
            return False
        if not self.costs.is_known:
            return False
        return waited + self.costs.predict(0, WHOLE_STEP) < LONGEST_WAIT

    def _affordable(self, num_decodes: int, target: float) -> int:
        """Prompt tokens for which the costs say that a step stays within so many seconds."""
        costs = self.costs
        planned = target / costs.margin
        seconds = max(planned - costs.predict(num_decodes, 0), LEAST_SHARE * planned)
        return max(LEAST_CHUNK, int(seconds / (costs.pace * costs.per_prompt_token)))

    @property
    def is_paced(self) -> bool:
        """Whether prompts beside decodes share what was measured to be affordable.

        Where they take turns by due times, the first in line may have all of it.
        """
        return self._paces if self._asked is None else not self.has_due_times

    @property
    def has_due_times(self) -> bool:
        """Whether prompts take turns by when they are due."""
        return self._ttft_target is not None

    def due(self, queued: float, num_tokens: int) -> float:
        """When a prompt of so many tokens that arrived then should be done.

        One that is too long for that has LONG times what it takes alone: it lets those before it
        that can be in time, but not for ever.
        """
        assert self._ttft_target is not None
        costs = self.costs
        alone = costs.pace * costs.per_prompt_token * num_tokens
        return queued + max(self._ttft_target, LONG * alone)

    def is_late(self, seconds_left: float, num_tokens: int, chunk: int, num_decodes: int) -> bool:
        """Whether a prompt that gets so many tokens a step, beside decodes, will not be in time."""
        if not self.has_due_times:
            return False
        return num_tokens / chunk * self.costs.predict(num_decodes, chunk) > seconds_left
