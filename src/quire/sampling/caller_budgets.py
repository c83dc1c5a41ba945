"""CallerBudgets: how long the masks of one caller's grammars may hold up the answers of others.

Masks are computed between two tokens of all answers of a step. In each step those of one caller may
take as long as the rest of the step has taken. What exceeds that is owed, and decreases with time;
a caller that owes too much gets no masks of grammars that are unknown or slow.
"""

from __future__ import annotations

import time
from collections import defaultdict

# A mask of at most as many seconds is not counted: usual grammars take 0.1 ms or less, and those of
# a caller with many requests may take longer than the rest of a step on a GPU.
QUICK_SECONDS = 0.00025
SHARE = 0.01  # of the time, by which what is owed decreases
MAX_OWED = 0.25  # seconds; above it only grammars run that have been quick so far
MAX_OWED_IN_ALL = 0.75  # seconds; above it none does


class CallerBudgets:
    """The seconds of processor time that callers owe."""

    def __init__(self) -> None:
        self._owed: dict[str, tuple[float, float]] = {}  # and when that was so

    def owed(self, caller: str) -> float:
        """The seconds that a caller owes."""
        now = time.monotonic()
        seconds, before = self._owed.get(caller, (0.0, now))
        return max(0.0, seconds - SHARE * (now - before))

    def add(self, caller: str, seconds: float) -> None:
        """Let a caller owe more."""
        self._owed[caller] = self.owed(caller) + seconds, time.monotonic()
        if len(self._owed) > 1:  # forget who owes nothing any more
            self._owed = {each: owed for each, owed in self._owed.items() if self.owed(each)}


class StepMasks:
    """The masks of one step. free: seconds that those of each caller may take."""

    def __init__(self, budgets: CallerBudgets, free: float) -> None:
        self._budgets = budgets
        self._free = free
        self._taken: defaultdict[str, float] = defaultdict(float)

    def may_start(self, caller: str, usual: float | None) -> bool:
        """Whether a mask may be computed.

        usual: seconds that those of its grammar have taken; None: there were few.
        """
        owed = self._budgets.owed(caller) + max(0.0, self._taken[caller] - self._free)
        is_quick = usual is not None and usual <= QUICK_SECONDS + self._free
        return owed <= (MAX_OWED_IN_ALL if is_quick else MAX_OWED)

    def add(self, caller: str, seconds: float) -> None:
        """Count the time of a mask."""
        self._taken[caller] += max(0.0, seconds - QUICK_SECONDS)

    def end(self) -> None:
        """Let callers owe what was not free."""
        for caller, taken in self._taken.items():
            if taken > self._free:
                self._budgets.add(caller, taken - self._free)
