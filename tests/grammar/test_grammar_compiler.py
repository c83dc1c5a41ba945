from __future__ import annotations

import gc
import json
import random
import re
import time
import weakref
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from cpu_limit import cpu_limit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

import quire
from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError, OverloadedError
from quire.grammar.gbnf import embedded
from quire.grammar.grammar_compiler import GRAMMAR_BYTES, GrammarCompiler
from quire.grammar.grammar_matcher import Matcher
from quire.grammar.json_style import USUAL_STYLE
from quire.grammar.lark_text import json_rule
from quire.grammar.vocabulary import Vocabulary
from quire.tokenizer.tokenizer import Tokenizer


def allowed_ids(matcher: Matcher) -> list[int]:
    allowed = np.frombuffer(matcher.token_bitmask(), np.uint8)
    return np.flatnonzero(np.unpackbits(allowed, bitorder="little")).tolist()


def walk(matcher: Matcher, tokenizer: Tokenizer, rng: random.Random, longest: int = 400) -> str:
    """A random answer that keeps to the form, in a hurry to end."""
    answer: list[int] = []
    while not matcher.is_terminated:
        ids = allowed_ids(matcher)
        assert ids, matcher.problem
        if tokenizer.eos_token_id in ids and (len(answer) > 20 or rng.random() < 0.3):
            break
        ids = [token_id for token_id in ids if token_id != tokenizer.eos_token_id]
        quotes = [i for i in ids if tokenizer.token_bytes(i) in (b'"', b"}", b"]")]
        answer.append(rng.choice(quotes if quotes and rng.random() < 0.5 else ids))
        matcher.advance_to(answer)
        assert len(answer) < longest, tokenizer.decode(answer)[:200]
    before = tokenizer.encode_inside("no")  # at the very start of a text a space may be dropped
    return tokenizer.decode([*before, *answer]).removeprefix("no")


def is_taken(matcher: Matcher, tokenizer: Tokenizer, text: str) -> bool:
    """Whether an answer may be exactly this text."""
    for token_id in tokenizer.encode_inside(text):
        if token_id not in allowed_ids(matcher):
            return False
        matcher.accept(token_id)
    return matcher.is_accepting


REGEXES = [r"\d{3}-[a-c]{2,5}", "(ab|bc)*no", "[^x]{4}", "é+|ü", r"a(b(c)?)?", "(?i)yes{2}"]


@pytest.mark.parametrize("pattern", REGEXES)
def test_answers_match_the_regex(
    pattern: str, compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    for seed in range(5):
        matcher = compiler.matcher(StructuredOutputs(regex=pattern))
        answer = walk(matcher, tokenizer, random.Random(seed))
        assert re.fullmatch(pattern, answer), answer


CHOICES = ["yes", "no", "yes and no", 'a "quote"\n', "é|(", "\\d{3}", "ab", "abc"]


def test_answers_are_one_of_the_choices(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    seen = set()
    for seed in range(60):
        matcher = compiler.matcher(StructuredOutputs(choice=CHOICES))
        seen.add(walk(matcher, tokenizer, random.Random(seed)))
    assert seen <= set(CHOICES)
    assert len(seen) > 5


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "ab" start | "no"',
        'root ::= "ab" root | "no"',
        "start: A\nA: /(ab)*no/",
        "start: form\nform: " + embedded('root ::= "ab" root | "no"'),
    ],
)
def test_answers_are_derived_from_the_grammar(
    grammar: str, byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    for seed in range(5):
        matcher = byte_compiler.matcher(StructuredOutputs(grammar=grammar))
        assert re.fullmatch("(ab)*no", walk(matcher, byte_tokenizer, random.Random(seed)))


def test_a_json_object_is_one(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    for seed in range(5):
        matcher = compiler.matcher(StructuredOutputs(json_object=True))
        answer = walk(matcher, tokenizer, random.Random(seed), longest=3000)
        assert isinstance(json.loads(answer), dict)


names = st.sampled_from(["a", "b", "long name", "é", 'quo"te'])
texts = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\r\t\b\f"), max_size=3
)
schemas = st.recursive(
    st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(
            lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
            st.integers(-200, 200),
            st.integers(0, 50),
        ),
        st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 6)),
        st.builds(
            lambda values: {"enum": values},
            st.lists(st.one_of(st.integers(-9, 9), texts), min_size=1, max_size=4),
        ),
        st.just({"type": "string", "pattern": "^[a-c]{1,3}$"}),
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda items, n: {"type": "array", "items": items, "minItems": n, "maxItems": n + 2},
            inner,
            st.integers(0, 2),
        ),
        st.builds(
            lambda members, extra: {
                "type": "object",
                "properties": members,
                "required": sorted(members)[: len(members) - extra],
                "additionalProperties": False,
            },
            st.dictionaries(names, inner, max_size=3),
            st.integers(0, 1),
        ),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(schema=schemas, seed=st.integers(0, 2**32))
def test_answers_parse_and_validate(
    schema: dict[str, Any], seed: int, byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    matcher = byte_compiler.matcher(StructuredOutputs(json=schema))
    answer = walk(matcher, byte_tokenizer, random.Random(seed), longest=5000)
    jsonschema.validate(json.loads(answer), schema)


INT, TEXT = {"type": "integer"}, {"type": "string"}
LISTED_A = {"type": "object", "properties": {"a": INT, "é": INT, "a\n": INT}}
OTHER_NAMES: list[tuple[dict[str, Any], str]] = [
    (LISTED_A, r'{"\u0061":"x"}'),
    (LISTED_A | {"additionalProperties": TEXT}, r'{"\u0061":"x"}'),
    (LISTED_A | {"required": ["a"]}, r'{"a":1,"\u0061":"x"}'),
    (LISTED_A | {"required": ["a"]}, '{"a":1,"a":"x"}'),
    (LISTED_A, r'{"\u00e9":"x"}'),
    (LISTED_A, r'{"a\u000a":"x"}'),
    (LISTED_A, r'{"a\n":"x"}'),
    ({"type": "object", "patternProperties": {"^a": INT}}, r'{"\u0061":"x"}'),
    ({"type": "object", "required": ["a"], "minProperties": 2}, r'{"a":1,"\u0061":1}'),
]


@pytest.mark.parametrize("style", [{}, {"disable_any_whitespace": True}], ids=str)
@pytest.mark.parametrize(("schema", "answer"), OTHER_NAMES, ids=range(len(OTHER_NAMES)))
def test_no_spelling_of_a_name_gives_it_another_schema(
    schema: dict[str, Any],
    answer: str,
    style: dict[str, Any],
    byte_compiler: GrammarCompiler,
    byte_tokenizer: Tokenizer,
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(answer), schema)
    in_lark = StructuredOutputs(grammar=f"start: {json_rule(schema, USUAL_STYLE)}")
    for outputs in (StructuredOutputs(json=schema, **style), in_lark):
        assert not is_taken(byte_compiler.matcher(outputs), byte_tokenizer, answer)
        assert is_taken(byte_compiler.matcher(outputs), byte_tokenizer, r'{"a":1,"b\n":"x"}') == (
            schema.get("additionalProperties", TEXT) == TEXT
        )


COMPACT = '{"a":[1,2],"b":{"c":3}}'
SPACED = '{"a": [1, 2], "b": {"c": 3}}'
MIXED = '{"a": [1,2],"b":{"c": 3}}'
LINES = json.dumps(json.loads(COMPACT), indent=2)
WIDE = '{"a":  [1,\t2], "b":{"c":3}}'
STYLES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {COMPACT, SPACED, MIXED}),
    ({"disable_any_whitespace": True}, {COMPACT}),
    ({"whitespace_pattern": r"[\n ]{1,8}"}, {COMPACT, SPACED, MIXED, LINES}),
    ({"whitespace_pattern": r"[ \n\t]*"}, {COMPACT, SPACED, MIXED, LINES, WIDE}),
    ({"whitespace_pattern": r"\n"}, {COMPACT}),
]
NESTED = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"type": "integer"}},
        "b": {"const": {"c": 3}},
    },
}


@pytest.mark.parametrize(("style", "taken"), STYLES, ids=range(len(STYLES)))
@pytest.mark.parametrize("constraint", [{"json": NESTED}, {"json_object": True}], ids=str)
def test_white_space_stands_where_the_sampling_param_has_it(
    constraint: dict[str, Any],
    style: dict[str, Any],
    taken: set[str],
    byte_compiler: GrammarCompiler,
    byte_tokenizer: Tokenizer,
) -> None:
    found = {
        text
        for text in (COMPACT, SPACED, MIXED, LINES, WIDE)
        if is_taken(
            byte_compiler.matcher(StructuredOutputs(**constraint, **style)), byte_tokenizer, text
        )
    }
    assert found == taken


DEEP: dict[str, Any] = {"type": "integer"}
for _ in range(80):
    DEEP = {"type": "array", "items": DEEP}
NODE = {"$ref": "#/$defs/n"}
ENDING = {"type": "object", "properties": {"name": {"type": "null"}}, "required": ["name"]}
ENDLESS = {"type": "object", "properties": {"x": NODE}, "required": ["x"]}

BAD: list[tuple[dict[str, Any], str]] = [
    ({"json": {"$ref": "#"}}, "no text matches it"),
    ({"json": {"$defs": {"n": NODE}, **NODE}}, "no text"),
    ({"json": {"$ref": "https://example.com/schema"}}, "does not fetch"),
    ({"json": {"$ref": "#/$defs/missing"}}, "missing"),
    ({"json": {"type": "string", "enum": [1]}}, "Unsatisfiable"),
    ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable"),
    ({"json": {"type": "text"}}, "text"),
    ({"json": {"type": 3}}, ""),
    ({"json": {"not": {"type": "string"}}}, "not"),
    ({"json": {"type": "string", "format": "regex"}}, "cannot be enforced: regex; remove them"),
    ({"json": {"type": "object", "propertyNames": {"not": {}}}}, "propertyNames"),
    ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
    ({"json": {"type": "integer", "multipleOf": 1_000_003}}, "multipleOf"),
    ({"json": {"x-guidance": {"lenient": True}, "not": {}}}, "x-guidance"),
    ({"json": {"oneOf": [{"type": "object"}, {"type": "object"}]}}, "oneOf: two of its schemas"),
    ({"json": DEEP}, "deep"),
    ({"json": '{"type": "object"'}, "JSON"),
    ({"json": "[]"}, "object"),
    ({"regex": r"(?=a)b"}, "look-around"),
    ({"regex": r"(?<!a)b"}, "look-around"),
    ({"regex": r"(a)\1"}, "backreferences"),
    ({"regex": "(a"}, "unclosed"),
    ({"regex": "(" * 2000 + "a" + ")" * 2000}, ""),
    ({"regex": r"[^\s\S]"}, "no text"),
    ({"grammar": "start: missing"}, "missing"),
    ({"grammar": "no grammar at all"}, ""),
    ({"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "nested"),
    ({"grammar": 'start: %json {"type": "integer", "multipleOf": 1000003}'}, "multipleOf"),
]


@pytest.mark.parametrize(("fields", "reason"), BAD, ids=lambda case: str(case)[:50])
def test_a_bad_grammar_is_refused_with_its_reason_at_once(
    fields: dict[str, Any], reason: str, byte_compiler: GrammarCompiler
) -> None:
    (kind,) = fields
    with cpu_limit(1.0, time.process_time), pytest.raises(InvalidRequestError) as caught:
        byte_compiler.matcher(StructuredOutputs(**fields))
    assert caught.value.param == f"structured_outputs.{kind}"
    assert str(caught.value).startswith(f"structured_outputs.{kind}: ")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_texts_are_split_otherwise_where_the_tokenizer_fails(
    monkeypatch: pytest.MonkeyPatch, byte_tokenizer: Tokenizer
) -> None:
    def fail(_: str) -> list[int]:
        raise OverloadedError("no thread could be started")

    compiler = GrammarCompiler(lambda: Vocabulary(byte_tokenizer, byte_tokenizer.vocab_size, [1]))
    with monkeypatch.context() as failing:
        failing.setattr(byte_tokenizer, "encode_inside", fail)
        matcher = compiler.matcher(StructuredOutputs(json=ENDING))
    assert walk(cast(Matcher, matcher), byte_tokenizer, random.Random(0)).startswith('{"name"')


def test_a_failure_of_the_library_names_no_files(
    monkeypatch: pytest.MonkeyPatch, byte_tokenizer: Tokenizer
) -> None:
    def fail(*_: object) -> list[int]:
        raise ValueError("/home/secret")

    monkeypatch.setattr(Vocabulary, "split", fail)
    compiler = GrammarCompiler(lambda: Vocabulary(byte_tokenizer, byte_tokenizer.vocab_size, [1]))
    with pytest.raises(InvalidRequestError, match="llguidance fails on it") as caught:
        compiler.matcher(StructuredOutputs(json=ENDING))
    assert "secret" not in str(caught.value)


def test_what_costs_too_much_for_the_first_token_is_not_said_to_match_nothing() -> None:
    """Whether it does depends on the vocabulary, too."""
    path = next(Path(quire.__file__).parent.joinpath("bundled").rglob("tokenizer.json"))
    tokenizer = Tokenizer(Backend.from_file(str(path)))
    compiler = GrammarCompiler(lambda: Vocabulary(tokenizer, tokenizer.vocab_size, [0]))
    rules = [f"r{i}: /[^{chr(97 + i % 26)}]{{{i},{2 * i + 5}}}/ r{i}?" for i in range(200)]
    grammar = "\n".join(["start: " + "|".join(f"r{i}" for i in range(200)), *rules])
    with pytest.raises(InvalidRequestError, match="too many expressions constructed"):
        compiler.matcher(StructuredOutputs(grammar=grammar))


def test_one_of_several_kinds_is_taken(compiler: GrammarCompiler) -> None:
    def kind(name: str) -> dict[str, Any]:
        tag = {"kind": {"const": name}}
        return {"type": "object", "properties": tag, "required": ["kind"]}

    compiler.matcher(StructuredOutputs(json={"oneOf": [kind("a"), kind("b")]}))


COSTLY: list[dict[str, Any]] = [
    {"regex": "(a+)+b"},
    {"regex": "a{1,100000}"},
    {"regex": "((a{1,100}){1,100}){1,100}"},
    {"regex": "(a|b)*a(a|b){200}"},
    {"regex": ".*a.{50}b.*c.{50}"},
    {"regex": "(" + "|".join(f".*{c}.{{{20 + i}}}" for i, c in enumerate("abcdefghij")) + ")+"},
    {"regex": r"(\p{L}\w\d){1,500}"},
    {"json": {"enum": [f"value {i}" for i in range(3000)]}},
    {"json": {"type": "string", "minLength": 1_000_000}},
    {"json": {"type": "array", "minItems": 1_000_000_000}},
    {"json": {"type": "integer", "multipleOf": 9973}},
    {"json": {"$defs": {"n": {"properties": {"n": NODE}}}, **NODE}},
    {"json": {"$defs": {"n": ENDLESS}, **NODE}},
    {"choice": [f"choice number {i}" for i in range(1000)]},
    {"grammar": 'start: a a\na: a a | "x" | a "x" | '},
    {"grammar": 'start: "' + "abc" * 5000 + '"'},
]


@pytest.mark.parametrize("fields", COSTLY, ids=lambda fields: str(fields)[:50])
def test_a_costly_grammar_costs_little_or_is_given_up(
    fields: dict[str, Any], byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    with cpu_limit(1.0, time.process_time):
        matcher = byte_compiler.matcher(StructuredOutputs(**fields))
    rng, answer = random.Random(1), []
    for _ in range(40):
        with cpu_limit(0.25, time.process_time):
            ids = allowed_ids(matcher)
        if matcher.problem is not None:
            assert not ids
            return
        answer.append(rng.choice([i for i in ids if i != byte_tokenizer.eos_token_id]))
        matcher.advance_to(answer)
        if matcher.is_terminated:
            return


def test_a_second_request_copies_what_the_first_compiled(byte_tokenizer: Tokenizer) -> None:
    made = []

    def vocabulary() -> Vocabulary:
        made.append(1)
        return Vocabulary(byte_tokenizer, byte_tokenizer.vocab_size, [1])

    compiler = GrammarCompiler(vocabulary, cache_bytes=2 * GRAMMAR_BYTES + 1000)
    first = compiler.matcher(StructuredOutputs(regex="ab"))
    first.advance_to([byte_tokenizer.encode("a")[0]])
    second = compiler.matcher(StructuredOutputs(regex="ab"))
    assert allowed_ids(first) == byte_tokenizer.encode("b")
    assert allowed_ids(second) == byte_tokenizer.encode("a")
    assert made == [1]
    for pattern in "cdef":
        compiler.matcher(StructuredOutputs(regex=pattern))
    assert compiler._matchers.num_bytes <= 2 * GRAMMAR_BYTES + 1000


WORDS = ["aab", "ab", "abc", "abcc", "no", "yes", "ye", "noaa", "bcab"]


@pytest.mark.parametrize("words", [WORDS, WORDS[:3], WORDS[3:5], ["yes no", "yes  12"]])
def test_the_tokens_allowed_are_all_that_lead_somewhere(
    words: list[str], compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    """Against trying every token at every place. Where all texts go on alike, which tokens spell
    the common part is the tokenizer's choice, so that the model sees what it was trained on.
    """
    spelled = [word.encode() for word in words]
    pieces = {
        token_id: tokenizer.token_bytes(token_id)
        for token_id in range(tokenizer.vocab_size)
        if token_id not in tokenizer.special_ids and tokenizer.token_bytes(token_id)
    }

    def explore(answer: list[int], text: bytes) -> None:
        matcher = compiler.matcher(StructuredOutputs(choice=words))
        matcher.advance_to(answer)
        found = set(allowed_ids(matcher))
        expected = {
            token_id
            for token_id, piece in pieces.items()
            if any(word.startswith(text + piece) for word in spelled)
        }
        ends = {tokenizer.eos_token_id} if text in spelled else set()
        rests = {word[len(text) :][:1] for word in spelled if word.startswith(text)}
        if len(rests) > 1 or not expected:
            assert found == expected | ends
        else:
            assert found
            assert found <= expected
        assert matcher.is_accepting == (text in spelled)
        assert matcher.is_terminated == (not expected)
        for token_id in found - ends:
            explore([*answer, token_id], text + pieces[token_id])

    explore([], b"")


def test_a_matcher_may_start_in_the_middle(
    byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    constraint = StructuredOutputs(regex="[a-f]{3}-[0-9]{3}")
    text = byte_tokenizer.encode("abc-123")
    stepwise, one_by_one = (byte_compiler.matcher(constraint) for _ in range(2))
    for end in range(len(text) + 1):
        at_once = byte_compiler.matcher(constraint)
        at_once.advance_to(text[:end])
        stepwise.advance_to(text[:end])
        one_by_one.advance_to(text[:end])  # has accepted all of them
        assert allowed_ids(at_once) == allowed_ids(stepwise) == allowed_ids(one_by_one)
        assert allowed_ids(at_once.copy()) == allowed_ids(stepwise)
        if end < len(text):
            one_by_one.accept(text[end])
    assert at_once.is_terminated
    assert one_by_one.is_terminated


def test_a_token_that_does_not_fit_ends_it(
    byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    matcher = byte_compiler.matcher(StructuredOutputs(regex="abc"))
    matcher.advance_to(byte_tokenizer.encode("ax"))
    assert matcher.problem
    assert allowed_ids(matcher) == []
    assert not matcher.is_terminated
    assert not matcher.is_accepting


def test_a_vocabulary_goes_with_its_compiler(byte_tokenizer: Tokenizer) -> None:
    made = [Vocabulary(byte_tokenizer, byte_tokenizer.vocab_size, [1])]
    compiler, held = GrammarCompiler(made.pop), weakref.ref(made[0])
    matcher = compiler.matcher(StructuredOutputs(choice=["yes"]))
    assert allowed_ids(matcher)
    del compiler, matcher
    gc.collect()
    assert held() is None


def test_end_tokens_are_no_text_and_a_model_may_have_none(byte_tokenizer: Tokenizer) -> None:
    """An ordinary token that ends answers does not stand inside one."""
    size = byte_tokenizer.vocab_size
    (letter,) = byte_tokenizer.encode("a")
    with_letter = GrammarCompiler(lambda: Vocabulary(byte_tokenizer, size, [letter, size + 3]))
    with_none = GrammarCompiler(lambda: Vocabulary(byte_tokenizer, size, []))
    constraint = StructuredOutputs(regex="[ab]{1,2}")
    (other,) = byte_tokenizer.encode("b")
    for compiler, end in ((with_letter, letter), (with_none, size)):
        matcher = compiler.matcher(constraint)
        before = [i for i in allowed_ids(matcher) if i < size]
        matcher.advance_to([other])
        assert end not in before
        assert end in allowed_ids(matcher)
        matcher.advance_to([other, other])
        assert matcher.is_terminated


def test_tokens_that_the_model_does_not_have_are_not_offered(tokenizer: Tokenizer) -> None:
    eos = tokenizer.eos_token_id
    assert eos is not None
    size = tokenizer.vocab_size - 5
    compiler = GrammarCompiler(lambda: Vocabulary(tokenizer, size, [eos]))
    for pattern in (".*", "yes|no", "yes", '"  12'):
        assert max(allowed_ids(compiler.matcher(StructuredOutputs(regex=pattern)))) < size


def test_an_object_may_have_as_many_optional_members_as_fit(
    byte_compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    members = {f"p{index}": {"type": "boolean"} for index in range(1200)}
    schema = {"type": "object", "properties": members, "additionalProperties": False}
    matcher = byte_compiler.matcher(StructuredOutputs(json=schema))
    matcher.advance_to(byte_tokenizer.encode_inside('{"p7": true, "p1199": false'))
    assert allowed_ids(matcher) == byte_tokenizer.encode_inside("}")


def test_words_that_are_no_keywords_constrain_nothing(compiler: GrammarCompiler) -> None:
    words = {"not_a_keyword": 1, "x-order": 1, "discriminator": 1, "format": "binary"}
    for word, value in words.items():
        outputs = StructuredOutputs(json={"type": "boolean", word: value})
        plain = StructuredOutputs(json={"type": "boolean"})
        assert allowed_ids(compiler.matcher(outputs)) == allowed_ids(compiler.matcher(plain))
