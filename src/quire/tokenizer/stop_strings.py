"""Matching of stop strings in a text that arrives in pieces.

Knuth, Morris and Pratt's automaton, one per stop string: each character is looked at once, and
the automaton's state is the length of the text's tail that could still become a match. It knows
no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopString:
    """One stop string and how much of it the text so far ends with."""

    def __init__(self, text: str) -> None:
        assert text
        self.text = text
        self.matched = 0  # the text so far ends with this many first characters of the string
        self._fallback = _fallbacks(text)

    def feed(self, piece: str, *, may_match: bool) -> int | None:
        """Read on. Returns where in `piece` the first match ends, or None.

        may_match: where False, a match is passed over as if it had not been one. The state after
        a match is of no meaning.
        """
        text, matched, position = self.text, self.matched, 0
        while position < len(piece):
            if matched == 0:  # jump at the speed of C to where a match can begin
                position = piece.find(text[0], position)
                if position < 0:
                    break
            while matched and piece[position] != text[matched]:
                matched = self._fallback[matched]
            matched += piece[position] == text[matched]
            position += 1
            if matched == len(text):
                if may_match:
                    return position
                matched = self._fallback[matched]
        self.matched = matched
        return None


def _fallbacks(text: str) -> list[int]:
    """For each length n, the longest proper prefix of text[:n] that is also its suffix."""
    fallback = [0, 0]
    matched = 0
    for character in text[1:]:
        while matched and character != text[matched]:
            matched = fallback[matched]
        matched += character == text[matched]
        fallback.append(matched)
    return fallback


class StopMatcher:
    """Holds back the tail of a text that could become a stop string, and finds the first one.

    The first match is the one that ends first; of those that end at the same character, the
    longest. So the result is the same however the text is cut into pieces.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool) -> None:
        self._strings = [StopString(text) for text in stop]
        self._include_stop = include_stop
        self._held = ""
        self.found: str | None = None

    def feed(self, piece: str, *, may_match: bool = True) -> str:
        """Take new text; returns what is now safe to send, nothing after a stop string."""
        if self.found is not None:
            return ""
        ends = [(s.feed(piece, may_match=may_match), -len(s.text), s.text) for s in self._strings]
        matches = [(end, length, text) for end, length, text in ends if end is not None]
        num_held, text, self._held = len(self._held), self._held + piece, ""
        if matches:
            end, _, self.found = min(matches)
            end += num_held
            return text[: end if self._include_stop else end - len(self.found)]
        held = max((string.matched for string in self._strings), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """The text held back, when no more comes."""
        held, self._held = self._held, ""
        return held
