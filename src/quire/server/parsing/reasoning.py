"""How many of an answer's tokens are thoughts, counted as they pass. Reading them is the parser's.

It looks at bytes, since a token may hold part of a character, or the end of a thought and what
follows it. How the tokens were cut into parts has no influence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quire.server.parsing.call_frames import ReasoningFormat


class ThoughtCounter:
    """Counts one answer's tokens up to the one that ends the thought, marks included.

    in_thought: the prompt has begun the thought already. token_bytes: of a token, by its id.
    """

    def __init__(
        self, reasoning: ReasoningFormat, in_thought: bool, token_bytes: Callable[[int], bytes]
    ) -> None:
        self.num_tokens = 0
        self._begin, self._end = reasoning.begin.encode(), reasoning.end.encode()
        self._is_open = in_thought
        self._is_over = False
        self._num_before = 0  # tokens of what may become the mark of a beginning
        self._tail = b""  # in which the next mark may have begun
        self._token_bytes = token_bytes

    def push(self, token_ids: Iterable[int]) -> None:
        """More tokens of the answer."""
        for token_id in token_ids:
            if self._is_over:
                return
            self._tail += self._token_bytes(token_id)
            if self._is_open:
                self._count()
            else:
                self._await()

    def _await(self) -> None:
        """A thought is one only at the beginning of the answer, but for white space."""
        self._num_before += 1
        text = self._tail.lstrip()
        if text.startswith(self._begin):
            self._is_open, self._tail = True, text[len(self._begin) :]
            self.num_tokens = self._num_before - 1
            self._count()
        elif not self._begin.startswith(text):
            self._is_over = True

    def _count(self) -> None:
        self.num_tokens += 1
        self._is_over = self._end in self._tail
        self._tail = self._tail[1 - len(self._end) :]
