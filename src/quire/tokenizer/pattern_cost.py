"""An upper bound for the attempts to match a regular expression at one place of a text.

The library's expressions backtrack: where the rest of a match fails, each other choice is tried.
`a*b` takes as many attempts as there are a's, `a*a*b` their square, `(a*)*b` two to their number.
Only a repetition with nothing behind it that may fail takes one.

The bound is loose, and anything that is not understood counts as unbounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf

_OPENING = re.compile(r"\((?:\?(<[=!]|<\w+>|[:>=!]|[im-]*:))?")
_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_ESCAPE = re.compile(
    r"\\(?:[pP]\{[^}]*\}|x\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.S
)
_CLASS = re.compile(r"\[\^?(?:\[:\^?\w+:\]|&&|\\[pP]\{[^}]*\}|\\.|[^\]\[\\])+\]", re.S)
_KNOWN_ESCAPES = frozenset("pPxudDsSwWhHnrtfvaebBAzZG")
_LOOKAROUND = frozenset({"=", "!", "<=", "<!"})
_MAX_DEPTH = 32


def num_attempts(expressions: Iterable[str], num_chars: int) -> float:
    """Attempts of all expressions together in a text of so many characters; inf: unknown."""
    try:
        return sum(_Parser(expression).attempts(num_chars) for expression in expressions)
    except _UnknownError:
        return inf


class _UnknownError(Exception):
    """The expression has something that this file does not understand."""


class _Parser:
    """Reads one expression from left to right into nested lists, and adds up from the right."""

    def __init__(self, expression: str) -> None:
        self._text, self._at = expression, 0

    def attempts(self, num_chars: int) -> float:
        """Attempts of the complete expression. Raises _UnknownError."""
        alternatives = self._alternatives(0)
        if self._at != len(self._text):
            raise _UnknownError
        return _attempts(alternatives, num_chars, may_fail=False)

    def _alternatives(self, depth: int) -> list[list[_Piece]]:
        if depth > _MAX_DEPTH:
            raise _UnknownError
        found: list[list[_Piece]] = [[]]
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                found.append([])
            else:
                found[-1].append(self._piece(depth))
        return found

    def _piece(self, depth: int) -> _Piece:
        piece = _Piece()
        if (opening := self._take(_OPENING)) is not None:
            if self._text[self._at : self._at + 1] == "?":
                raise _UnknownError
            piece.looks = opening[1] in _LOOKAROUND
            piece.inner = self._alternatives(depth + 1)
            if self._text[self._at : self._at + 1] != ")":
                raise _UnknownError
            self._at += 1
        elif self._text[self._at] == "[":
            self._must_take(_CLASS)
        elif self._text[self._at] == "\\":
            self._check_escape(self._must_take(_ESCAPE)[0][1])
        elif self._text[self._at] in "*+?{}]":
            raise _UnknownError
        else:
            self._at += 1
        piece.least, piece.most = self._repetition()
        return piece

    def _repetition(self) -> tuple[int, float]:
        sign = self._text[self._at : self._at + 1]
        counts: tuple[int, float] = (1, 1)
        if sign in ("*", "+", "?") and sign:
            self._at += 1
            counts = (int(sign == "+"), 1 if sign == "?" else inf)
        elif sign == "{":
            counts = self._counts(*self._must_take(_COUNT).groups())
        if counts != (1, 1) and self._text[self._at : self._at + 1] == "?":
            self._at += 1  # as few as possible: the same choices in another order
        if self._text[self._at : self._at + 1] in ("*", "+", "?", "{") and counts != (1, 1):
            raise _UnknownError
        return counts

    def _counts(self, low: str, comma: str, high: str) -> tuple[int, float]:
        if not comma and self._text[self._at : self._at + 1] == "?":
            raise _UnknownError  # the library reads x{n}? as (?:x{n})?, others as x{n}
        if not low + high or (high and int(high) < int(low or 0)):
            raise _UnknownError  # plain text, or counts in the other order
        least = int(low or 0)
        return least, (int(high) if high else inf) if comma else least

    @staticmethod
    def _check_escape(char: str) -> None:
        if char.isalnum() and char not in _KNOWN_ESCAPES:
            raise _UnknownError  # such as a reference to a group

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _must_take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = self._take(pattern)
        if match is None:
            raise _UnknownError
        return match


class _Piece:
    """A character, or a group if it has `inner`; looks: a lookaround; least, most: repetitions."""

    def __init__(self) -> None:
        self.inner: list[list[_Piece]] | None = None
        self.looks = False
        self.least, self.most = 1, 1.0

    def attempts(self, num_chars: int, *, may_fail: bool) -> float:
        """may_fail: something behind it may."""
        if self.inner is None:
            few, many = min(self.least, num_chars), min(self.most, num_chars)
            return many - few + 1 if may_fail else 1
        if self.most > 1:
            return inf
        own = _attempts(self.inner, num_chars, may_fail=may_fail or self.looks)
        return own + (self.least == 0 and may_fail)


def _attempts(alternatives: list[list[_Piece]], num_chars: int, *, may_fail: bool) -> float:
    return sum(_sequence_attempts(pieces, num_chars, may_fail) for pieces in alternatives)


def _sequence_attempts(pieces: list[_Piece], num_chars: int, may_fail: bool) -> float:
    before_end, at_end = 1.0, 0.0
    for piece in reversed(pieces):
        own = piece.attempts(num_chars, may_fail=may_fail)
        if piece.least or may_fail:
            before_end *= own
        else:  # it is tried once, whatever came before
            at_end += own
        may_fail = may_fail or piece.least > 0
    return before_end + at_end
