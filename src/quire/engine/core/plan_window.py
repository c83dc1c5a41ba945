"""Delay of the next step's plan, for requests that follow on those which ended.

A client often sends its next request when it has an answer. With a step always planned ahead of the
one that runs, such a request would come just after a plan, and wait for two steps instead of one.
"""

from __future__ import annotations

from collections import deque

from quire.core.messages import StepSummary

RECENT_DECODES, RECENT_STARTS = 8, 16  # steps
MARGIN = 0.001  # seconds between the start of a step as expected and the end of the one that runs
LEAST = 0.001  # seconds worth waiting for: pollers count milliseconds


class PlanWindow:
    """The time after a step in which requests ended and before the next plan is due.

    A step that decodes takes about as long as the last ones and any other takes longer, so waiting
    for the shortest of them, less what planning and launching a step take, leaves no device idle.
    Times are in seconds of one clock.
    """

    def __init__(self) -> None:
        self._decodes: deque[float] = deque(maxlen=RECENT_DECODES)
        self._starts: deque[float] = deque(maxlen=RECENT_STARTS)
        self._begin = self._end = 0.0

    def record_start(self, seconds: float) -> None:
        """Record what planning and launching a step took; the window is closed."""
        self._starts.append(seconds)
        self._end = 0.0

    def record_step(self, step: StepSummary) -> None:
        """Record that a step has ended, and so that the next one in flight began."""
        self._begin = step.time
        if step.num_prefill_tokens == 0:
            self._decodes.append(step.seconds)

    def open(self) -> None:
        """Requests have ended in the step recorded last, and another step runs."""
        lead = MARGIN + max(self._starts, default=0.0)
        self._end = self._begin + min(self._decodes, default=0.0) - lead

    def left(self, now: float) -> float:
        """Seconds until the next step should be planned; 0: at once."""
        left = self._end - now
        return left if left >= LEAST else 0.0
