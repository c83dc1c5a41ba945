"""Words that are never produced, as token sequences.

Owns the question which tokens would complete one of a request's bad words now; does not own how
words become tokens, nor the logits.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Ints, Tokens

_ANY = -1  # matches every token
_NONE = -2  # matches none but _ANY


class BadWords:
    """The bad words of one request, each split into its last token and what precedes it."""

    def __init__(self, words: list[list[int]]) -> None:
        words = [word for word in words if word]
        self._last = np.array([word[-1] for word in words], np.int64)  # [W]
        self._width = max((len(word) for word in words), default=1) - 1
        # [W, width], aligned to the right: a short word does not care what came long before
        self._before = np.full((len(words), self._width), _ANY, np.int64)
        for i, word in enumerate(words):
            self._before[i, self._width - len(word) + 1 :] = word[:-1]

    def banned(self, answer: Tokens) -> Ints:
        """The tokens that would complete a word after `answer` [N]."""
        tail = np.full(self._width, _NONE, np.int64)
        seen = min(self._width, len(answer))
        tail[self._width - seen :] = answer[len(answer) - seen :]
        matches = (self._before == tail) | (self._before == _ANY)
        completed: Ints = self._last[matches.all(axis=1)]
        return completed
