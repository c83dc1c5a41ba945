"""The grammar state of one answer: which tokens may come next, and whether it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher

_TERMINATED = ("NoExtension", "NoExtensionBias", "EndOfSentence")


class Matcher:
    """One answer's position in its compiled grammar.

    state: llguidance's matcher, owned by this one. After a token that the grammar does not allow,
    or once the grammar becomes too costly to advance, no token is allowed any more and `problem`
    says why.
    """

    def __init__(self, state: LLMatcher) -> None:
        self._state = state
        self._num_accepted = 0

    def copy(self) -> Matcher:
        """A matcher in the same state; both share the automaton that llguidance has computed."""
        copied = Matcher(self._state.deep_copy())
        copied._num_accepted = self._num_accepted
        return copied

    def advance_to(self, output_token_ids: Sequence[int]) -> None:
        """Accept those of the output tokens [N] that it has not accepted yet."""
        rest = [int(token_id) for token_id in output_token_ids[self._num_accepted :]]
        self._num_accepted += len(rest)
        if rest:
            self._state.consume_tokens(rest)

    def token_bitmask(self) -> bytes:
        """The tokens that may come next: one bit per token id, lowest first, N / 8 bytes.

        End tokens are among them where the answer is complete.
        """
        mask = self._state.compute_bitmask()
        return mask if self.problem is None else bytes(len(mask))

    @property
    def is_accepting(self) -> bool:
        """Whether the answer is complete if it ends here."""
        return self._state.is_accepting()

    @property
    def is_terminated(self) -> bool:
        """Whether the answer is complete and no token can follow."""
        return self._state.is_stopped() and self._state.stop_reason() in _TERMINATED

    @property
    def problem(self) -> str | None:
        """The reason why no token is allowed any more; None if the grammar goes on."""
        return self._state.get_error() if self._state.is_error() else None
