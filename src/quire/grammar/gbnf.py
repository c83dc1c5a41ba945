"""Grammars in GBNF: distinguished from Lark, embedded into a Lark grammar, and translated to Lark.

That takes a while for long texts, so it is done where grammars are compiled, not where requests are
read: until then an embedded grammar is one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire.grammar.schema_bounds import OverBoundsError

if TYPE_CHECKING:
    from quire.grammar.gbnf_parser import Node
    from quire.grammar.gbnf_terminals import Terminals

MAX_GBNF_CHARS = 8 << 10
_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_EMBEDDED = re.compile(r'^(form: )%gbnf ("(?:[^"\\\n]|\\.)*")$', re.MULTILINE)

_SIGNS = {"{0,}": "*", "{1,}": "+", "{0,1}": "?"}


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
        inner = _translated(json.loads(found[2]))
        return f"{grammar[: found.end(1)]}%lark {{\n{inner}\n}}{grammar[found.end() :]}"
    return _translated(grammar) if _RULE.search(grammar) else grammar


def _translated(text: str) -> str:
    # a start does without these
    from quire.grammar.gbnf_parser import parse_gbnf
    from quire.grammar.gbnf_terminals import Terminals, with_groups

    if len(text) > MAX_GBNF_CHARS:
        problem = f"GBNF must have at most {MAX_GBNF_CHARS} characters, not {len(text)}; shorten it"
        raise OverBoundsError(f"{problem}, or write it in Lark")
    try:
        rules = with_groups(parse_gbnf(text))
        terminals = Terminals(rules)
        names = {
            name: f"{'T' if name in terminals.rules else 'r'}{i}" for i, name in enumerate(rules)
        }
        names["root"] = "start"
        lines = [f"{names[name]}: {_lark(body, names, terminals)}" for name, body in rules.items()]
    except RecursionError:
        raise OverBoundsError("nested too deeply; flatten it") from None
    return "\n".join([*lines, ""])


def _lark(node: Node, names: Mapping[str, str], terminals: Terminals) -> str:
    """A part of a rule, in brackets where it has several parts."""
    from quire.grammar import gbnf_parser as gbnf
    from quire.grammar.lark_text import quoted

    def several(nodes: list[Node], between: str) -> str:
        return f"({between.join(_lark(each, names, terminals) for each in nodes)})"

    match node:
        case gbnf.Chars(ranges, is_negated):
            shown = "".join(rf"\x{{{low:X}}}-\x{{{high:X}}}" for low, high in ranges)
            return f"/[{'^' * is_negated}{shown}]/"
        case gbnf.Literal(text) if id(node) in terminals.split:
            return f"({' '.join(map(quoted, text))})"
        case gbnf.Literal(text):
            return quoted(text)
        case gbnf.Ref(name):
            return names[name]
        case gbnf.Sequence([]):
            return '""'
        case gbnf.Sequence(parts):
            return several(parts, " ")
        case gbnf.Either(options):
            return several(options, " | ")
        case gbnf.Repeat(part, least, most):
            count = f"{{{least},{'' if most is None else most}}}"
            inner = _lark(part, names, terminals)
            shown = f"({inner})" if isinstance(part, gbnf.Repeat) else inner
            return shown + _SIGNS.get(count, count)
    raise AssertionError(node)
