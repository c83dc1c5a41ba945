"""Bounds the size of a Lark grammar whose terminals are written out where they are used.

llguidance makes one regular expression of each terminal: it copies the terminals that it refers to,
and writes counted repetitions out, so that a chain of counts through names (`A: B{100}`,
`B: C{100}`) is as costly as one in a regular expression (regex_bounds.py). Rules are not copied:
their counts are cheap, but still bounded. What the syntax means is left to llguidance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from quire.grammar.regex_bounds import measure

_ATTRIBUTES = r'(?:\[(?:"(?:\\.|[^"\\\n])*+"|/(?:\\.|[^/\\])++/|[^]"/\n]){0,99}+\])?'
_RULE, _TERMINAL = r"!?[_?]?[a-z][_a-z0-9-]*+", r"_?[A-Z][_A-Z0-9-]*+"
_BLANKS = r"[ \t]*+"
_TOKEN = re.compile(
    r"(?P<skip>(?://|\#)[^\n]*+|\s++|->|<[^<>\s]++>|@[a-zA-Z0-9_-]++)"
    r'|"(?P<string>(?:\\.|[^"\\\n])*+)"i?'
    r"|/(?P<regex>(?:\\.|[^/\\])++)/(?P<flags>[imslux]*+)"
    r"|(?P<unclosed>[\"/])"
    r"|%import(?P<imported>[^\n]*+)|%\w++"
    rf"|(?P<define>{_RULE}|{_TERMINAL})(?=(?:::\w*+)?"
    rf"{_BLANKS}{_ATTRIBUTES}{_BLANKS}(?:\.{_BLANKS}[-+\d.e]{{1,32}}+)?{_BLANKS}:(?!:))"
    rf"|(?P<name>{_TERMINAL})|(?P<rule>{_RULE})"
    r"|\{\s*+(?P<least>\d{1,9})\s*+(?:,\s*+\d{0,9}\s*+)?\}"
    r"|~\s*+(?P<times>\d{1,9})(?:\s*+\.\.\s*+\d++)?"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<either>\|)|.",
    re.DOTALL,
)
_Tokens = list[tuple[str, str]]


class UnreadableGrammarError(ValueError):
    """The size of a grammar cannot be computed; the message says why."""


def num_written_out(grammar: str) -> int:
    """The number of characters and classes that counts and references add to a grammar's terminals.

    Raises UnreadableGrammarError where a terminal is not defined, or by itself, and where a string
    or an expression is not closed.
    """
    defined = _definitions(grammar)
    sizes: dict[str, int] = {}
    num_added = 0
    for name in _in_order(defined):
        for tokens in defined[name]:
            size, added = _measure(tokens, sizes if _is_terminal(name) else {})
            sizes[name] = max(sizes.get(name, 1), size)
            num_added += added
    return num_added


def _definitions(grammar: str) -> dict[str, list[_Tokens]]:
    """The tokens of each definition by its name, those of nested grammars too."""
    tokens: _Tokens = []  # of what belongs to no name
    defined = {"": [tokens]}
    for kind, text in _tokens(grammar):
        if kind == "define":
            tokens = []
            defined.setdefault(text, []).append(tokens)
        elif kind == "imported":
            defined |= {name: [] for name in re.findall(r"\w+", text) if name not in defined}
        else:
            tokens.append((kind, text))
    return defined


def _tokens(grammar: str) -> Iterator[tuple[str, str]]:
    for part in _TOKEN.finditer(grammar):
        kind = part.lastgroup
        if kind in ("least", "times"):
            yield "count", part[kind]
        elif kind == "flags":
            yield "regex", f"(?x){part['regex']}" if "x" in part["flags"] else part["regex"]
        elif kind == "unclosed":
            raise UnreadableGrammarError(f"{part[0]} is not closed; close it, or remove it")
        elif kind is not None and kind != "skip":
            yield kind, part[kind]


def _in_order(defined: dict[str, list[_Tokens]]) -> Iterator[str]:
    """The names, each terminal before those that refer to it."""
    graph: dict[str, set[str]] = {}
    for name, bodies in defined.items():
        terminals = {text for tokens in bodies for kind, text in tokens if kind == "name"}
        if unknown := terminals - defined.keys():
            raise UnreadableGrammarError(f"{min(unknown)[:40]} is not defined; define it")
        graph[name] = terminals if _is_terminal(name) else set()
    try:
        yield from TopologicalSorter(graph).static_order()
    except CycleError as error:
        name = error.args[1][0][:40]
        problem = f"{name} is defined by itself; write it in small letters, as a rule"
        raise UnreadableGrammarError(problem) from None


def _measure(tokens: _Tokens, sizes: dict[str, int]) -> tuple[int, int]:
    """The size of the longest alternative, and what counts and references add to all of them.

    sizes: of the terminals that are written out; others are 1.
    """
    groups: list[tuple[int, int]] = []
    longest = here = last = added = 0
    for kind, text in tokens:
        match kind:
            case "open":
                groups.append((longest, here))
                longest = here = last = 0
            case "close" if groups:
                last = max(longest, here)
                longest, here = groups.pop()
                here += last
            case "either":
                longest, here, last = max(longest, here), 0, 0
            case "count":
                more = last * (max(1, int(text)) - 1)
                added, here, last = added + more, here + more, last + more
            case _:
                last, more = _atom(kind, text, sizes)
                added, here = added + more, here + last
    return max(longest, here), added


def _atom(kind: str, text: str, sizes: dict[str, int]) -> tuple[int, int]:
    """The size of a string, an expression or a name, and what of it is added."""
    if kind == "string":
        return len(text), 0
    if kind == "regex":
        num_atoms, repeated = measure(text)
        return num_atoms + repeated, repeated
    size = sizes.get(text, 1)
    return size, size - 1


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()
