"""The token mask of a request with structured outputs: which tokens its grammar bans next.

Owns how a grammar combines with stop tokens and ignored end tokens, and how long its masks may
take. The grammar itself is followed by a matcher (quire.grammar).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from quire.array_types import Flags, Ints, Tokens
from quire.sampling.mask_thread import MaskThread

# Seconds of processor time for one request's grammar, while all others wait: at once, and for each
# of many tokens. Usual grammars take 0.1 ms, ambiguous ones with 100,000 tokens to choose from 5.
MASK_SECONDS = 0.25
MEAN_MASK_SECONDS = 0.02


class Matcher(Protocol):
    """Interface of a grammar matcher: an answer's position in its grammar."""

    def advance_to(self, output_token_ids: Tokens) -> None:
        """Accept those of the output tokens [N] that it has not accepted yet."""

    def accept(self, token_id: int) -> None:
        """Accept the next output token."""

    def token_bitmask(self) -> bytes:
        """The tokens that may come next, one bit per token id, lowest first."""

    def give_up(self, *, is_running: bool) -> None:
        """Allow no token any more. is_running: its mask is still being computed by a thread."""

    @property
    def is_accepting(self) -> bool:
        """Whether the answer is complete if it ends here."""

    @property
    def is_terminated(self) -> bool:
        """Whether the answer is complete and no token can follow."""

    @property
    def problem(self) -> str | None:
        """The reason why no token is allowed any more; None if the grammar goes on."""


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
        self._allowed = b""  # bits of the tokens that may come next
        self._seconds_left = MASK_SECONDS

    def compute_mask(self, output: Tokens) -> None:
        """Find the tokens that may follow the output tokens [N]."""
        self._matcher.advance_to(output)
        self._allowed = self._matcher.token_bitmask()

    def spend(self, seconds: float | None) -> None:
        """Count the time of a mask. None: it is still being computed, and given up."""
        if seconds is not None:
            left = self._seconds_left + MEAN_MASK_SECONDS
            self._seconds_left = min(MASK_SECONDS, left) - seconds
        if seconds is None or self._seconds_left < 0.0:
            self._matcher.give_up(is_running=seconds is None)
            self._allowed = b""

    def banned(self, size: int) -> Flags:
        """Flags [size] of the tokens that may not come next, by the mask computed last."""
        allowed = np.frombuffer(self._allowed, np.uint8)
        bits = np.unpackbits(allowed, bitorder="little")[:size]
        banned = np.ones(size, np.bool_)  # ids without a token as well
        np.equal(bits, 0, out=banned[: len(bits)])
        if len(self._stops) and self._matcher.is_accepting:
            banned[self._stops] = False
        banned[self._banned_ids] = True
        return banned

    def accept_token(self, token_id: int) -> bool:
        """Accept the token that was drawn after `banned`; returns whether none can follow."""
        begin = time.thread_time()
        self._matcher.accept(token_id)
        self._seconds_left -= time.thread_time() - begin
        return self._matcher.is_terminated


def compute_masks(
    thread: MaskThread, grammars: Sequence[GrammarConstraint], outputs: Sequence[Tokens]
) -> None:
    """Compute the masks of grammars [N] after these output tokens; those that cost too much end."""
    work = [
        partial(grammar.compute_mask, output)
        for grammar, output in zip(grammars, outputs, strict=True)
    ]
    thread.run(work, MASK_SECONDS, lambda index, seconds: grammars[index].spend(seconds))


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
