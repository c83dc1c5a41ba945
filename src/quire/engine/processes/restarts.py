"""Deaths of a process in a row: the delay of its next start, and when to give up."""

from __future__ import annotations

MAX_DEATHS = 5  # of a process in a row
BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0, 4.0)  # before a restart, by deaths in a row
STEADY_SECONDS = 10.0  # after serving this long, a death starts a new count


class Deaths:
    """Deaths of one process after another."""

    def __init__(self) -> None:
        self.in_a_row = 0

    def add(self, *, was_steady: bool) -> None:
        """Count a death. was_steady: the process has served for a while, so the count is new."""
        self.in_a_row = 1 if was_steady else self.in_a_row + 1

    @property
    def are_too_many(self) -> bool:
        """Whether to give up."""
        return self.in_a_row >= MAX_DEATHS

    @property
    def pause(self) -> float:
        """Seconds before the next start."""
        return BACKOFF_SECONDS[self.in_a_row - 1]
