"""Thinking budgets: after a number of reasoning tokens the end of the reasoning is forced.

Owns which token must come next. Reasoning stands at the start of an answer; its tokens are those
between the two marks.
"""

from __future__ import annotations

from quire.array_types import Tokens
from quire.core.reasoning_marks import ReasoningMarks, last_index

MAX_BLANK_TOKENS = 4  # of white space in front of the begin mark


class ThinkingBudget:
    """The thinking_token_budget of one row. is_open: the prompt has begun the reasoning."""

    def __init__(self, budget: int, marks: ReasoningMarks, *, is_open: bool) -> None:
        self._budget = budget
        self._begin, self._end = marks.begin, marks.end
        self._start = 0 if is_open else None  # of the reasoning, in the output; None: not yet begun
        self._num_read = 0
        self._is_over = False

    def forced(self, output: Tokens) -> int | None:
        """The token that has to follow the output tokens [N]; None: any may."""
        if not self._is_over:
            self._read(output)
        if self._is_over or self._start is None:
            return None
        index = len(output) - self._start - self._budget
        return self._end[index] if 0 <= index < len(self._end) else None

    def _read(self, output: Tokens) -> None:
        """Look for the marks in the tokens that are new since the last call."""
        if self._start is None:
            self._find_begin(output)
        if self._start is not None:
            first = max(self._start, self._num_read - len(self._end) + 1)
            self._is_over = last_index(output[first:].tolist(), self._end) >= 0
            self._num_read = len(output)

    def _find_begin(self, output: Tokens) -> None:
        """Look for the first begin mark: tokens read at once say what they say one by one."""
        size = len(self._begin)
        head = output[: MAX_BLANK_TOKENS + size].tolist()
        ends = (end for end in range(size, len(head) + 1) if head[end - size : end] == self._begin)
        self._start = next(ends, None)
        self._is_over = self._start is None and len(head) == MAX_BLANK_TOKENS + size
