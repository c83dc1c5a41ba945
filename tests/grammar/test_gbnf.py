"""GBNF: its answers are those that the grammar derives, character by character."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping

import pytest
from cpu_limit import cpu_limit

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.grammar.gbnf import to_lark
from quire.grammar.gbnf_parser import (
    Chars,
    Either,
    Literal,
    Node,
    Ref,
    Repeat,
    Sequence,
    parse_gbnf,
)
from quire.grammar.gbnf_terminals import Terminals, with_groups
from quire.grammar.grammar_compiler import GrammarCompiler, compile_problem
from quire.grammar.grammar_matcher import Matcher
from quire.tokenizer.tokenizer import Tokenizer

# as in llama.cpp's folder of grammars
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""


def accepts(matcher: Matcher, tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text, byte by byte, is an answer. tokenizer: its only tokens are bytes."""
    ids = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    for value in text.encode():
        token_id = ids[bytes([value])]
        if not matcher.token_bitmask()[token_id // 8] >> token_id % 8 & 1:
            return False
        matcher.accept(token_id)
    return matcher.is_accepting


@pytest.mark.parametrize(
    ("grammar", "answers", "others"),
    [
        (JSON, ['{"a": 1}', '{"a":"\\n\\u00e9","b":[1.5e3,{"c":null}]}'], ["[1]", '{"a":01}']),
        (ARITHMETIC, ["1+2=3\n", "(a+1)*2= x\n4=5 \n \n"], ["1+=3\n", "1=2"]),
        ('root ::= id "x"\nid ::= [a-z]{1,3}', ["ax", "xx", "abcx"], ["x", "abcdx"]),
        ('root ::= "for" "x" | id "="\nid ::= [a-z]+', ["forx", "forx=", "for="], ["for", "fox"]),
        ('root ::= word " " word\nword ::= [a-z ]+', ["a b", "  a"], ["ab"]),
        ('root ::= ([a-c] | "abc1")+ "!"', ["ab!", "abc1!", "abca!"], ["abc1", "!"]),
        ('root ::= "\\u00e9" [a-z\\u00e0-\\u00ff] "\\U0001F600\\x41"', ["éà😀A"], ["ea😀A"]),
        ('root ::= "a" . "b"', ["a\nb", "aéb"], ["ab"]),
        ("root ::= [+--] [&&] [~~a] [\\[\\]] [^a-c] [a-]", ["+&~[d-", ",&a]-a"], ["*&~[d-"]),
        ("root ::= [\\x2D-\\x2F] [a\\x2Dz]", ["-z", "/-"], [".b"]),
        ('root ::= start WS ws\nstart ::= "s"\nWS ::= "W"\nws ::= "w"', ["sWw"], ["sww"]),
        ('root ::= a-b a_b a-b{2}\na-b ::= "x"?\na_b ::= "y"', ["y", "xyxx"], ["xxy"]),
        ('root ::= ""\n  | "a"{2}+ # or\n  | (\n"b"\n)', ["", "aaaa", "b"], ["a"]),
        ('root ::= [^]* "\\""', ['a"\n"'], ["a"]),
    ],
)
def test_answers(
    grammar: str,
    answers: list[str],
    others: list[str],
    byte_compiler: GrammarCompiler,
    byte_tokenizer: Tokenizer,
) -> None:
    for text in (*answers, *others):
        matcher = byte_compiler.matcher(StructuredOutputs(grammar=grammar))
        assert isinstance(matcher, Matcher)
        assert accepts(matcher, byte_tokenizer, text) == (text in answers), text


TEXTS = ["".join(each) for count in range(5) for each in itertools.product("abc", repeat=count)]


def ends(node: Node, known: Mapping[tuple[str, int], set[int]], text: str, at: int) -> set[int]:
    """Where what a node derives may end that begins at a character. known: of rules so far."""
    match node:
        case Chars(ranges, is_negated):
            chars = text[at : at + 1]
            is_one = any(low <= ord(char) <= high for char in chars for low, high in ranges)
            return {at + 1} if chars and is_one != is_negated else set()
        case Literal(own):
            return {at + len(own)} if text.startswith(own, at) else set()
        case Ref(name):
            return known[name, at]
        case Either(options):
            return set().union(*(ends(each, known, text, at) for each in options))
        case Sequence(parts):
            found = {at}
            for part in parts:
                found = set().union(*(ends(part, known, text, begin) for begin in found))
            return found
        case Repeat(part, least, most):
            found, latest = {at} if least == 0 else set[int](), {at}
            for number in range(1, (len(text) + least if most is None else most) + 1):
                latest = set().union(*(ends(part, known, text, begin) for begin in latest))
                found |= latest if number >= least else set()
            return found
    raise AssertionError(node)


def derives(rules: Mapping[str, Node], text: str) -> bool:
    known = {(name, at): set[int]() for name in rules for at in range(len(text) + 1)}
    while True:
        latest = {key: ends(rules[key[0]], known, text, key[1]) for key in known}
        if latest == known:
            return len(text) in known["root", 0]
        known = latest


def a_part(rng: random.Random, names: list[str], depth: int = 0) -> str:
    kind = rng.randrange(7 if depth < 3 else 3)
    if kind == 0 and names:
        return rng.choice(names)
    if kind < 2:
        return f'"{"".join(rng.choices("abc", k=rng.randrange(4)))}"'
    if kind == 2:
        return rng.choice(["[a-b]", "[abc]", "[^a]", "[b]", "[^ab]", "."])
    if kind < 5:
        return a_part(rng, names, depth + 1) + rng.choice(["*", "+", "?", "{2}", "{1,2}", "{0,}"])
    return f"({some_parts(rng, names, depth + 1)} | {some_parts(rng, names, depth + 1)})"


def some_parts(rng: random.Random, names: list[str], depth: int = 0) -> str:
    return " ".join(a_part(rng, names, depth) for _ in range(rng.randint(1, 3)))


def test_random_grammars(byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer) -> None:
    rng, num_with_terminals = random.Random(0), 0
    for _ in range(30):
        names = [f"r{index}" for index in range(rng.randrange(1, 4))]
        lines = [f"root ::= {some_parts(rng, names)} | {some_parts(rng, names)}"]
        for index, name in enumerate(names):
            known = names[index + 1 :] if rng.random() < 0.8 else names  # or with recursion
            lines.append(f"{name} ::= {some_parts(rng, known)} | {some_parts(rng, known)}")
        grammar = "\n".join(lines)
        rules = with_groups(parse_gbnf(grammar))
        num_with_terminals += bool(Terminals(rules).rules)
        texts, outputs = rng.sample(TEXTS, 20), StructuredOutputs(grammar=grammar)
        if problem := compile_problem(outputs, byte_compiler):
            assert problem.startswith("no text matches it"), grammar
            assert not any(derives(rules, text) for text in texts), grammar
            continue
        first = byte_compiler.matcher(outputs)
        for text in texts:
            matcher = first.copy()
            assert isinstance(matcher, Matcher)
            found = accepts(matcher, byte_tokenizer, text)
            assert found == derives(rules, text), (grammar, text)
    assert num_with_terminals > 3


@pytest.mark.parametrize(
    ("grammar", "characters"),
    [
        (JSON, {"root", "value", "object", "array"}),
        # with white space after white space
        (JSON.replace(" ws )*", " ws ws )*").replace("string ::=", "string ::= ws"), {"ws"}),
        (ARITHMETIC, {"root", "expr", "term", "ident", "num", "ws"}),
        ('root ::= item ("," item)* "."\nitem ::= "yes" | [a-z ]+', {"root"}),
        ('root ::= [a-z]+ item\nitem ::= "." [a-z ]+ | "," item', {"root", "item"}),
    ],
)
def test_rules_are_terminals_where_they_may_be(grammar: str, characters: set[str]) -> None:
    """Tokens are found in microseconds then, and in milliseconds else."""
    rules = with_groups(parse_gbnf(grammar))
    terminals = Terminals(rules)
    own = {name for name in rules.keys() - terminals.rules if not name.startswith("group ")}
    assert own >= characters
    groups = rules.keys() - terminals.rules - own
    assert not groups  # such as the text of a string, and a number without what follows


def test_long_rules_are_not_written_out_where_others_refer_to_them(
    byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    cell = '"<td>" [a-z]{1,40} "</td>" | "' + "x" * 300 + '"'
    rows = f'root ::= row{{2}} row\nrow ::= cell{{100}} "."\ncell ::= {cell}'
    letters = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(20))
    doubled = f'root ::= r0 | "b"\n{letters}\nr20 ::= "a"'
    for grammar, answer, no_answer in (
        (rows, ("<td>yes</td>" * 100 + ".") * 3, "<td>yes</td>." * 3),
        (doubled, "b", "ab"),
    ):
        matcher = byte_compiler.matcher(StructuredOutputs(grammar=grammar))
        assert isinstance(matcher, Matcher)
        assert accepts(matcher.copy(), byte_tokenizer, answer)
        assert not accepts(matcher, byte_tokenizer, no_answer)


@pytest.mark.parametrize(
    ("grammar", "has_terminals"),
    [
        ('root ::= a\na ::= "' + "ab" * 4000 + '"', True),
        ("root ::= a+\na ::= " + " | ".join(f'"{i}-"' for i in range(800)), True),
        ('root ::= a "x"\na ::= ' + "[a-z]*" * 1300, False),
        ("root ::= " + '("aa" | [a-z])*' * 500, False),
        (
            "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(500)) + 'r500 ::= "a"',
            True,
        ),
    ],
    ids=["literal", "alternatives", "stars", "lists", "chain"],
)
def test_a_costly_grammar_costs_little(grammar: str, has_terminals: bool) -> None:
    with cpu_limit(3.0, time.process_time):  # 0.3 s on a machine that does nothing else
        lark = to_lark(grammar)
    assert ("\nT" in lark) == has_terminals


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ('a ::= "x"', "it has no rule root; add it"),
        ("root ::= a", "it has no rule a; add it"),
        ('root ::= "a', "line 1: what GBNF does not know at"),
        ('root ::=\n  ("a"', r"line 2: \) is missing at the end"),
        ('root ::= "a")', r"line 1: a rule, such as root ::= \.\.\. is missing at '\)'"),
        ('root ::= "\\q"', "line 1: an unknown escape at"),
        ('root ::= "\\ud800"', "line 1: no character at"),
        ("root ::= [z-a]", "line 1: a range from a higher to a lower character at"),
        ("root ::= []", "line 1: a class without a character at"),
        ("root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "nested too deeply; flatten it"),
        ('root ::= "' + "a" * 9000 + '"', "GBNF must have at most 8192 characters, not 9011"),
    ],
)
def test_what_is_wrong_is_said(grammar: str, problem: str, byte_compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^structured_outputs\.grammar: .*{problem}"):
        byte_compiler.matcher(StructuredOutputs(grammar=grammar))
