"""The chunk size policy: how many prompt tokens a step may compute beside decodes.

Owns the rules by which decodes keep their inter-token latency (ITL), and by when each prompt is due
(TTFT). step_costs.py predicts what a step takes. No clock: the engine reports how long steps took.
"""

from __future__ import annotations

from collections import deque

from quire.scheduler.step_costs import StepCosts

AIM = 0.95  # of the target
FIRST_CHUNK = 64  # prompt tokens, while no costs are known
TRUST = 16  # latest steps with prompts and decodes, which bound the next one
LEAST_CHUNK = 16  # prompt tokens that every step may have
LEAST_SHARE = 0.1  # of the target for prompts, even when decodes alone exceed it
LONG = 8.0  # a long prompt may take this many times its time alone
# Without a target, where steps are paced: the slowdown that prompts may cause, relative to a step
# of
# decodes alone. It grows with the number of decodes, because every step reads all their KV however
# few prompt tokens it has, and with the number of waiting prompts.
LEAST_SLOWDOWN, MOST_SLOWDOWN = 2.5, 10.0
DECODES_PER_SLOWDOWN, PROMPTS_PER_SLOWDOWN = 8, 4
# Step times in seconds that prompts may always cause: for one waiting prompt, and for several.
SHORT_STEP, CROWDED_STEP = 0.010, 0.020
# With at most this many requests, decodes that have just started wait for the prompts that arrived
# with them: full prompt steps are quicker than chunks beside decodes.
FEW_REQUESTS = 32
LONGEST_WAIT = 1.0  # seconds after a request arrived, its second token is not held back any more
UNPACED_CHUNK = 512  # prompt tokens beside decodes, while no costs are known
WHOLE_STEP = 2048  # prompt tokens of a step without decodes; more do not improve TTFT


class ChunkPolicy:
    """The number of prompt tokens for each step, and when prompts are due.

    itl_target: seconds between two tokens of a request, or None. ttft_target: seconds from a
    request's arrival to its first token, or None. paces: whether steps without a target are bounded
    by measured costs. With an ITL target a step has at most twice the prompt tokens that have
    lately kept it, so that a wrong prediction stays small.
    """

    def __init__(
        self, itl_target: float | None, ttft_target: float | None = None, *, paces: bool = False
    ) -> None:
        self._itl_target = itl_target
        self._ttft_target = ttft_target
        self._paces = paces
        # whether prompts are ordered by due times
        self.has_due_times = ttft_target is not None
        # Whether all prompts of a step share a measured number of tokens. With due times, the first
        # prompt may use all of it.
        self.is_paced = paces if itl_target is None else not self.has_due_times
        self.costs = StepCosts()
        self._within: deque[int] = deque(
            maxlen=TRUST
        )  # prompt tokens of steps within the target; 0: exceeded

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Update the cost model with the duration of a step."""
        if self._itl_target is not None or self._ttft_target is not None or self._paces:
            self.costs.observe(num_decodes, num_prompt_tokens, seconds)
        if self._itl_target is not None and num_decodes and num_prompt_tokens:
            self._within.append(num_prompt_tokens if seconds <= self._itl_target else 0)

    def prompt_tokens(self, num_decodes: int, budget: int, num_prompts: int = 1) -> int:
        """The number of prompt tokens that a step with these decodes may have.

        budget: tokens left in the step. num_prompts: requests that can use them.
        """
        if self._itl_target is None:
            paced = self._paced_tokens(num_decodes, num_prompts) if self._paces else budget
            return min(budget, paced)
        if num_decodes == 0:
            return budget
        trusted = min(budget, max(FIRST_CHUNK, 2 * max(self._within, default=0)))
        if not self.costs.is_known:
            return trusted
        return min(trusted, self._affordable(num_decodes, AIM * self._itl_target))

    def _paced_tokens(self, num_decodes: int, num_prompts: int) -> int:
        """The chunk size where there is no target for the inter-token latency."""
        if num_decodes == 0:
            return WHOLE_STEP
        if not self.costs.is_known:
            return UNPACED_CHUNK
        wanted = max(num_decodes / DECODES_PER_SLOWDOWN, num_prompts / PROMPTS_PER_SLOWDOWN)
        slowdown = max(LEAST_SLOWDOWN, min(MOST_SLOWDOWN, wanted))
        least = SHORT_STEP if num_prompts == 1 else CROWDED_STEP
        decodes = self.costs.predict(num_decodes, 0)
        return self._affordable(num_decodes, max(least, slowdown * decodes))

    def holds_decodes(self, num_requests: int, waited: float) -> bool:
        """Whether decodes that have just started are held back for prompts.

        num_requests: running and waiting. waited: seconds since the first of those decodes arrived.
        """
        if not self._paces or self._itl_target is not None or num_requests > FEW_REQUESTS:
            return False
        if not self.costs.is_known:
            return False
        return waited + self.costs.predict(0, WHOLE_STEP) < LONGEST_WAIT

    def _affordable(self, num_decodes: int, target: float) -> int:
        """The prompt tokens with which a step is predicted to take `target` seconds."""
        costs = self.costs
        planned = target / costs.margin
        seconds = max(planned - costs.predict(num_decodes, 0), LEAST_SHARE * planned)
        return max(LEAST_CHUNK, int(seconds / (costs.pace * costs.per_prompt_token)))

    def due(self, queued: float, num_tokens: int) -> float:
        """When the prompt of a request that arrived at `queued` is due.

        A prompt too long for the target is due after LONG times its time alone: shorter ones pass
        it, but not for ever.
        """
        assert self._ttft_target is not None
        costs = self.costs
        alone = costs.pace * costs.per_prompt_token * num_tokens
        return queued + max(self._ttft_target, LONG * alone)

    def is_late(self, seconds_left: float, num_tokens: int, chunk: int, num_decodes: int) -> bool:
        """Whether a prompt computed `chunk` tokens a step will miss its due time."""
        return num_tokens / chunk * self.costs.predict(num_decodes, chunk) > seconds_left
