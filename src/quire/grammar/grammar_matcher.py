"""Where one answer stands in its form: which tokens may come next, and whether it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher

_WHOLE = ("NoExtension", "NoExtensionBias", "EndOfSentence")


class Matcher:
    """Follows one answer. `state` is the library's, and belongs to this matcher alone.

    A token that the form does not let through, and a form that becomes too costly to follow, end
    it: from then on no token is allowed, and `problem` says why.
    """

    def __init__(self, state: LLMatcher) -> None:
        self._state = state
        self._num_taken = 0

    def copy(self) -> Matcher:
        """Another matcher at the same place; both share what the library has worked out."""
        copied = Matcher(self._state.deep_copy())
        copied._num_taken = self._num_taken
        return copied

    def follow(self, answer: Sequence[int]) -> None:
        """Take those of the answer's tokens [N] that it has not taken yet."""
        rest = [int(token_id) for token_id in answer[self._num_taken :]]
        self._num_taken += len(rest)
        if rest:
            self._state.consume_tokens(rest)

    def allowed(self) -> bytes:
        """The tokens that may come next, one bit for each id, the lowest first: N / 8 bytes.

        End tokens are among them where the answer is whole.
        """
        mask = self._state.compute_bitmask()
        return mask if self.problem is None else bytes(len(mask))

    @property
    def is_accepting(self) -> bool:
        """Whether the answer has its form if it ends here."""
        return self._state.is_accepting()

    @property
    def is_whole(self) -> bool:
        """Whether the answer has its form, and nothing can follow."""
        return self._state.is_stopped() and self._state.stop_reason() in _WHOLE

    @property
    def problem(self) -> str | None:
        """Why no token is allowed any more, if so."""
        return self._state.get_error() if self._state.is_error() else None
