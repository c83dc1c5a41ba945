"""ReasoningMarks: the tokens around a model's reasoning. No torch."""

from __future__ import annotations

import msgspec


class ReasoningMarks(msgspec.Struct, frozen=True, kw_only=True):
    """The token ids that begin and end the reasoning in front of an answer.

    is_open: whether the prompt has begun the reasoning; None: what the last mark in it says.
    """

    begin: list[int]
    end: list[int]
    is_open: bool | None = None

    def are_open_after(self, prompt_token_ids: list[int]) -> bool:
        """Whether an answer to this prompt starts inside the reasoning."""
        if self.is_open is not None:
            return self.is_open
        return last_index(prompt_token_ids, self.begin) > last_index(prompt_token_ids, self.end)


def last_index(token_ids: list[int], part: list[int]) -> int:
    """The last index at which `part` begins among the token ids; -1 if it is not there."""
    size = len(part)
    starts = range(len(token_ids) - size, -1, -1)
    return next((i for i in starts if token_ids[i : i + size] == part), -1)
