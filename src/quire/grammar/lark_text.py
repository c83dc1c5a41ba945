"""Parts of Lark grammars as llguidance reads them: literal texts, JSON, regular expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from quire.grammar.schema_translation import translated

_SLASH = re.compile(r"(\\[^\n])|/|\\?\n")  # what ends a regular expression in Lark
_REGEX_ESCAPES = {"/": r"\/", "\n": r"\n"}
_JSON_ESCAPES = str.maketrans({"%": r"\u0025", "\x7f": r"\u007f"})

ANY_TEXT = r"TEXT: /(?s:.*)/"  # the definition of a terminal
THOUGHT = "thought"  # the name of a thought's rule in an answer's grammar
_START = "start: "
_SPACE = r"[ \t\r\n]{0,64}"  # what the parser of answers passes over before the mark of a thought


def quoted(text: str) -> str:
    """Exactly this text."""
    return _as_lark(json.dumps(text, ensure_ascii=False))


def json_rule(schema: Mapping[str, Any], style: Mapping[str, Any]) -> str:
    """JSON that matches a schema. style: llguidance's options for white space."""
    text = json.dumps({**schema, "x-guidance": style}, ensure_ascii=False)
    return f"%json {_as_lark(translated(text))}"


def _as_lark(text: str) -> str:
    """JSON as Lark takes it, in which no text looks like the begin of another %json."""
    return text.translate(_JSON_ESCAPES)


def regex_rule(pattern: str) -> str:
    """Text that matches a regular expression."""
    return f"/{_SLASH.sub(lambda found: found[1] or _REGEX_ESCAPES[found[0][-1]], pattern)}/"


def with_thought(grammar: str) -> str:
    """The Lark grammar with its rule `thought` before the answer; its first line is `start`."""
    return grammar.replace(_START, f"{_START}{THOUGHT} ", 1)


def marked_lark(mark: str) -> str:
    """The Lark grammar of any text that begins with a mark."""
    return f"start: SPACE {quoted(mark)} TEXT\nSPACE: /{_SPACE}/\n{ANY_TEXT}\n"


def mark_prefix_lark(mark: str) -> str:
    """The Lark grammar of texts that may become a mark: its beginnings, without the whole."""
    start = ""
    for letter in reversed(mark[:-1]):
        start = f"({re.escape(letter)}{start})?"
    return f"start: {regex_rule(_SPACE + start)}\n"
