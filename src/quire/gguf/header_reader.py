"""Reads the values of a GGUF header one after the other, never past the file's end.

Each count and length is compared with the bytes that are left before anything is made of it, so
that a damaged file costs little time and memory.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import TypeAlias

Scalar: TypeAlias = int | float | bool | str
Value: TypeAlias = Scalar | Sequence[Scalar]

_LARGEST_HEADER = 1 << 28  # bytes; real ones have up to some 20 million
_MOST_ITEMS = 4_000_000  # of all lists together; vocabularies have up to a million
_LONGEST_NAME = 1024

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_BOOL, _TEXT, _LIST = 7, 8, 9
_LENGTH = struct.Struct("<Q")  # of a text


class DamagedHeaderError(ValueError):
    """Raised for a header that cannot be right. at: the byte after which that was found."""

    def __init__(self, problem: str, at: int) -> None:
        super().__init__(problem)
        self.at = at


class HeaderReader:
    """A position in a mapped file. at: the next byte; size: of the file."""

    def __init__(self, data: mmap.mmap | bytes, size: int) -> None:
        self._data, self.size, self.at = data, size, 0
        self._limit = min(size, _LARGEST_HEADER)
        self._items = 0

    def damaged(self, problem: str) -> DamagedHeaderError:
        """The error for something wrong here."""
        return DamagedHeaderError(problem, self.at)

    def number(self, code: str) -> int | float:
        """A number, by its code in `struct`."""
        begin = self._take(struct.calcsize(code))
        (found,) = struct.unpack_from(f"<{code}", self._data, begin)
        return found  # type: ignore[no-any-return]

    def count(self, least: int, most: int, what: str) -> int:
        """The number of entries that follow, each of at least this many bytes."""
        found = int(self.number("Q"))
        left = self._limit - self.at
        if found > most:
            raise self.damaged(f"it says that there are {found:,} {what}, more than {most:,}")
        if found * least > left:
            raise self.damaged(f"{found:,} {what} are to follow, but only {left:,} bytes do")
        return found

    def name(self) -> str:
        """The next name: a text of 1 to _LONGEST_NAME characters."""
        found = self._text()
        if not 0 < len(found) <= _LONGEST_NAME:
            raise self.damaged(f"a name has {len(found)} characters")
        return found

    def value(self) -> Value:
        """The next value, with its type in front."""
        kind = int(self.number("I"))
        return self._list() if kind == _LIST else self._scalar(kind)

    def _scalar(self, kind: int) -> Scalar:
        if kind == _TEXT:
            return self._text()
        if kind == _BOOL:
            return bool(self.number("B"))
        return self.number(self._code(kind))

    def _code(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise self.damaged(f"the unknown type {kind}")
        return _NUMBERS[kind]

    def _list(self) -> Sequence[Scalar]:
        kind = int(self.number("I"))
        code = "?" if kind == _BOOL else "Q" if kind == _TEXT else self._code(kind)
        count = self.count(struct.calcsize(code), _MOST_ITEMS - self._items, "items in a list")
        self._items += count
        if kind == _TEXT:
            return self._texts(count)
        begin = self._take(count * struct.calcsize(code))
        return struct.unpack_from(f"<{count}{code}", self._data, begin)

    def _text(self) -> str:
        return self._texts(1)[0]

    def _texts(self, count: int) -> list[str]:
        """Texts, each behind its length; a loop of its own, as vocabularies are long."""
        data, at, found = self._data, self.at, []
        for _ in range(count):
            if at + _LENGTH.size > self._limit:
                raise self.damaged("a text's length is not there")
            begin = at + _LENGTH.size
            at = begin + _LENGTH.unpack_from(data, at)[0]
            if at > self._limit:
                raise self.damaged(f"a text of {at - begin:,} bytes is to follow, not there")
            found.append(data[begin:at])
        self.at = at
        try:
            return [str(text, "utf-8") for text in found]
        except UnicodeDecodeError as error:
            raise self.damaged(f"a text is not UTF-8 ({error.reason})") from error

    def _take(self, num_bytes: int) -> int:
        """Skip this many bytes; returns where they begin."""
        begin = self.at
        if num_bytes > self._limit - begin:
            raise self.damaged(f"{num_bytes:,} bytes are to follow, which are not there")
        self.at = begin + num_bytes
        return begin
