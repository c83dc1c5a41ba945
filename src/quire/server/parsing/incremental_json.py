"""Incremental JSON: checked and passed on as it arrives.

The text that is passed on is always the start of a JSON text that any reader takes, whatever the
model writes. Corrected are: control characters inside strings, such as line ends, which are
escaped; half a surrogate pair, which is not a character and becomes U+FFFD; and a number such as
1e999, which becomes the largest one.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable

from quire.server.parsing.text_source import SPACE, MalformedCall, TextSource, Wait

MAX_DEPTH = 64  # of nested objects and lists
MAX_WORD_CHARS = 256  # of a number

Emit = Callable[[str], None]

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LITERALS = frozenset({"true", "false", "null"})
_CLOSING = {"{": "}", "[": "]"}


def read_object(source: TextSource, emit: Emit) -> Wait[None]:
    """Read one object. Raises MalformedCall at the first character that does not fit."""
    if (yield from source.peek()) != "{":
        raise MalformedCall
    yield from _read_value(source, emit)


def read_string(source: TextSource, emit: Emit) -> Wait[None]:
    """Read one string, quotes included. Raises MalformedCall."""
    yield from _read_token(source, '"', emit)
    while True:
        yield from source.run(_PLAIN, emit)
        character = yield from source.peek()
        if not character:
            raise MalformedCall
        if character == "\\":
            yield from _read_escape(source, emit)
            continue
        source.take_to(source.at + 1)
        if character == '"':
            emit('"')
            return
        emit(json.dumps(character)[1:-1])  # a control character


def string_value(source: TextSource) -> Wait[str]:
    """Read one string; returns its value. Raises MalformedCall."""
    parts: list[str] = []
    yield from read_string(source, parts.append)
    value = json.loads("".join(parts))
    assert isinstance(value, str)
    return value


def corrected(text: str) -> str | None:
    """The text of one value, as it is passed on; None if it is not one."""
    source, parts = TextSource(), list[str]()
    source.feed(text)
    source.close()
    try:
        for _ in _read_value(source, parts.append):
            raise AssertionError("all of the text is there")
    except MalformedCall:
        return None
    return "".join(parts) if source.at == len(text) else None


def _read_value(source: TextSource, emit: Emit) -> Wait[None]:
    """Read one value, in a loop with a stack of its own instead of recursion."""
    closing: list[str] = []  # of the objects and lists that are open, innermost last
    while True:
        yield from source.run(SPACE, emit)
        character = yield from source.peek()
        if character in _CLOSING:
            yield from _open(source, character, closing, emit)
            if (yield from source.peek()) != closing[-1]:
                yield from _read_key_in(closing[-1], source, emit)
                continue
        elif character == '"':
            yield from read_string(source, emit)
        else:
            yield from _read_word(source, emit)
        yield from _close(source, closing, emit)
        if not closing:
            return
        yield from _read_token(source, ",", emit)
        yield from _read_key_in(closing[-1], source, emit)


def _open(source: TextSource, character: str, closing: list[str], emit: Emit) -> Wait[None]:
    if len(closing) == MAX_DEPTH:
        raise MalformedCall
    yield from _read_token(source, character, emit)
    closing.append(_CLOSING[character])
    yield from source.run(SPACE, emit)


def _close(source: TextSource, closing: list[str], emit: Emit) -> Wait[None]:
    """Read the closing brackets of complete values; space after the outermost is not read."""
    while closing:
        yield from source.run(SPACE, emit)
        if (yield from source.peek()) != closing[-1]:
            return
        yield from _read_token(source, closing.pop(), emit)


def _read_key_in(container: str, source: TextSource, emit: Emit) -> Wait[None]:
    if container == "}":
        yield from source.run(SPACE, emit)
        yield from read_string(source, emit)
        yield from source.run(SPACE, emit)
        yield from _read_token(source, ":", emit)


def _read_word(source: TextSource, emit: Emit) -> Wait[None]:
    """A number, true, false or null; passed on once it is complete."""
    word = yield from source.peek_run(_WORD, MAX_WORD_CHARS)
    is_number = _NUMBER.fullmatch(word) is not None
    if word not in _LITERALS and not is_number:
        raise MalformedCall
    source.take_to(source.at + len(word))
    is_inf = is_number and math.isinf(float(word))
    emit(repr(math.copysign(sys.float_info.max, float(word))) if is_inf else word)


def _read_escape(source: TextSource, emit: Emit) -> Wait[None]:
    escape = yield from source.peek(6 if (yield from source.peek(2)) == "\\u" else 2)
    if not _ESCAPE.fullmatch(escape):
        raise MalformedCall
    is_half = _HALF_PAIR.fullmatch(escape) is not None
    if is_half and _PAIR.fullmatch(pair := (yield from source.peek(12))):
        escape, is_half = pair, False
    source.take_to(source.at + len(escape))
    emit("\\ufffd" if is_half else escape)


def _read_token(source: TextSource, token: str, emit: Emit) -> Wait[None]:
    yield from source.expect(token)
    emit(token)
