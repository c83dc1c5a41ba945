"""The token mask of a request with structured outputs: which tokens its grammar bans next.

Owns how a grammar combines with stop tokens and ignored end tokens, and how long its masks may
take; how long those of one caller may, is in caller_budgets.py. The grammar itself is followed by a
matcher (quire.grammar).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from quire.array_types import Flags, Ints, Tokens
from quire.core.structured_outputs import TOO_MUCH_FOR_CALLER, TOO_SLOW
from quire.sampling.caller_budgets import StepMasks
from quire.sampling.mask_thread import MaskThread

# Seconds of processor time for one request's grammar, while all others wait: at once, and for each
# of many tokens. Usual grammars take 0.1 ms, ambiguous ones with 100,000 tokens to choose from 5.
# To accept the token that is drawn counts as well; it takes no longer than the mask before it.
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

    def give_up(self, problem: str, *, is_running: bool = False) -> None:
        """Allow no token any more. is_running: its mask is still being computed by a thread."""

    @property
    def mean_mask_seconds(self) -> float | None:
        """The mean time that masks of its grammar have taken; None while there are few."""

    def record_mask(self, seconds: float) -> None:
        """Record how long a mask has taken."""

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
    answer ends when nothing else could follow. caller: whom its masks are counted for.
    """

    def __init__(
        self, matcher: Matcher, *, stop_token_ids: Ints, banned_ids: Ints, caller: str = ""
    ) -> None:
        self.caller = caller
        self._matcher = matcher
        self._stops = stop_token_ids
        self._banned_ids = banned_ids
        self._allowed = b""  # bits of the tokens that may come next
        self._seconds_left = MASK_SECONDS
        self._seconds_to_accept = 0.0  # the token before

    def compute_mask(self, output: Tokens, step: StepMasks) -> None:
        """Find the tokens that may follow the output tokens [N], if its caller may have masks."""
        if not step.may_start(self.caller, self._matcher.mean_mask_seconds):
            self._give_up(TOO_MUCH_FOR_CALLER)
            return
        begin = time.thread_time()
        self._matcher.advance_to(output)
        self._allowed = self._matcher.token_bitmask()
        seconds = time.thread_time() - begin
        self._matcher.record_mask(seconds)
        step.add(self.caller, seconds + self._seconds_to_accept)

    def spend(self, seconds: float | None) -> None:
        """Count the time of a mask. None: it is still being computed, and given up."""
        if seconds is None:
            self._give_up(TOO_SLOW, is_running=True)
            return
        self._seconds_left = min(MASK_SECONDS, self._seconds_left + MEAN_MASK_SECONDS) - seconds
        # To accept a token may take as long again and cannot be given up: llguidance holds the GIL,
        # or works in threads of its own (for several matchers), whose time is not known.
        if self._seconds_left < seconds:
            self._give_up(TOO_SLOW)

    def _give_up(self, problem: str, *, is_running: bool = False) -> None:
        self._matcher.give_up(problem, is_running=is_running)
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
        self._seconds_to_accept = time.thread_time() - begin
        self._seconds_left -= self._seconds_to_accept
        return self._matcher.is_terminated


def compute_masks(
    thread: MaskThread,
    grammars: Sequence[GrammarConstraint],
    outputs: Sequence[Tokens],
    step: StepMasks,
) -> None:
    """Compute the masks of grammars [N] after these output tokens; those that cost too much end."""
    work = [
        partial(grammar.compute_mask, output, step)
        for grammar, output in zip(grammars, outputs, strict=True)
    ]

    def report(index: int, seconds: float | None) -> None:
        grammars[index].spend(seconds)
        if seconds is None:
            step.add(grammars[index].caller, MASK_SECONDS)

    thread.run(work, MASK_SECONDS, report)
    step.end()


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
