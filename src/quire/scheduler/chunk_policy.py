"""The chunk size policy: how many prompt tokens a step computes, and which answers it advances.

Owns the rules by which prompts and decodes share the steps, with and without a target for the
inter-token latency (ITL), and by when each prompt is due (TTFT). step_costs.py predicts what a step
takes. No clock: the engine reports how long steps took.
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
# Without an ITL target: for each BACKLOG_STEPS full steps of prompts that wait, decodes sit out one
# step, at most PAUSED_STEPS in a row.
BACKLOG_STEPS, PAUSED_STEPS = 2, 2
# With at most this many requests, decodes that have just started wait for the prompts that arrived
# with them, until LONGEST_WAIT seconds after the first of them arrived.
FEW_REQUESTS, LONGEST_WAIT = 16, 1.0
# And while prompts have at most SHORT_PROMPT tokens on average, steps have SHORT_STEP: all prompts
# of a step get their first tokens at its end.
SHORT_PROMPT, SHORT_STEP = 384, 512


class ChunkPolicy:
    """The number of prompt tokens for each step, when decodes sit out, and when prompts are due.

    itl_target: seconds between two tokens of a request, or None. ttft_target: seconds from a
    request's arrival to its first token, or None. full_step: most prompt tokens of a step. With an
    ITL target a step has at most twice the prompt tokens that have lately kept it, so that a wrong
    prediction stays small.
    """

    def __init__(
        self, itl_target: float | None, ttft_target: float | None = None, *, full_step: int
    ) -> None:
        self._itl_target = itl_target
        self._ttft_target = ttft_target
        self._full_step = full_step
        self.costs = StepCosts()
        # prompt tokens of steps within the target; 0: exceeded
        self._within: deque[int] = deque(maxlen=TRUST)

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Learn from the duration of a step."""
        if self._itl_target is not None or self._ttft_target is not None:
            self.costs.observe(num_decodes, num_prompt_tokens, seconds)
        if self._itl_target is not None and num_decodes and num_prompt_tokens:
            self._within.append(num_prompt_tokens if seconds <= self._itl_target else 0)

    def prompt_tokens(self, num_decodes: int, budget: int) -> int:
        """The number of prompt tokens that a step with these decodes may have.

        budget: tokens left in the step.
        """
        most = min(budget, self._full_step)
        if self._itl_target is None or num_decodes == 0:
            return most
        trusted = min(most, max(FIRST_CHUNK, 2 * max(self._within, default=0)))
        if not self.costs.is_known:
            return trusted
        return min(trusted, self._affordable(num_decodes, AIM * self._itl_target))

    def step_limit(self, num_requests: int, num_prompts: int, num_prompt_tokens: int) -> int:
        """The most prompt tokens of a step, so that short prompts do not wait for each other.

        num_requests: running and waiting. num_prompts: of them prompts that an answer follows.
        num_prompt_tokens: uncomputed ones, of these and of embeddings, for which the number of
        requests a second counts alone.
        """
        are_short = num_prompt_tokens <= SHORT_PROMPT * num_prompts
        return SHORT_STEP if num_requests <= FEW_REQUESTS and are_short else self._full_step

    @property
    def largest_backlog(self) -> int:
        """The number of waiting prompt tokens beyond which their number makes no difference."""
        return PAUSED_STEPS * BACKLOG_STEPS * self._full_step

    def pauses_decodes(self, num_prompt_tokens: int, num_paused_steps: int) -> bool:
        """Whether decodes sit out a step, for prompts.

        num_prompt_tokens: uncomputed ones. num_paused_steps: sat out since their last one.
        """
        num_steps = min(PAUSED_STEPS, num_prompt_tokens // (BACKLOG_STEPS * self._full_step))
        return self._itl_target is None and num_paused_steps < num_steps

    def staggers_ends(
        self, num_requests: int, num_prompt_tokens: int, num_answer_tokens: int
    ) -> bool:
        """Whether answers of a burst go on beside its prompts, so that not all end together.

        Where prompts take more than half of the answers' steps, that would not help: requests would
        end as fast as prompts are computed. num_prompt_tokens, num_answer_tokens: of all requests.
        """
        return 2 * num_prompt_tokens * num_requests < self._full_step * num_answer_tokens

    def holds_first_tokens(self, num_requests: int, waited: float) -> bool:
        """Whether decodes that have just started wait for prompts.

        num_requests: running and waiting. waited: seconds since the first of those decodes arrived.
        """
        return self._itl_target is None and num_requests <= FEW_REQUESTS and waited < LONGEST_WAIT

    def _affordable(self, num_decodes: int, target: float) -> int:
        """The prompt tokens with which a step is predicted to take `target` seconds."""
        costs = self.costs
        planned = target / costs.margin
        seconds = max(planned - costs.predict(num_decodes, 0), LEAST_SHARE * planned)
        return max(LEAST_CHUNK, int(seconds / (costs.pace * costs.per_prompt_token)))

    def due_time(self, queued: float, num_planned: int, num_tokens: int) -> float:
        """When a prompt of num_tokens is due; prompts run in this order. 0: at once.

        Without a TTFT target counted in tokens of prompts (cached ones too) and answers, of which
        num_planned were planned at its arrival: a shorter prompt passes a longer one only while
        fewer than their difference were planned between their arrivals (self-clocked fair
        queueing; S. J. Golestani, 1994). With a target in seconds; one too long for it is due
        after LONG times its time alone.
        """
        if self._ttft_target is None:
            return num_planned + num_tokens
        if num_tokens == 0:
            return queued
        costs = self.costs
        alone = costs.pace * costs.per_prompt_token * num_tokens
        return queued + max(self._ttft_target, LONG * alone)
