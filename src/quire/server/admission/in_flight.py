"""Counts the answers and prompt tokens in flight, over all API processes of a server.

The processes share memory without locks: each writes only the words of its own row and reads those
of all live processes. Two processes that admit at the same moment may admit one request too many.
"""

from __future__ import annotations

import mmap
import os

from quire.processes import is_alive

_NUM_BYTES = 8  # of a word


class InFlightCounter:
    """Counts of one model, or of all. pids, answers, tokens: a word per process; row: our own.

    num_own_answers: answers in flight in this process.
    """

    def __init__(
        self,
        pids: memoryview[int],
        answers: memoryview[int],
        tokens: memoryview[int],
        row: int,
    ) -> None:
        self._pids, self._answers, self._tokens, self._row = pids, answers, tokens, row
        self._other_rows = [other for other in range(len(pids)) if other != row]
        self.num_own_answers = self._num_own_tokens = 0
        # what an earlier process of this row had in flight ended with it
        answers[row] = tokens[row] = 0
        pids[row] = os.getpid()

    @classmethod
    def alone(cls) -> InFlightCounter:
        """The counter of a server with one API process."""
        words = memoryview(bytearray(3 * _NUM_BYTES)).cast("q")
        return cls(words[:1], words[1:2], words[2:], 0)

    @property
    def num_answers(self) -> int:
        """Answers in flight in all processes."""
        others = self._of_others(self._answers) if self._other_rows else 0
        return self.num_own_answers + others

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens in flight in all processes."""
        return self._num_own_tokens + self._of_others(self._tokens)

    def _of_others(self, words: memoryview[int]) -> int:
        """The sum over other live processes; a dead one's words stay until its row is taken."""
        total = 0
        for row in self._other_rows:
            if words[row] and is_alive(self._pids[row]):
                total += words[row]
        return total

    def add(self, num_answers: int, num_prompt_tokens: int) -> None:
        """Add to the counts of this process; negative numbers remove."""
        answers = self.num_own_answers + num_answers
        tokens = self._num_own_tokens + num_prompt_tokens
        assert answers >= 0 <= tokens, "more was removed than had been added"
        self._answers[self._row] = self.num_own_answers = answers
        if num_prompt_tokens:
            self._tokens[self._row] = self._num_own_tokens = tokens


def local_counters(num_counters: int) -> list[InFlightCounter]:
    """Counters of a server with one API process."""
    return [InFlightCounter.alone() for _ in range(num_counters)]


def shared_counters(
    memory: int, row: int, num_rows: int, num_counters: int
) -> list[InFlightCounter]:
    """Counters in memory that all API processes of one server share. row: of this process.

    memory: a file descriptor. Raises OSError if there is no room.
    """
    width = 1 + 2 * num_counters
    size = num_rows * width * _NUM_BYTES
    os.ftruncate(memory, size)
    os.pwrite(memory, bytes(width * _NUM_BYTES), row * width * _NUM_BYTES)  # allocates it
    words = memoryview(mmap.mmap(memory, size)).cast("q")
    return [
        InFlightCounter(words[::width], words[column::width], words[column + 1 :: width], row)
        for column in range(1, width, 2)
    ]
