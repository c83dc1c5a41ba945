"""How many answers and prompt tokens are in the house, over all API processes of a server.

They share memory without locks: each writes the words of its own row alone and reads those of all
whose process lives. Two that let somebody in at the same moment may so let in one too many.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from quire.processes import is_alive

_NUM_BYTES = 8  # of a word


class InFlightCounter:
    """One place's heads. pids, answers, tokens: a word for each process; row: this one's."""

    def __init__(
        self,
        pids: memoryview[int],
        answers: memoryview[int],
        tokens: memoryview[int],
        row: int,
    ) -> None:
        self._pids, self._answers, self._tokens, self._row = pids, answers, tokens, row
        answers[row] = tokens[row] = 0  # what an earlier process of this row held has ended with it
        pids[row] = os.getpid()

    @classmethod
    def alone(cls) -> InFlightCounter:
        """Of a process that shares its places with nobody."""
        words = memoryview(bytearray(3 * _NUM_BYTES)).cast("q")
        return cls(words[:1], words[1:2], words[2:], 0)

    @property
    def num_own_answers(self) -> int:
        """Of this process."""
        return self._answers[self._row]

    @property
    def num_answers(self) -> int:
        """Of all processes."""
        return self._sum(self._answers)

    @property
    def num_prompt_tokens(self) -> int:
        """Of all processes."""
        return self._sum(self._tokens)

    def _sum(self, words: memoryview[int]) -> int:
        """Without what the dead have left, until another process has their row."""
        rows = zip(self._pids, words, strict=True)
        return sum(number for pid, number in rows if number and is_alive(pid))

    def add(self, num_answers: int, num_prompt_tokens: int) -> None:
        """Count in; less than none: count out."""
        self._answers[self._row] += num_answers
        self._tokens[self._row] += num_prompt_tokens
        has_left = self._answers[self._row] < 0 or self._tokens[self._row] < 0
        assert not has_left, "more has left than had entered"


def own_counts(num_places: int) -> list[InFlightCounter]:
    """The counts of a process that is the only one of its server."""
    return [InFlightCounter.alone() for _ in range(num_places)]


def shared_counts(path: Path, row: int, num_rows: int, num_places: int) -> list[InFlightCounter]:
    """The counts of each place, in a file that all processes of one server open."""
    width = 1 + 2 * num_places
    size = num_rows * width * _NUM_BYTES
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)
        words = memoryview(mmap.mmap(descriptor, size)).cast("q")
    finally:
        os.close(descriptor)
    return [
        InFlightCounter(words[::width], words[place::width], words[place + 1 :: width], row)
        for place in range(1, width, 2)
    ]
