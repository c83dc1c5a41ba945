"""What steps were made of, what they took, and when requests had their turns.

The scheduler has no clock; the loop tells this log what it plans and what came of it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from quire.core.histogram import STEP_SECONDS_BOUNDS, STEP_TOKEN_BOUNDS, Histogram
from quire.core.messages import EngineStats, RequestDelta, RequestTiming, StepSummary
from quire.core.scheduler_output import SchedulerOutput

NUM_RECENT_STEPS = 256  # kept for live views


@dataclass(slots=True)
class _Turns:
    queued: float
    started: float | None = None
    first_token: float | None = None


class StepLog:
    """Follows every unfinished request, and the latest steps."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turns] = {}
        self._silent = set[str]()  # those without a token
        self._recent: deque[StepSummary] = deque(maxlen=NUM_RECENT_STEPS)
        self._begun: deque[float] = deque()  # when the planning of each step in flight began
        self._last_end = 0.0
        self._tokens = Histogram(STEP_TOKEN_BOUNDS)
        self._seconds = Histogram(STEP_SECONDS_BOUNDS)

    @property
    def recent(self) -> list[StepSummary]:
        """The latest steps, oldest first."""
        return list(self._recent)

    def queue(self, request_id: str) -> None:
        """A request has reached the engine."""
        self._turns[request_id] = _Turns(time.monotonic())
        self._silent.add(request_id)

    def start(self, plan: SchedulerOutput, begin: float) -> None:
        """A step is about to start. begin: of its planning, in seconds of the monotonic clock."""
        self._begun.append(begin)
        for new in plan.new_requests:
            turns = self._turns.get(new.request_id)
            if turns is not None and turns.started is None:  # else it returns from a preemption
                turns.started = begin

    def end(self) -> float:
        """The oldest step has ended, or failed; returns the seconds that it took.

        One that was planned while another ran began when that one ended.
        """
        now = time.monotonic()
        seconds = now - max(self._begun.popleft(), self._last_end)
        self._last_end = now
        self._seconds.observe(seconds)
        return seconds

    def note(
        self, plan: SchedulerOutput, seconds: float, deltas: list[RequestDelta], num_sampled: int
    ) -> None:
        """The step that ended last gave these news and so many tokens of answers."""
        lengths = [entry.num_tokens for entry in plan.scheduled]
        num_tokens, num_decodes = sum(lengths), lengths.count(1)
        if self._silent:
            self._note_first_tokens(deltas, self._last_end)
        self._tokens.observe(num_tokens)
        num_prefill = num_tokens - num_decodes
        counts = (num_prefill, num_decodes, len(plan.scheduled), num_sampled)
        self._recent.append(StepSummary(plan.step_id, self._last_end, seconds, *counts))

    def _note_first_tokens(self, deltas: list[RequestDelta], now: float) -> None:
        for delta in deltas:
            if delta.token_ids and delta.request_id in self._silent:
                self._silent.remove(delta.request_id)
                turns = self._turns[delta.request_id]
                turns.first_token = now
                delta.timing = RequestTiming(turns.queued, turns.started, now, now)

    def finish(self, deltas: list[RequestDelta]) -> None:
        """Write into each last delta when its request had its turns."""
        for delta in deltas:
            turns = None
            if delta.finish_reason is not None:
                turns = self._turns.pop(delta.request_id, None)
                self._silent.discard(delta.request_id)
            if turns is None:
                continue
            last = None if turns.first_token is None else time.monotonic()
            delta.timing = RequestTiming(turns.queued, turns.started, turns.first_token, last)

    def stamp(self, stats: EngineStats) -> EngineStats:
        """Add time and the histograms to the scheduler's figures."""
        stats.time = time.monotonic()
        stats.step_tokens = self._tokens.data()
        stats.step_seconds = self._seconds.data()
        return stats
