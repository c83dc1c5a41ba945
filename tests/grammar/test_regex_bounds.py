"""What counted repetitions make of a regular expression is bounded before it is compiled."""

from __future__ import annotations

import json

import pytest
from cpu_limit import cpu_limit
from hypothesis import given
from hypothesis import strategies as st

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.regex_bounds import num_repeated


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("", 0),
        ("abc", 0),
        ("a{3}", 2),
        ("ab{3}", 2),
        ("(ab){3}", 4),
        ("((a{100}){100}){5}", 49_999),
        ("(a|bc){4}", 9),
        ("a{2,5}b{3,}c{0,9}d*e+f?", 3),
        (r"[a-z\]]{4}\d{3}\p{Greek}{2}\x{41}{2}", 7),
        ("[]a]{3}[^]a]{2}", 3),
        ("[[:alpha:]]{3}", 2),
        (r"\(a{2}\)", 1),
        ("(?:a{3}){2}(?i:b){2}(?P<n>c){2}", 7),
        ("a{,3}b", 0),  # here a brace is itself
        ("a{3}{3}", 8),
        ("(ab){ 3 , 5 }", 4),
        ("(ab) {3}", 2),  # the blank three times
        ("(?x)(ab) {3}", 4),
        ("(a{2}", 1),
        ("a)b{2}", 1),
        ("{5}a", 0),
        ("[{5}(a{2}){2}", 4 + 3),  # wrong: the class has no end
        ('start: "(" /a{3}/ "[" B\nB: /(a{2}){2}/', 2 + 3),
    ],
)
def test_atoms_are_counted_as_often_as_they_are_repeated(pattern: str, count: int) -> None:
    assert num_repeated(pattern) == count


@given(st.text("a(){}[]|*+?\\,0123456789x^-:/\n", max_size=60))
def test_any_text_is_counted(pattern: str) -> None:
    assert num_repeated(pattern) >= 0


@pytest.mark.parametrize("part", ["[", "[a]", "/[a", "(", "\\p{", "[[:", "((?", "{1,"])
def test_the_count_takes_time_in_proportion_to_the_text(part: str) -> None:
    with cpu_limit(1.0):
        num_repeated(part * (65536 // len(part)))


BOMBS = [f"((a{{100}}){{100}}){{{n}}}" for n in (5, 50, 500)] + ["a{1000000}", "(((a{99}){99}){9})"]


@pytest.mark.parametrize("pattern", BOMBS)
def test_bombs_are_refused_at_once(byte_compiler: GrammarCompiler, pattern: str) -> None:
    lark = f"start: A\nA: /{pattern}/\n"
    schema = {"type": "string", "pattern": pattern}
    names = {"type": "object", "patternProperties": {pattern: {}}}
    embedded = f"start: %json {json.dumps(schema)}\n"
    with cpu_limit(0.2):
        for constraint in (
            StructuredOutputs(regex=pattern),
            StructuredOutputs(json=json.dumps(schema)),
            StructuredOutputs(json=json.dumps(names)),
            StructuredOutputs(grammar=lark),
            StructuredOutputs(grammar=embedded),
        ):
            with pytest.raises(InvalidRequestError, match="add more than 20000 characters"):
                byte_compiler.matcher(constraint)


@pytest.mark.parametrize(
    "pattern", ["a{20000}", r"(\w+\s?){1,5000}", ".{0,100000}", r"\d{4}-\d{2}"]
)
def test_usual_counts_are_compiled(byte_compiler: GrammarCompiler, pattern: str) -> None:
    with cpu_limit(1.0):
        byte_compiler.matcher(StructuredOutputs(regex=pattern))


def test_a_schema_cannot_set_the_librarys_options(byte_compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": "z*", "lenient": True}}
    with pytest.raises(InvalidRequestError, match="x-guidance: it would change"):
        byte_compiler.matcher(StructuredOutputs(json=json.dumps(schema)))
    # a grammar promises no JSON, and those of tool calls set their own
    byte_compiler.matcher(StructuredOutputs(grammar=f"start: %json {json.dumps(schema)}\n"))
    named_so = {"type": "object", "properties": {"x-guidance": {"type": "integer"}}}
    byte_compiler.matcher(StructuredOutputs(json=json.dumps(named_so)))
