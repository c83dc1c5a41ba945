"""Statistics of the latest steps, and the times of each request's life (queued, started, tokens).

The scheduler has no clock: the engine's loop reports here what it schedules and what comes of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

from msgspec.structs import replace

from quire.core.histogram import STEP_SECONDS_BOUNDS, STEP_TOKEN_BOUNDS, Histogram
from quire.core.messages import EngineStats, RequestDelta, RequestTiming, StepSummary
from quire.core.scheduler_output import SchedulerOutput

NUM_RECENT_STEPS = 256  # stored for live views


class StepLog:
    """Step histograms, the most recent steps, and the times of unfinished requests."""

    def __init__(self) -> None:
        self._times: dict[str, RequestTiming] = {}
        # prompt tokens of the requests that have no output token yet
        self._without_token: dict[str, int] = {}
        self._recent: deque[StepSummary] = deque(maxlen=NUM_RECENT_STEPS)
        self._starts: deque[float] = deque()  # when each step in flight was scheduled
        self._last_end = 0.0
        self._tokens = Histogram(STEP_TOKEN_BOUNDS)
        self._seconds = Histogram(STEP_SECONDS_BOUNDS)

    @property
    def unfinished(self) -> Collection[str]:
        """The ids of the requests that have not ended."""
        return self._times.keys()

    @property
    def recent(self) -> list[StepSummary]:
        """Statistics of the latest steps, oldest first."""
        return list(self._recent)

    def record_arrival(self, request_id: str, num_prompt_tokens: int) -> None:
        """Record that a request has reached the engine."""
        self._times[request_id] = RequestTiming(time.monotonic())
        self._without_token[request_id] = num_prompt_tokens

    def record_start(self, plan: SchedulerOutput, begin: float) -> None:
        """Record that a step starts. begin: when scheduling it began, in monotonic seconds."""
        self._starts.append(begin)
        for new in plan.new_requests:
            times = self._times[new.request_id]
            if times.started is None:
                times = replace(times, started=begin)
            else:  # it returns from a preemption
                times = replace(times, num_preemptions=times.num_preemptions + 1)
            self._times[new.request_id] = times

    def end(self) -> float:
        """Record that the oldest step in flight has ended or failed; returns its seconds.

        A step that was scheduled while another ran counts from the end of that one.
        """
        now = time.monotonic()
        seconds = now - max(self._starts.popleft(), self._last_end)
        self._last_end = now
        self._seconds.observe(seconds)
        return seconds

    def record_step(
        self, plan: SchedulerOutput, seconds: float, deltas: list[RequestDelta], num_sampled: int
    ) -> StepSummary:
        """Record what the step that has just ended computed. num_sampled: output tokens.

        Its histogram is vLLM's: output tokens, and a whole prompt, also of cached tokens, where its
        first output token or its embedding comes.
        """
        num_prompts = 0
        if self._without_token:
            num_prompts = self._record_first_tokens(deltas, self._last_end)
        self._tokens.observe(num_prompts + num_sampled)
        counts = (*plan.count_tokens(), len(plan.scheduled), num_sampled)
        summary = StepSummary(plan.step_id, self._last_end, seconds, *counts)
        self._recent.append(summary)
        return summary

    def _record_first_tokens(self, deltas: list[RequestDelta], now: float) -> int:
        """Record which requests have their first token.

        Returns the length of their prompts, and of those that have their embedding.
        """
        num_prompts = 0
        for delta in deltas:
            if delta.embedding is not None:
                num_prompts += self._without_token.pop(delta.request_id, 0)
            elif delta.token_ids and delta.request_id in self._without_token:
                num_prompts += self._without_token.pop(delta.request_id)
                times = replace(self._times[delta.request_id], first_token=now, last_token=now)
                self._times[delta.request_id] = delta.timing = times
        return num_prompts

    def add_timings(self, deltas: list[RequestDelta]) -> bool:
        """Set `timing` in the last delta of each request that ends; returns whether one does."""
        ended = [delta for delta in deltas if delta.finish_reason is not None]
        for delta in ended:
            self._without_token.pop(delta.request_id, None)
            times = self._times.pop(delta.request_id, None)
            if times is not None and times.first_token is not None:
                times = replace(times, last_token=time.monotonic())
            delta.timing = times or delta.timing
        return bool(ended)

    def add_step_stats(self, stats: EngineStats) -> EngineStats:
        """Add the time and the step histograms to the scheduler's statistics."""
        stats.time = time.monotonic()
        stats.step_tokens = self._tokens.data()
        stats.step_seconds = self._seconds.data()
        return stats
