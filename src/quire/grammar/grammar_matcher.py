"""The grammar state of one answer: which tokens may come next, and whether it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.core.structured_outputs import TOO_SLOW

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from quire.array_types import Tokens

ENOUGH_MASKS = 20  # to know what they usually take: hostile grammars begin with quick ones
NO_EXTENSION = ("NoExtension", "NoExtensionBias")  # llguidance's words for: no token can follow
DEAD_END = "no text matches it that begins as this answer does"
_TERMINATED = (*NO_EXTENSION, "EndOfSentence")


class _Automaton:
    """Shared by all matchers of one grammar; while one computes a mask, others wait for it."""

    is_stuck = False
    num_masks = 0
    mask_seconds = 0.0  # of all of them


class Matcher:
    """One answer's position in its compiled grammar.

    state: llguidance's matcher, owned by this one. After a token that the grammar does not allow,
    or once the grammar becomes too costly to advance, no token is allowed any more and `problem`
    says why.
    """

    def __init__(self, state: LLMatcher) -> None:
        self._state = state
        self._automaton = _Automaton()
        self._given_up: str | None = None
        self._num_accepted = 0

    def copy(self) -> Matcher:
        """A matcher in the same state; both share the automaton that llguidance has computed."""
        copied = Matcher(self._state.deep_copy())
        copied._automaton = self._automaton
        copied._num_accepted = self._num_accepted
        return copied

    def advance_to(self, output_token_ids: Sequence[int] | Tokens) -> None:
        """Accept those of the output tokens [N] that it has not accepted yet."""
        for token_id in output_token_ids[self._num_accepted :]:
            self.accept(int(token_id))

    def accept(self, token_id: int) -> None:
        """Accept the next output token."""
        self._num_accepted += 1
        if not self._is_closed:
            self._state.consume_token(token_id)

    def token_bitmask(self) -> bytes:
        """The tokens that may come next: one bit per token id, lowest first, N / 8 bytes.

        End tokens are among them where the answer is complete.
        """
        if self._is_closed:
            return b""
        mask = self._state.compute_bitmask()
        return bytes(len(mask)) if self._state.is_error() else mask

    def give_up(self, problem: str, *, is_running: bool = False) -> None:
        """Allow no token any more.

        is_running: `token_bitmask` is still being called by a thread; then no other matcher of this
        grammar allows any either, since it would wait for that.
        """
        self._given_up = problem
        self._automaton.is_stuck |= is_running

    @property
    def mean_mask_seconds(self) -> float | None:
        """The mean time that masks of this grammar have taken; None while there are few."""
        seconds, count = self._automaton.mask_seconds, self._automaton.num_masks
        return None if count < ENOUGH_MASKS else seconds / count

    def record_mask(self, seconds: float) -> None:
        """Record how long a mask has taken."""
        self._automaton.num_masks += 1
        self._automaton.mask_seconds += seconds

    @property
    def _is_closed(self) -> bool:
        return self._given_up is not None or self._automaton.is_stuck

    @property
    def is_accepting(self) -> bool:
        """Whether the answer is complete if it ends here."""
        return not self._is_closed and self._state.is_accepting()

    @property
    def is_terminated(self) -> bool:
        """Whether the answer is complete and no token can follow."""
        is_stopped = not self._is_closed and self._state.is_stopped()
        return is_stopped and self._state.stop_reason() in _TERMINATED

    @property
    def problem(self) -> str | None:
        """The reason why no token is allowed any more; None if the grammar goes on."""
        if self._is_closed:
            return self._given_up or TOO_SLOW
        return _reason(self._state.get_error()) if self._state.is_error() else None


class ThoughtMatcher:
    """One answer's position in its grammar, before which a thought may stand, marked by plain text.

    A grammar that begins with any text could read a thought as text. So two grammars are followed,
    `answer` without the thought and `thought` with it, until it is certain whether the answer
    begins with the mark; where it does, `answer` does not count. marked: of any text that begins
    with the mark; prefix: of texts that may become it.
    """

    def __init__(
        self, answer: Matcher, thought: Matcher, *, marked: Matcher, prefix: Matcher
    ) -> None:
        self._both = answer, thought, marked, prefix
        self._certain: Matcher | None = None

    def copy(self) -> ThoughtMatcher:
        """A matcher in the same state."""
        answer, thought, marked, prefix = (matcher.copy() for matcher in self._both)
        copied = ThoughtMatcher(answer, thought, marked=marked, prefix=prefix)
        copied._decide()
        return copied

    def advance_to(self, output_token_ids: Sequence[int] | Tokens) -> None:
        """Accept those of the output tokens [N] that it has not accepted yet."""
        if self._certain is not None:
            self._certain.advance_to(output_token_ids)
            return
        for matcher in self._both:
            matcher.advance_to(output_token_ids)
        self._decide()

    def accept(self, token_id: int) -> None:
        """Accept the next output token."""
        for matcher in self._both if self._certain is None else (self._certain,):
            matcher.accept(token_id)
        if self._certain is None:
            self._decide()

    def token_bitmask(self) -> bytes:
        """The tokens that may come next: see `Matcher.token_bitmask`."""
        if self._certain is not None:
            return self._certain.token_bitmask()
        masks = [matcher.token_bitmask() for matcher in self._both]
        answer, thought, marked, prefix = (int.from_bytes(mask, "little") for mask in masks)
        allowed = answer & ~(marked & ~prefix) | thought
        return allowed.to_bytes(max(map(len, masks)), "little")

    def give_up(self, problem: str, *, is_running: bool = False) -> None:
        """Allow no token any more: see `Matcher.give_up`."""
        for matcher in self._both:
            matcher.give_up(problem, is_running=is_running)

    @property
    def mean_mask_seconds(self) -> float | None:
        """Of its answer's grammar: see `Matcher.mean_mask_seconds`."""
        return self._both[0].mean_mask_seconds

    def record_mask(self, seconds: float) -> None:
        """Record how long its masks have taken, together."""
        self._both[0].record_mask(seconds)

    @property
    def is_accepting(self) -> bool:
        """Whether the answer is complete if it ends here."""
        return any(matcher.is_accepting for matcher in self._open)

    @property
    def is_terminated(self) -> bool:
        """Whether the answer is complete and no token can follow."""
        return all(matcher.is_terminated for matcher in self._open)

    @property
    def problem(self) -> str | None:
        """The reason why no token is allowed any more; None if the grammar goes on."""
        problems = [matcher.problem for matcher in self._open]
        return None if None in problems else problems[0]

    @property
    def _open(self) -> list[Matcher]:
        """The matchers that decide what may come next: those that can go on, if one can."""
        both = list(self._both[:2]) if self._certain is None else [self._certain]
        return [matcher for matcher in both if matcher.problem is None] or both

    def _decide(self) -> None:
        """Find out whether it is certain that the answer begins with a thought, or that not."""
        answer, thought, marked, prefix = self._both
        if marked.is_accepting:
            self._certain = thought
        elif prefix.problem is not None:
            self._certain = answer


AnyMatcher = Matcher | ThoughtMatcher


def _reason(problem: str) -> str:
    """The reason in llguidance's message, without its drawing of the position."""
    lines = [line.strip() for line in problem.splitlines()]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = (causes or [lines[0]])[0].removesuffix(" <non-verbose/>")
    return DEAD_END if reason in NO_EXTENSION else reason
