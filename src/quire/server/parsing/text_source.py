"""TextSource: an answer's text as it arrives, and the basic steps of reading it.

Readers are generators over a TextSource: they read as if all the text were there, and yield where
they have to wait for more. So it does not matter how the text is cut. Each character is looked at a
bounded number of times, and little is held back: at most MAX_ATTEMPT_CHARS of a possible tool call,
MAX_SPACE_CHARS of space before a mark, and the start of a mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Wait = Generator[None, None, T]
"""A reader: it yields to wait for more text, and returns a T."""

MAX_ATTEMPT_CHARS = 16 << 10
MAX_SPACE_CHARS = 64

SPACE_CHARS = " \t\r\n"
SPACE = re.compile(f"[{SPACE_CHARS}]*")
NAME = re.compile(r"[A-Za-z0-9_.:-]*")
# Patterns here are one repeated class of characters, so matching never backtracks.


class MalformedCall(Exception):  # noqa: N818 - it steers the reader, and never leaves this folder
    """The text is not a tool call; the source stands at the first wrong character."""


class Marks:
    """Fixed texts to be found in a text that is not complete yet, such as "<tool_call>"."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self._complete = re.compile("|".join(map(re.escape, texts)))
        starts = {text[:length] for text in texts for length in range(1, len(text))}
        self._start = re.compile(f"(?:{'|'.join(map(re.escape, sorted(starts)))})\\Z")
        self._longest = max(map(len, texts))

    def find(self, text: str, begin: int) -> int | None:
        """The position of the first mark, or None."""
        match = self._complete.search(text, begin)
        return None if match is None else match.start()

    def partial(self, text: str, begin: int) -> int:
        """The start of the tail that may become a mark; the text's length if there is none."""
        match = self._start.search(text, max(begin, len(text) - self._longest + 1))
        return len(text) if match is None else match.start()


class TextSource:
    """Text that is fed in pieces and read by one reader.

    During an attempt, text that is taken is also stored, so that it can be given back.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0  # the text before it has been taken
        self._closed = False
        self._attempt: list[str] | None = None
        self._attempt_left = 0  # characters that the attempt may still take

    def feed(self, piece: str) -> None:
        """Add text that has arrived."""
        self.text = self.text[self.at :] + piece
        self.at = 0

    def close(self) -> None:
        """Mark the end of the text."""
        self._closed = True

    def more(self) -> Wait[bool]:
        """Wait for a character that was not taken yet; False at the end of the text."""
        while self.at == len(self.text):
            if self._closed:
                return False
            yield
        return True

    def take_to(self, end: int) -> str:
        """Take the text before `end`. Raises MalformedCall if an attempt grows too long."""
        if self._attempt is None:
            piece, self.at = self.text[self.at : end], end
            return piece
        end = min(end, self.at + self._attempt_left)
        piece = self.text[self.at : end]
        self._attempt.append(piece)
        self._attempt_left -= end - self.at
        self.at = end
        if self._attempt_left == 0:
            raise MalformedCall
        return piece

    # Attempts

    def begin_attempt(self, before: str = "") -> None:
        """Store what is taken from here on. before: text that is given back with it."""
        self._attempt = [before]
        self._attempt_left = MAX_ATTEMPT_CHARS

    def end_attempt(self) -> str:
        """Stop storing; returns what was stored."""
        stored, self._attempt = "".join(self._attempt or ()), None
        return stored

    def give_back(self) -> None:
        """End the attempt and put its text back, as if nothing had been taken."""
        self.text, self.at = self.end_attempt() + self.text[self.at :], 0

    # Stages

    def peek(self, count: int = 1) -> Wait[str]:
        """The next characters without taking them; fewer only at the end."""
        while len(self.text) - self.at < count and not self._closed:
            yield
        return self.text[self.at : self.at + count]

    def peek_run(self, characters: re.Pattern[str], most: int) -> Wait[str]:
        """All that the pattern, a repeated class, matches, without taking it.

        Raises MalformedCall if that is more than `most` characters.
        """
        while True:
            match = characters.match(self.text, self.at)
            assert match is not None
            if match.end() - self.at > most:
                raise MalformedCall
            if match.end() < len(self.text) or self._closed:
                return match[0]
            yield

    def peek_past_space(self) -> Wait[str]:
        """The next character that is not white space, without taking it; empty at the end.

        After more than MAX_SPACE_CHARS of white space, a space.
        """
        while True:
            match = SPACE.match(self.text, self.at, self.at + MAX_SPACE_CHARS + 1)
            assert match is not None
            if match.end() - self.at > MAX_SPACE_CHARS:
                return " "
            if match.end() < len(self.text):
                return self.text[match.end()]
            if self._closed:
                return ""
            yield

    def accept(self, literal: str) -> Wait[bool]:
        """Take `literal` if it is next; else take nothing."""
        while not self.text.startswith(literal, self.at):
            if self._closed or not literal.startswith(self.text[self.at : self.at + len(literal)]):
                return False
            yield
        self.take_to(self.at + len(literal))
        return True

    def expect(self, literal: str) -> Wait[None]:
        """Take `literal`. Raises MalformedCall if something else is next."""
        if not (yield from self.accept(literal)):
            raise MalformedCall

    def run(
        self, characters: re.Pattern[str], emit: Callable[[str], None] | None = None
    ) -> Wait[None]:
        """Take all that the pattern, a repeated class, matches; `emit` gets each part of it."""
        while (yield from self.more()):
            match = characters.match(self.text, self.at)
            assert match is not None
            if match.end() > self.at:
                piece = self.take_to(match.end())
                if emit is not None:
                    emit(piece)
            if self.at < len(self.text):
                return

    def word(self, characters: re.Pattern[str]) -> Wait[str]:
        """Take characters as `run` does and return them."""
        parts: list[str] = []
        yield from self.run(characters, parts.append)
        return "".join(parts)

    def skip_space(self) -> Wait[None]:
        """Skip white space."""
        yield from self.run(SPACE)

    def until(self, marks: Marks, emit: Callable[[str], None]) -> Wait[str | None]:
        """Pass text on up to the first mark, which is not taken, or to the end.

        Returns the space right before the mark, taken but not passed on; None at the end.
        """
        while True:
            mark = marks.find(self.text, self.at)
            end = marks.partial(self.text, self.at) if mark is None else mark
            text_end = self._without_space(end)
            if text_end > self.at:
                emit(self.take_to(text_end))
            if mark is not None:
                return self.take_to(mark)
            if self._closed:
                if self.at < len(self.text):
                    emit(self.take_to(len(self.text)))
                return None
            yield

    def _without_space(self, end: int) -> int:
        """The start of the white space before `end`, as far as it may be held back."""
        earliest = max(self.at, end - MAX_SPACE_CHARS)
        while end > earliest and self.text[end - 1] in SPACE_CHARS:
            end -= 1
        return end
