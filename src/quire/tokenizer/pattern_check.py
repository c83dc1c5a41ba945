"""Refuses tokenizers whose regular expressions take exponential time on short texts.

The library's regular expressions backtrack: `(a+)+$` tries 2^n ways to match n letters. One match
is given up after ten million steps (a third of a second), but a text of 4,096 characters has places
for a hundred such matches. Texts that repeat one or two characters find out, before anybody is
served: those of the expressions themselves, and one of each kind of character.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from quire.errors import is_failure

if TYPE_CHECKING:
    import tokenizers

MAX_SECONDS = 0.05  # of processor time; usual expressions take less than a thousandth
_REPEATS = (12, 16, 20, 24, 30, 64)  # from one to the next an expression may take 250 times as long
_KINDS = "aA1 \n.é中"
_MAX_LITERALS = 12
_END = "!\0"  # after the repeated characters, so that a match of them alone fails at last
_REQUIRED = "=:;,-_#/@x"  # after that, as a text without a character that is required fails at once
_EXPRESSION = re.compile(rb'"Regex":"((?:[^"\\]|\\.)*)"')
_REPEATED_GROUP = re.compile(rb"\)[*+{]")


def slow_pattern(backend: tokenizers.Tokenizer) -> str | None:
    """Which part of a tokenizer is too slow, with its expressions; None: none is."""
    normalizer, splitter = backend.normalizer, backend.pre_tokenizer
    parts: list[tuple[str, Any, Callable[[str], object]]] = []
    if normalizer is not None:
        parts.append(("normalizer", normalizer, normalizer.normalize_str))
    if splitter is not None:
        parts.append(("pre_tokenizer", splitter, splitter.pre_tokenize_str))
    for name, part, run in parts:
        expressions = _EXPRESSION.findall(part.__getstate__())  # which is JSON
        if expressions and any(_is_slow(run, *text) for text in _texts(expressions)):
            return f"{name} {b' '.join(expressions)[:200].decode(errors='replace')}"
    return None


def _texts(expressions: list[bytes]) -> Iterator[tuple[str, str]]:
    """Characters to repeat, and what follows: two where a group is repeated, as in few patterns."""
    yield from ((kind, _END) for kind in _KINDS)
    source = b" ".join(expressions)
    if not _REPEATED_GROUP.search(source):
        return
    literals = dict.fromkeys(char for char in source.decode(errors="replace") if char.isalnum())
    found = list(literals)[:_MAX_LITERALS]
    chars, end = dict.fromkeys([*_KINDS, *found]), _END + _REQUIRED + "".join(found)
    units = [*chars, *map("".join, itertools.permutations(chars, 2))]
    yield from ((unit, end) for unit in units)


def _is_slow(run: Callable[[str], object], unit: str, end: str) -> bool:
    return any(_exceeds(run, unit * count + end) for count in _REPEATS)


def _exceeds(run: Callable[[str], object], text: str) -> bool:
    """Whether a text takes longer than MAX_SECONDS in each of 3 runs, failed runs included."""
    for _ in range(3):
        begin = time.thread_time()
        try:
            run(text)
        except BaseException as error:
            if not is_failure(error):
                raise
        if time.thread_time() - begin <= MAX_SECONDS:
            return False
    return True
