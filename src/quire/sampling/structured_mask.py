"""What a request's form lets come next, as flags over its logits.

Owns how the form goes together with the other ways in which an answer ends; does not own what a
form means (the grammar room's matcher knows), nor the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from quire.array_types import Flags, Ints, Tokens


class Matcher(Protocol):
    """Where one answer stands in its form."""

    def follow(self, answer: Sequence[int]) -> None:
        """Take those of the answer's tokens [N] that it has not taken yet."""

    def allowed(self) -> bytes:
        """The tokens that may come next, one bit for each id, the lowest first."""

    @property
    def is_accepting(self) -> bool:
        """Whether the answer has its form if it ends here."""

    @property
    def is_whole(self) -> bool:
        """Whether the answer has its form, and nothing can follow."""


class Form:
    """The form of one row.

    stop_token_ids end the answer as the model's own end tokens do: wherever the form is whole,
    besides where the form has them as text. barred: end tokens that are to be ignored; such an
    answer ends when nothing but they could follow.
    """

    def __init__(self, matcher: Matcher, *, stop_token_ids: Ints, barred: Ints) -> None:
        self._matcher = matcher
        self._stops = stop_token_ids
        self._barred = barred

    def banned(self, answer: Tokens, size: int) -> Flags:
        """Which of `size` tokens may not follow the answer so far [N]."""
        self._matcher.follow(answer)  # type: ignore[arg-type]
        allowed = np.frombuffer(self._matcher.allowed(), np.uint8)
        bits = np.unpackbits(allowed, bitorder="little")[:size]
        banned = np.ones(size, np.bool_)  # what the tokenizer does not know as well
        np.equal(bits, 0, out=banned[: len(bits)])
        if len(self._stops) and self._matcher.is_accepting:
            banned[self._stops] = False
        banned[self._barred] = True
        return banned

    def is_whole_with(self, answer: Tokens, token_id: int) -> bool:
        """Take one more token; whether the form lets nothing follow it."""
        self._matcher.follow([*answer.tolist(), token_id])
        return self._matcher.is_whole
