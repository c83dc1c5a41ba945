"""Parts of Lark grammars as llguidance reads them: literal texts, JSON, regular expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_SLASH = re.compile(r"(\\.)|[/\n]", re.DOTALL)  # what ends a regular expression in Lark
_ESCAPES = {"/": r"\/", "\n": r"\n"}

ANY_TEXT = r"TEXT: /(?s:.*)/"  # the definition of a terminal


def text_not_after(mark: str) -> str:
    """The same of text that does not begin with a mark."""
    return f"{ANY_TEXT} & ~{regex_rule(f'(?s:{re.escape(mark)}.*)')}"


def quoted(text: str) -> str:
    """Exactly this text."""
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Mapping[str, Any], style: Mapping[str, Any]) -> str:
    """JSON that matches a schema. style: llguidance's options for white space."""
    return f"%json {json.dumps({**schema, 'x-guidance': style}, ensure_ascii=False)}"


def regex_rule(pattern: str) -> str:
    """Text that matches a regular expression."""
    return f"/{_SLASH.sub(lambda found: found[1] or _ESCAPES[found[0]], pattern)}/"
