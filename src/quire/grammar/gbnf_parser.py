"""Parses grammars in GBNF, as llama.cpp reads them, to trees of nodes.

What a grammar derives is left to gbnf_terminals.py and llguidance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from quire.grammar.schema_bounds import OverBoundsError

LAST_CODE_POINT = 0x10FFFF
_TOKEN = re.compile(
    r"(?P<skip>[ \t\r\n]+|\#[^\r\n]*)"
    r"|(?P<define>[\w-]+)[ \t]*::="
    r"|(?P<name>[\w-]+)"
    r'|"(?P<literal>(?:\\.|[^"\\])*+)"'
    r"|\[(?P<chars>(?:\\.|[^\]\\])*+)\]"
    r"|(?P<repeat>[*+?]|\{\s*+\d{1,9}\s*+(?:,\s*+\d{0,9}\s*+)?\})"
    r"|(?P<sign>[()|.])",
    re.DOTALL,
)
_CHAR = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([nrt\\\"\[\]])|([^\\])",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class Node(msgspec.Struct, eq=False):
    """A part of a rule. Each is another object, also where two look alike."""


class Chars(Node):
    """One character of those in `ranges` of code points, both ends included, or of all others."""

    ranges: list[tuple[int, int]]
    is_negated: bool = False


class Literal(Node):
    """Exactly this text."""

    text: str


class Ref(Node):
    """A rule, by its name."""

    name: str


class Sequence(Node):
    """One part after the other."""

    parts: list[Node]


class Either(Node):
    """One of several."""

    options: list[Node]


class Repeat(Node):
    """A part several times. most: None for any number."""

    part: Node
    least: int
    most: int | None


def parse_gbnf(text: str) -> dict[str, Node]:
    """The rules by their names. Raises OverBoundsError, which says what is wrong, and where."""
    rules: dict[str, Node] = {}
    parser = _Parser(text)
    while parser.kind:
        name = parser.take("define", "a rule, such as root ::= ...")
        rules[name] = parser.options()  # a later one takes the place of an earlier one
    if "root" not in rules:
        raise OverBoundsError("must be a GBNF grammar: it has no rule root; add it")
    for name in parser.used:
        if name not in rules:
            raise OverBoundsError(f"must be a GBNF grammar: it has no rule {name[:40]}; add it")
    return rules


class _Parser:
    """Reads tokens one by one. kind: of the next token; empty at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._read()
        self.used: dict[str, None] = {}  # names of rules, in their order
        self._next()

    def _read(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if found is None:
                raise self._wrong("what GBNF does not know", at)
            kind = found.lastgroup or ""
            if kind != "skip":
                yield kind, found[kind], at
            at = found.end()

    def _next(self) -> None:
        self.kind, self._token, self._at = next(self._tokens, ("", "", len(self._text)))

    def _wrong(self, problem: str, at: int) -> OverBoundsError:
        line = self._text.count("\n", 0, at) + 1
        where = f"at {self._text[at : at + 20]!r}" if at < len(self._text) else "at the end"
        return OverBoundsError(f"must be a GBNF grammar: line {line}: {problem} {where}")

    def take(self, kind: str, wanted: str) -> str:
        """The next token, which has to be of this kind."""
        if self.kind != kind:
            raise self._wrong(f"{wanted} is missing", self._at)
        token = self._token
        self._next()
        return token

    def _takes(self, sign: str) -> bool:
        """Whether the next token is this sign, which is then taken."""
        is_next = self.kind == "sign" and self._token == sign
        if is_next:
            self._next()
        return is_next

    def options(self) -> Node:
        """Sequences with | between."""
        found = [self._sequence()]
        while self._takes("|"):
            found.append(self._sequence())
        return found[0] if len(found) == 1 else Either(found)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (part := self._part()) is not None:
            while self.kind == "repeat":
                part = Repeat(part, *_counts(self._token))
                self._next()
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(parts)

    def _part(self) -> Node | None:
        token, at = self._token, self._at
        if self._takes("("):
            inner = self.options()
            if not self._takes(")"):
                raise self._wrong(") is missing", self._at)
            return inner
        if self._takes("."):
            return Chars([(0, LAST_CODE_POINT)])
        match self.kind:
            case "name":
                part: Node = Ref(token)
                self.used[token] = None
            case "literal":
                part = Literal("".join(chr(point) for point, _ in self._points(token, at)))
            case "chars":
                part = self._chars(token, at)
            case _:
                return None
        self._next()
        return part

    def _points(self, text: str, at: int) -> Iterator[tuple[int, int]]:
        """Each character's code point and end, in a text that begins behind the character `at`."""
        end = 0
        while end < len(text):
            char = _CHAR.match(text, end)
            if char is None:
                raise self._wrong("an unknown escape", at + 1 + end)
            code = char[1] or char[2] or char[3]
            plain = _ESCAPES.get(char[4], char[4]) if char[4] else char[5]
            point = int(code, 16) if code else ord(plain)
            if point > LAST_CODE_POINT or 0xD800 <= point < 0xE000:
                raise self._wrong("no character", at + 1 + end)
            end = char.end()
            yield point, end

    def _chars(self, text: str, at: int) -> Chars:
        """A class. A dash at its end, or behind a range, is itself; so is one as an escape."""
        is_negated, text = text.startswith("^"), text.removeprefix("^")
        points, ranges = self._points(text, at + is_negated), list[tuple[int, int]]()
        for low, end in points:
            high = low
            if text[end : end + 1] == "-" and end + 1 < len(text):
                next(points)
                high, _ = next(points)
            if low > high:
                raise self._wrong("a range from a higher to a lower character", at)
            ranges.append((low, high))
        if not ranges and not is_negated:
            raise self._wrong("a class without a character", at)
        return Chars(ranges, is_negated) if ranges else Chars([(0, LAST_CODE_POINT)])


def _counts(token: str) -> tuple[int, int | None]:
    """The least and the most repetitions of *, +, ? or {2,3}."""
    if token in "*+?":
        return int(token == "+"), 1 if token == "?" else None
    least, comma, most = "".join(token[1:-1].split()).partition(",")
    return int(least), int(most) if most else None if comma else int(least)
