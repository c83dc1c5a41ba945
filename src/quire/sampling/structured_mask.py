"""The token mask of a request with structured outputs: which tokens its grammar bans next.

Owns how a grammar combines with stop tokens and ignored end tokens. The grammar itself is followed
by a matcher (quire.grammar).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from quire.array_types import Flags, Ints, Tokens


class Matcher(Protocol):
    """Interface of a grammar matcher: an answer's position in its grammar."""

    def advance_to(self, output_token_ids: Tokens) -> None:
        """Accept those of the output tokens [N] that it has not accepted yet."""

    def accept(self, token_id: int) -> None:
        """Accept the next output token."""

    def token_bitmask(self) -> bytes:
        """The tokens that may come next, one bit per token id, lowest first."""

    @property
    def is_accepting(self) -> bool:
        """Whether the answer is complete if it ends here."""

    @property
    def is_terminated(self) -> bool:
        """Whether the answer is complete and no token can follow."""


class GrammarConstraint:
    """The token mask of one row's structured output, from its grammar.

    stop_token_ids: allowed wherever the answer is complete, as the model's end tokens are, and
    where the grammar has them as text. banned_ids: end tokens to ignore (ignore_eos); such an
    answer ends when nothing else could follow.
    """

    def __init__(self, matcher: Matcher, *, stop_token_ids: Ints, banned_ids: Ints) -> None:
        self._matcher = matcher
        self._stops = stop_token_ids
        self._banned_ids = banned_ids

    def banned(self, output: Tokens, size: int) -> Flags:
        """Flags [size] of the tokens that may not follow the output tokens [N]."""
        self._matcher.advance_to(output)
        allowed = np.frombuffer(self._matcher.token_bitmask(), np.uint8)
        bits = np.unpackbits(allowed, bitorder="little")[:size]
        banned = np.ones(size, np.bool_)  # ids without a token as well
        np.equal(bits, 0, out=banned[: len(bits)])
        if len(self._stops) and self._matcher.is_accepting:
            banned[self._stops] = False
        banned[self._banned_ids] = True
        return banned

    def accept_token(self, token_id: int) -> bool:
        """Accept the token that was drawn after `banned`; returns whether none can follow."""
        self._matcher.accept(token_id)
        return self._matcher.is_terminated


def advance_grammars(
    grammars: Mapping[int, GrammarConstraint], rows: Ints, token_ids: Tokens | Ints
) -> set[int]:
    """Accept the tokens drawn [N] for rows [N]; returns the rows where no token can follow."""
    if not grammars:
        return set()
    return {
        row
        for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True)
        if row in grammars and grammars[row].accept_token(token_id)
    }
