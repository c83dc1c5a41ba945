"""Bad words: token sequences that are never produced.

Owns which tokens would complete a bad word now. The tokenizer makes the sequences.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Ints, Tokens

_ANY = -1  # matches every token
_NONE = -2  # matches none but _ANY


class BadWords:
    """The bad words of one request, each split into its last token and the tokens before it."""

    def __init__(self, words: list[list[int]]) -> None:
        words = [word for word in words if word]
        self._last = np.array([word[-1] for word in words], np.int64)  # [W]
        self._width = max((len(word) for word in words), default=1) - 1
        # [W, width], aligned to the right: _ANY before the first token of a shorter word
        self._before = np.full((len(words), self._width), _ANY, np.int64)
        for i, word in enumerate(words):
            self._before[i, self._width - len(word) + 1 :] = word[:-1]

    def banned(self, answer: Tokens) -> Ints:
        """The token ids that would complete a word after the output tokens [N]."""
        tail = np.full(self._width, _NONE, np.int64)
        seen = min(self._width, len(answer))
        tail[self._width - seen :] = answer[len(answer) - seen :]
        matches = (self._before == tail) | (self._before == _ANY)
        completed: Ints = self._last[matches.all(axis=1)]
        return completed
