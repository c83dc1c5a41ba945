"""The literal characters of regular expressions, and the runs in which they follow each other."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

_TOKEN = re.compile(
    r"\\(?:x\{([0-9a-fA-F]{1,8})\}|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})"
    r"|([0-7]{2,3})|[pP]\{[^}]{0,64}\}|(.))|(.)",
    re.DOTALL,
)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_OPERATORS = "()|*+?{}^$."  # outside classes


def literal_characters(expressions: Iterable[str]) -> list[str]:
    """Each character once, those of classes, escapes and ends of ranges included."""
    found = (char for expression in expressions for char in _literals(expression))
    return list(dict.fromkeys(char for char in found if char))


def literal_runs(expressions: Iterable[str]) -> list[str]:
    """Each sequence of 2 or more characters between operators."""
    groups = (itertools.groupby(_literals(expression), bool) for expression in expressions)
    runs = ("".join(run) for group in groups for is_run, run in group if is_run)
    return list(dict.fromkeys(run for run in runs if len(run) > 1))


def _literals(expression: str) -> Iterator[str]:
    """Each literal character in its order; "" where something else is in between."""
    depth = 0
    for match in _TOKEN.finditer(expression):
        plain = match[6]
        if plain in ("[", "]"):
            depth = depth + 1 if plain == "[" else max(0, depth - 1)
            yield ""
        elif plain is not None:
            yield "" if plain in _OPERATORS and not depth else plain
        else:
            yield _escaped(match)


def _escaped(match: re.Match[str]) -> str:
    """The character of an escape; "" for classes and anchors."""
    if code := match[1] or match[2] or match[3]:
        return _character(int(code, 16))
    if match[4]:
        return _character(int(match[4], 8))
    char = match[5] or ""
    return _CONTROLS.get(char, "" if char.isalnum() else char)


def _character(code: int) -> str:
    """The character of a code point; "" where no text can have it."""
    return chr(code) if code < 0xD800 or 0xE000 <= code <= 0x10FFFF else ""
