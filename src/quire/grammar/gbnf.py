"""Grammars in GBNF: distinguished from Lark, embedded into a Lark grammar, and translated to Lark.

The translation is llguidance's, which takes 0.3 s for the longest texts, so it is done where
grammars are compiled, not where requests are read: until then an embedded grammar is one line.
"""

from __future__ import annotations

import json
import re

from quire.grammar.schema_bounds import OverBoundsError

MAX_GBNF_CHARS = 8 << 10
MAX_REASON_CHARS = 300  # of llguidance's messages
_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_EMBEDDED = re.compile(r'^(form: )%gbnf ("(?:[^"\\\n]|\\.)*")$', re.MULTILINE)
_HEADER = "%llguidance {}\n"


def embedded(grammar: str) -> str:
    """The body of a Lark rule that derives the same texts as `grammar`, in Lark or GBNF.

    A rule of this kind for GBNF must be named form, and be the last.
    """
    if _RULE.search(grammar):
        return f"%gbnf {json.dumps(grammar)}"
    return f"%lark {{\n{grammar}\n}}"


def to_lark(grammar: str) -> str:
    """A grammar as Lark: translated if it is GBNF, or where one is embedded in it.

    Raises OverBoundsError, which says what is wrong with the GBNF.
    """
    if (found := _EMBEDDED.search(grammar)) is not None:
        inner = _translated(json.loads(found[2])).removeprefix(_HEADER)
        return f"{grammar[: found.end(1)]}%lark {{\n{inner}\n}}{grammar[found.end() :]}"
    return _translated(grammar) if _RULE.search(grammar) else grammar


def _translated(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if len(text) > MAX_GBNF_CHARS:
        problem = f"GBNF must have at most {MAX_GBNF_CHARS} characters, not {len(text)}; shorten it"
        raise OverBoundsError(f"{problem}, or write it in Lark")
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise OverBoundsError("nested too deeply; flatten it") from None
    except Exception as error:  # llguidance raises plain Exception
        reason = str(error)[:MAX_REASON_CHARS]
        raise OverBoundsError(f"must be a GBNF grammar ({reason})") from None
