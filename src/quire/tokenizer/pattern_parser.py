"""Parses the regular expressions of the `tokenizers` library into alternatives and pieces.

Only what is needed to bound the time of a match; what is not understood is refused.
"""

from __future__ import annotations

import re
from math import inf

_OPENING = re.compile(r"\((?:\?(<[=!]|<\w+>|[:>=!]|[im-]*:))?")
_COUNT = re.compile(r"\{(\d{0,9}+)(,?)(\d{0,9}+)\}")
_ESCAPE = re.compile(
    r"\\(?:[pP]\{[^}]{0,64}\}|x\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.S
)
_CLASS = re.compile(r"\[\^?(?:\[:\^?\w+:\]|&&|\\[pP]\{[^}]{0,64}\}|\\.|[^\]\[\\])++\]", re.S)
_KNOWN_ESCAPES = frozenset("pPxudDsSwWhHnrtfvaebBAzZG")
_LOOKAROUND = frozenset({"=", "!", "<=", "<!"})
_MAX_DEPTH = 32


class UnknownPatternError(Exception):
    """The expression has something that this file does not understand."""


class Piece:
    """A character or class of characters, or a group if it has `inner`.

    text: its source without the repetition. looks: a lookaround. least, most: repetitions.
    is_lazy: as few as possible are tried first.
    """

    def __init__(self) -> None:
        self.text = ""
        self.inner: list[list[Piece]] | None = None
        self.looks = False
        self.least, self.most = 1, 1.0
        self.is_lazy = False


def parse(expression: str) -> list[list[Piece]]:
    """Its alternatives, each a list of pieces. Raises UnknownPatternError."""
    return _Parser(expression).complete()


class _Parser:
    """Reads one expression from left to right into nested lists."""

    def __init__(self, expression: str) -> None:
        self._text, self._at = expression, 0

    def complete(self) -> list[list[Piece]]:
        """The alternatives of the complete expression."""
        alternatives = self._alternatives(0)
        if self._at != len(self._text):
            raise UnknownPatternError
        return alternatives

    def _alternatives(self, depth: int) -> list[list[Piece]]:
        if depth > _MAX_DEPTH:
            raise UnknownPatternError
        found: list[list[Piece]] = [[]]
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                found.append([])
            else:
                found[-1].append(self._piece(depth))
        return found

    def _piece(self, depth: int) -> Piece:
        piece, begin = Piece(), self._at
        if (opening := self._take(_OPENING)) is not None:
            if self._text[self._at : self._at + 1] == "?":
                raise UnknownPatternError
            piece.looks = opening[1] in _LOOKAROUND
            piece.inner = self._alternatives(depth + 1)
            if self._text[self._at : self._at + 1] != ")":
                raise UnknownPatternError
            self._at += 1
        elif self._text[self._at] == "[":
            self._must_take(_CLASS)
        elif self._text[self._at] == "\\":
            self._check_escape(self._must_take(_ESCAPE)[0][1])
        elif self._text[self._at] in "*+?{}]":
            raise UnknownPatternError
        else:
            self._at += 1
        piece.text = self._text[begin : self._at]
        self._repetition(piece)
        return piece

    def _repetition(self, piece: Piece) -> None:
        sign = self._text[self._at : self._at + 1]
        counts: tuple[int, float] = (1, 1)
        if sign in ("*", "+", "?"):
            self._at += 1
            counts = (int(sign == "+"), 1 if sign == "?" else inf)
        elif sign == "{":
            counts = self._counts(*self._must_take(_COUNT).groups())
        if counts != (1, 1) and self._text[self._at : self._at + 1] == "?":
            self._at += 1
            piece.is_lazy = True
        if self._text[self._at : self._at + 1] in ("*", "+", "?", "{") and counts != (1, 1):
            raise UnknownPatternError
        piece.least, piece.most = counts

    def _counts(self, low: str, comma: str, high: str) -> tuple[int, float]:
        if not comma and self._text[self._at : self._at + 1] == "?":
            raise UnknownPatternError  # the library reads x{n}? as (?:x{n})?, others as x{n}
        if not low + high or (high and int(high) < int(low or 0)):
            raise UnknownPatternError  # plain text, or counts in the other order
        least = int(low or 0)
        return least, (int(high) if high else inf) if comma else least

    @staticmethod
    def _check_escape(char: str) -> None:
        if char.isalnum() and char not in _KNOWN_ESCAPES:
            raise UnknownPatternError  # such as a reference to a group

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _must_take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = self._take(pattern)
        if match is None:
            raise UnknownPatternError
        return match
