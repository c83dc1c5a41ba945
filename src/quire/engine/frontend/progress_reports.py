"""ProgressReports: from an engine's deltas to the progress of one request's prompt."""

from __future__ import annotations

from quire.core.messages import RequestDelta
from quire.core.request_output import PromptProgress


class ProgressReports:
    """The progress of one prompt, which never goes back: not after a preemption or a restart.

    num_prompt_tokens: of the prompt, all of which are computed when its first token comes. arrival:
    of the request, in monotonic seconds. Reports may come together, so only the first one, of what
    was cached, has no seconds.
    """

    def __init__(self, num_prompt_tokens: int, arrival: float) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._arrival = arrival
        self._unread: list[PromptProgress] = []
        self._num_computed = -1
        self._num_cached = 0

    def add(self, delta: RequestDelta, now: float) -> None:
        """Add what a delta reports. now: monotonic seconds."""
        for count in delta.prompt_progress:
            self._reach(count, now)
        if delta.token_ids:
            self._reach(self._num_prompt_tokens, now)

    def _reach(self, num_computed: int, now: float) -> None:
        if num_computed <= self._num_computed:
            return
        seconds = now - self._arrival
        if self._num_computed < 0:
            self._num_cached, seconds = num_computed, 0.0
        self._num_computed = num_computed
        self._unread.append(PromptProgress(self._num_cached, num_computed, seconds))

    def take(self) -> tuple[PromptProgress, ...]:
        """The reports since the last call, oldest first."""
        unread, self._unread = self._unread, []
        return tuple(unread)
