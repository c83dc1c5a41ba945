"""Thinking budgets: after a number of reasoning tokens the end of the reasoning is forced.

Owns which token must come next. Reasoning stands at the start of an answer; its tokens are those
between the two marks.
"""

from __future__ import annotations

from quire.array_types import Tokens
from quire.core.reasoning_marks import ReasoningMarks, last_index

MAX_BLANK_TOKENS = 4  # of white space in front of the begin mark
MAX_TOKENS_LATE = 3  # of a character, which has at most 4 bytes, within which no mark can begin


class ThinkingBudget:
    """The thinking_token_budget of one row. is_open: the prompt has begun the reasoning."""

    def __init__(self, budget: int, marks: ReasoningMarks, *, is_open: bool) -> None:
        self._budget = budget
        self._begin, self._end = marks.begin, marks.end
        self._start = 0 if is_open else None  # of the reasoning, in the output; None: not yet begun
        self._num_read = 0
        self._is_over = False

    def forced(self, output: Tokens) -> int | None:
        """The token that has to follow the output tokens [N], unless a grammar bans it; else None.

        If it was banned, the mark begins one token later, until it is MAX_TOKENS_LATE.
        """
        if not self._is_over:
            self._read(output)
        if self._is_over or self._start is None:
            return None
        first = self._start + self._budget  # where the mark is due
        if not 0 <= len(output) - first < MAX_TOKENS_LATE + len(self._end):
            return None
        late = output[first:].tolist()
        sizes = range(min(len(late), len(self._end) - 1), -1, -1)
        size = next(size for size in sizes if late[len(late) - size :] == self._end[:size])
        return self._end[size] if len(late) - size <= MAX_TOKENS_LATE else None

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
