"""Counts through names of terminals are bounded before a Lark grammar is compiled."""

from __future__ import annotations

from contextlib import suppress

import pytest
from cpu_limit import cpu_limit
from hypothesis import given
from hypothesis import strategies as st

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.lark_bounds import UnreadableGrammarError, num_written_out

CHAIN = "C: B{100}\nB: A{100}\n"


@pytest.mark.parametrize(
    ("grammar", "count"),
    [
        ('start: "abc"', 0),
        ("start: A\nA: /a{3}/", 2),
        ('start: A{3}\nA: "ab"', 2),  # a rule does not copy its terminals
        ("start: a{3}\na: B\nB: /bb/", 2),
        ('B: A{3}\nA: "ab"', (2 - 1) + 2 * 2),
        ('B: A~3\nA: "ab"', 5),
        ('B: (A | "xyz"){2}\nA: "ab"', (2 - 1) + 3),  # the longest alternative
        ('C: B B\nB: A A\nA: "abcd"', 2 * 3 + 2 * 7),
        ("B: A\nA: /(a{2}){2}/", 3 + 3),
        ("A: /a b {2}/x", 1),
        ('// A: /a{9}/\nstart: "b{9}"', 0),
        ("A: /x/\nA: /xxx/\nB: A", 2),  # of nested grammars; the longer one
        ('a[stop=/x{3}/, capture]: B\nB.2: "b"', 2),
        ("%import common.INT\nA: INT{3}\n", 2),
        ("%ignore /a{4}/\n", 3),
    ],
)
def test_terminals_count_as_often_as_they_are_copied(grammar: str, count: int) -> None:
    assert num_written_out(grammar) == count


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ("A: B\nB: A", "is defined by itself"),
        ("A: B{9}", "B is not defined"),
        ('A: "b\nB: "c"', '" is not closed'),
        ("A: /b", "/ is not closed"),
    ],
)
def test_terminals_whose_size_is_unknown_are_refused(grammar: str, problem: str) -> None:
    with pytest.raises(UnreadableGrammarError, match=problem):
        num_written_out(grammar)


@given(st.text('AaB_:.{}()[]|/"\\~,0123456789%#x^-\n ', max_size=60))
def test_any_text_is_counted_or_refused(grammar: str) -> None:
    with suppress(UnreadableGrammarError):
        assert num_written_out(grammar) >= 0


@pytest.mark.parametrize(
    "part", ['"', "/", "(", "{1,", "a[", "A:A", "%import ", "a[/", "A.1", "e.", "~", "\\/"]
)
def test_the_count_takes_time_in_proportion_to_the_text(part: str) -> None:
    with cpu_limit(1.0), suppress(UnreadableGrammarError):
        num_written_out(part * (65536 // len(part)))


BOMBS = {
    "counts": f'start: C\n{CHAIN}A: "ab"',
    "counts in Lark's form": 'start: B\nB: A~1000000\nA: "ab"',
    "attributes": f'start: C\n{CHAIN}A[capture, stop="]:"]: "ab"',
    "an expression": "start: B\nB: A{100}\nA: /(a{100}){100}/",
    "a stop expression": "start: a\na[stop=/((a{100}){100}){100}/]: /b+/",
    "priority": f'start: D\nD.3: C{{9}}\n{CHAIN}A.-1 : "ab"',
    "doubled": "start: A0\n"
    + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(20))
    + 'A20: "b"',
    "a nested grammar": f'start: %lark {{\nstart: C\n{CHAIN}A: "ab"\n}}\n',
    "a rule": "start: a{1000000}\na: B\nB: /b/",
}


@pytest.mark.parametrize("grammar", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_at_once(byte_compiler: GrammarCompiler, grammar: str) -> None:
    said = "add more than 20000 characters to it; lower"
    with cpu_limit(0.2), pytest.raises(InvalidRequestError, match=said):
        byte_compiler.matcher(StructuredOutputs(grammar=grammar))


HONEST = {
    "keywords": "start: A B\nK: " + " | ".join(f'"key{i:04}"' for i in range(900)) + "\n"
    'A: "a" K\nB: K "b"',
    "numbers": "%import common.INT\nstart: N (/,/ N){99}\nN: INT /[.]/ INT",
    "alternatives in other lines": 'start: a\n  | B\na: "x" B\n  | "y"\nB: /b{3}/',
}


@pytest.mark.parametrize("grammar", HONEST.values(), ids=HONEST)
def test_usual_grammars_are_compiled(byte_compiler: GrammarCompiler, grammar: str) -> None:
    byte_compiler.matcher(StructuredOutputs(grammar=grammar))
