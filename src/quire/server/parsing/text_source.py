"""An answer's text as it arrives, and the smallest steps of reading it.

Readers are generators over a TextSource: they read straight on, as if all the text were there, and
yield where they have to wait for more. So how the text was cut cannot matter. Each character is
looked at a bounded number of times, and little is held: at most MAX_ATTEMPT_CHARS of what may
turn out to be no tool call, MAX_SPACE_CHARS of space before a mark, and the beginning of a mark.
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

_SPACE_CHARS = " \t\r\n"
SPACE = re.compile(f"[{_SPACE_CHARS}]*")
NAME = re.compile(r"[A-Za-z0-9_.:-]*")
# Patterns here are one class of characters, repeated: they never go back, whatever the text is.


class MalformedCall(Exception):  # noqa: N818 - it steers the reader, and never leaves this room
    """The text does not go on as a tool call does; the source stands where it broke."""


class Marks:
    """Texts that something begins with, to be found in a text that is not complete yet."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self._whole = re.compile("|".join(map(re.escape, texts)))
        begun = {text[:length] for text in texts for length in range(1, len(text))}
        self._begun = re.compile(f"(?:{'|'.join(map(re.escape, sorted(begun)))})\\Z")
        self._longest = max(map(len, texts))

    def find(self, text: str, begin: int) -> int | None:
        """Where the first one begins."""
        match = self._whole.search(text, begin)
        return None if match is None else match.start()

    def partial(self, text: str, begin: int) -> int:
        """Where the text's tail begins that can still become one; its length if none can."""
        match = self._begun.search(text, max(begin, len(text) - self._longest + 1))
        return len(text) if match is None else match.start()


class TextSource:
    """Text that is fed in pieces and read by one reader.

    While an attempt is on, what is taken is also kept, so that it can come back as text.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0  # what is before has been taken
        self._closed = False
        self._attempt: list[str] | None = None
        self._room = 0  # characters that the attempt may still take

    def feed(self, piece: str) -> None:
        """More text."""
        self.text = self.text[self.at :] + piece
        self.at = 0

    def close(self) -> None:
        """No more text comes."""
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
        end = min(end, self.at + self._room)
        piece = self.text[self.at : end]
        self._attempt.append(piece)
        self._room -= end - self.at
        self.at = end
        if self._room == 0:
            raise MalformedCall
        return piece

    # Attempts

    def begin_attempt(self, before: str = "") -> None:
        """Keep what is taken from here on. before: what comes before it if it comes back."""
        self._attempt = [before]
        self._room = MAX_ATTEMPT_CHARS

    def end_attempt(self) -> str:
        """Stop keeping; returns what was kept."""
        kept, self._attempt = "".join(self._attempt or ()), None
        return kept

    def give_back(self) -> None:
        """End the attempt and have its text before what is left, as if nothing had been taken."""
        self.text, self.at = self.end_attempt() + self.text[self.at :], 0

    # Stages

    def peek(self, count: int = 1) -> Wait[str]:
        """The next characters, not taken; fewer only at the end."""
        while len(self.text) - self.at < count and not self._closed:
            yield
        return self.text[self.at : self.at + count]

    def peek_run(self, characters: re.Pattern[str], most: int) -> Wait[str]:
        """All that the pattern, a repeated class, matches, not taken.

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
        """The next character that is no white space, nothing taken; empty at the end.

        After more than MAX_SPACE_CHARS of white space it is one more of them.
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
        """Like `run`; returns what it took."""
        parts: list[str] = []
        yield from self.run(characters, parts.append)
        return "".join(parts)

    def skip_space(self) -> Wait[None]:
        """Take white space."""
        yield from self.run(SPACE)

    def until(self, marks: Marks, emit: Callable[[str], None]) -> Wait[str | None]:
        """Hand text on up to the first mark, which is not taken, or to the end.

        Returns the space right before the mark, taken but not handed on; None at the end.
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
        """Where the space before `end` begins, as far as it may be held."""
        earliest = max(self.at, end - MAX_SPACE_CHARS)
        while end > earliest and self.text[end - 1] in _SPACE_CHARS:
            end -= 1
        return end
