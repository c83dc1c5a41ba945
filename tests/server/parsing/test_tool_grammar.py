"""Forced calls: what a grammar allows is read as calls, and what it must not allow is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from quire.core.sampling_params import StructuredOutputs
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.grammar_matcher import AnyMatcher
from quire.server.parsing.output_events import join
from quire.server.parsing.output_parser import OutputParser, ParserConfig
from quire.server.parsing.reasoning_parser import REASONING_PARSERS
from quire.server.parsing.tool_grammar import NoGrammarError, answer_grammar, thought_mark
from quire.server.parsing.tool_parser import KEY_FIELD, NAME_FIELD
from quire.server.parsing.tool_parsers import TOOL_PARSERS

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer"}},
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FORMATS = sorted(TOOL_PARSERS)


def reading(format_name: str, reasoning: str | None = None, **options: Any) -> ParserConfig:
    tools = {"weather": CITY, "now": NOTHING}
    thoughts = REASONING_PARSERS[reasoning] if reasoning else None
    return ParserConfig(thoughts, tool_parser=TOOL_PARSERS[format_name], tools=tools, **options)


def grammar(how: ParserConfig, ids: dict[str, int], **options: Any) -> str:
    how = msgspec.structs.replace(how, must_call=options.pop("must_call", True))
    return answer_grammar(how, control_token_id=ids.get, **({"text_format": None} | options))


class Bytes:
    """A vocabulary of bytes alone."""

    def build(self) -> LLTokenizer:
        """llguidance's own."""
        return LLTokenizer("byte")


COMPILER = GrammarCompiler(Bytes)


def matcher(how: ParserConfig, **options: Any) -> AnyMatcher:
    text, mark = grammar(how, {}, **options), thought_mark(how, lambda _: None)
    return COMPILER.matcher(StructuredOutputs(grammar=text, thought_mark=mark))


def allowed(made: AnyMatcher) -> list[int]:
    """The bytes that may come next."""
    mask = made.token_bitmask()
    return [i for i in range(256) if mask[i // 8] >> i % 8 & 1]


def allows(how: ParserConfig, text: str, **options: Any) -> bool:
    """Whether an answer may be this text: in one piece, and byte by byte with masks."""
    made, tokens = matcher(how, **options), list(text.encode())
    in_one = made.copy()
    in_one.advance_to(tokens)
    for token in tokens:
        if token not in allowed(made):
            assert in_one.problem is not None
            return False
        made.accept(token)
    assert in_one.token_bitmask() == made.token_bitmask()
    assert in_one.is_accepting == made.is_accepting
    return made.is_accepting


def written(format_name: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """Tool calls as the models of a format write them."""
    frame = TOOL_PARSERS[format_name].frame
    texts = []
    for name, arguments in calls:
        text = json.dumps(arguments, ensure_ascii=False)
        if tags := frame.tags:
            shown = [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in arguments.items()]
            text = "".join(
                tags.before.replace(KEY_FIELD, k) + v + tags.space + tags.end + tags.after
                for k, v in shown
            )
        texts.append(frame.before.replace(NAME_FIELD, name) + text + frame.after)
    return frame.begin + (frame.between or "").join(texts) + frame.end


WEATHER = ("weather", {"city": 'Parîs "x"', "days": 3})
NOW: tuple[str, dict[str, Any]] = ("now", {})


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("calls", [[WEATHER], [NOW], [NOW, WEATHER]])
def test_what_is_allowed_is_read_as_calls(format_name: str, calls: list[tuple[str, Any]]) -> None:
    text = written(format_name, *calls)
    several = len(calls) == 1 or TOOL_PARSERS[format_name].frame.between is not None
    assert allows(reading(format_name), text) == several
    assert allows(reading(format_name, most_calls=1), text) == (len(calls) == 1)
    if several:
        parser = OutputParser(reading(format_name))
        answer = join(parser.push(text) + parser.finish())
        assert [(c.name, json.loads(c.arguments)) for c in answer.calls] == calls
        assert parser.called_tools


@pytest.mark.parametrize("format_name", FORMATS)
def test_what_does_not_fit_is_not_allowed(format_name: str) -> None:
    how = reading(format_name)
    assert not allows(how, written(format_name, ("other", {})))
    assert not allows(how, written(format_name, ("weather", {"days": 3})))
    assert not allows(how, written(format_name, ("weather", {"city": "a", "days": "b"})))
    assert not allows(how, "text " + written(format_name, NOW))
    assert not allows(how, "")


@pytest.mark.parametrize("format_name", [n for n in FORMATS if not TOOL_PARSERS[n].frame.tags])
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"n": {"type": "integer"}}},
        {"anyOf": [{"properties": {"n": {"type": "integer"}}}, {"type": "null"}]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"type": "integer"}}}}},
    ],
)
def test_arguments_are_an_object(format_name: str, schema: dict[str, Any]) -> None:
    how = ParserConfig(tool_parser=TOOL_PARSERS[format_name], tools={"f": schema})
    call = written(format_name, ("f", {"n": 3}))
    assert allows(how, call)
    for other in ("3", "null", "[]", '{"n": null}'):
        assert not allows(how, call.replace('{"n": 3}', other)), other


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    "unit",
    [{"enum": ["C", "F"]}, {"$ref": "#/$defs/unit"}, {"anyOf": [{"const": "C"}, {"type": "null"}]}],
)
def test_a_text_is_one_of_those_listed(format_name: str, unit: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"unit": unit}, "additionalProperties": False}
    schema["$defs"] = {"unit": {"type": "string", "enum": ["C"]}}
    how = ParserConfig(tool_parser=TOOL_PARSERS[format_name], tools={"heat": schema})
    assert allows(how, written(format_name, ("heat", {"unit": "C"})))
    assert not allows(how, written(format_name, ("heat", {"unit": "K"})))


@pytest.mark.parametrize("format_name", FORMATS)
def test_without_force_there_may_be_text(format_name: str) -> None:
    how, call = reading(format_name), written(format_name, WEATHER)
    lead = "" if TOOL_PARSERS[format_name].bare else "I ask. "
    for text in ("", "It < rains [now]", lead + call):
        assert allows(how, text, must_call=False), text
    wrong = written(format_name, ("weather", {"days": 3}))
    assert not allows(how, lead + wrong, must_call=False)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("must_call", [True, False])
def test_thoughts_come_first(format_name: str, must_call: bool) -> None:
    call = written(format_name, NOW)
    how = reading(format_name, "think")
    for text in (call, f"<think>\n<b> hm\n</think>\n\n{call}"):
        assert allows(how, text, must_call=must_call)
    opened = reading(format_name, "think", in_reasoning=True)
    assert allows(opened, f"hm</think>\n{call}", must_call=must_call)
    assert not allows(opened, call, must_call=must_call)


def test_control_tokens_are_meant_as_such() -> None:
    ids = {"[TOOL_CALLS]": 7, "[ARGS]": 9}
    text = grammar(reading("mistral_args"), ids)
    assert 'call_1: <[7]> "now" <[9]> arguments_1' in text
    text = grammar(reading("mistral_args"), ids, must_call=False)
    assert "lead: TEXT <[7]>" in text


def test_tags_may_be_control_tokens() -> None:
    text = grammar(reading("glm45"), {"<arg_key>": 7, "<arg_value>": 8, "</arg_value>": 9})
    assert "value_0_0: value_0_0_end" in text
    assert "value_0_0_end: TEXT <[9]>" in text
    assert '<[7]> "city</arg_key>\\n" <[8]> value_0_0' in text


@pytest.mark.parametrize("format_name", ["qwen3_coder", "glm45"])
def test_a_parameter_that_no_tag_can_name(format_name: str) -> None:
    tools = {"f": {"properties": {"a>b": {}}}}
    how = ParserConfig(tool_parser=TOOL_PARSERS[format_name], tools=tools)
    with pytest.raises(NoGrammarError, match="a>b"):
        grammar(how, {})


TEXT_FORMATS = [
    (StructuredOutputs(json={"type": "object", "properties": {}}), "{}"),
    (StructuredOutputs(json_object=True), '{"a": 1}'),
    (StructuredOutputs(json_object=True, disable_any_whitespace=True), '{"a":1}'),
    (StructuredOutputs(json={}, whitespace_pattern=r"[ \n]*"), '{\n  "a" : 1\n}'),
    (StructuredOutputs(choice=["yes", 'n"o']), 'n"o'),
    (StructuredOutputs(regex=r"a/\/b\nc|x\d+"), "a//b\nc"),
    (StructuredOutputs(grammar='start: a "!"\na: "b"+'), "bb!"),
    (StructuredOutputs(grammar='root ::= a "\\"!"\na ::= "b"+'), 'bb"!'),
]


@pytest.mark.parametrize(("format_name", "text"), TEXT_FORMATS)
def test_a_response_format_applies_to_the_text_alone(
    format_name: StructuredOutputs, text: str
) -> None:
    thinking = ParserConfig(REASONING_PARSERS["think"])
    options = {"must_call": False, "text_format": format_name}
    for answer in (text, f"<think>hm</think>\n{text}"):
        assert allows(thinking, answer, **options)
    assert not allows(thinking, f"<think>hm</think>\n{text}?", **options)
    how, call = reading("hermes", "think"), written("hermes", WEATHER)
    for answer in (text, call, f"<think>hm</think>\n{call}"):
        assert allows(how, answer, **options)
    assert not allows(how, text + call, **options)
    assert not allows(how, text, must_call=True, text_format=format_name)


@pytest.mark.parametrize(
    "format_name",
    [
        StructuredOutputs(json="[]"),
        StructuredOutputs(json="{"),
    ],
)
def test_grammars_that_exclude_reasoning_are_refused(format_name: StructuredOutputs) -> None:
    with pytest.raises(NoGrammarError):
        grammar(
            ParserConfig(REASONING_PARSERS["think"]), {}, must_call=False, text_format=format_name
        )


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_forced_call_that_is_cut_leaves_no_text(format_name: str) -> None:
    how = reading(format_name, "think", must_call=True)
    text = f"<think>hm</think>\n{written(format_name, WEATHER)}"
    for end in range(len(text)):
        parser = OutputParser(how)
        answer = join(parser.push(text[:end]) + parser.finish())
        assert answer.text == "", text[:end]


@settings(max_examples=40)
@given(st.sampled_from(FORMATS), st.lists(st.integers(0, 2**20), min_size=40, max_size=40))
def test_a_model_that_answers_anything_calls_tools(format_name: str, numbers: list[int]) -> None:
    how = reading(format_name, most_calls=1)
    made, text = matcher(how), bytearray()
    for number in numbers * 20:
        if made.is_accepting or made.is_terminated:
            break
        everything = allowed(made)
        ascii_ = [i for i in everything if i < 128] or everything
        letters = [i for i in ascii_ if chr(i) in '"}\n<>/:'] or ascii_
        text.append(letters[number % len(letters)])
        made.advance_to(text)
    parser = OutputParser(how)
    answer = join(parser.push(text.decode()) + parser.finish())
    assert len(answer.calls) <= 1
    if made.is_accepting:
        assert parser.called_tools, text


def test_definitions_are_repeated_only_for_values_that_refer_to_them() -> None:
    names = {"type": "string", "enum": [f"name {n}" for n in range(500)]}
    properties: dict[str, Any] = {f"n{n}": {"type": "integer"} for n in range(50)}
    schema = {"properties": properties, "$defs": {"name": names}}
    how = ParserConfig(tool_parser=TOOL_PARSERS["glm45"], tools={"f": schema})
    assert allows(how, written("glm45", ("f", {"n3": 3})))
    properties |= {f"m{n}": {"$ref": "#/$defs/name"} for n in range(50)}
    with pytest.raises(NoGrammarError, match="their grammar has more than 65536 bytes"):
        grammar(how, {})


DAYS = {"Day": {"type": "string", "enum": ["mon", "5"]}, "n": {"type": "integer"}}
VALUES = st.recursive(
    st.sampled_from(
        [
            *({}, True, {"type": "integer"}, {"type": ["string", "null"]}, {"const": 7}),
            *({"enum": ["a", "b\n"]}, {"$ref": "#/$defs/Day"}, {"$ref": "#/$defs/n"}),
            {"type": "boolean", "description": "%json {"},
        ]
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda several: {"anyOf": several}),
        inner.map(lambda items: {"type": "array", "items": items, "maxItems": 2}),
    ),
    max_leaves=3,
)


@settings(max_examples=60)
@given(
    st.sampled_from(FORMATS),
    st.dictionaries(st.sampled_from(["a", "KEY", "n b", "é"]), VALUES, max_size=3),
    st.lists(st.integers(0, 2**20), min_size=20, max_size=20),
)
@example("glm45", {"a": {"anyOf": [{"const": 7}, {"$ref": "#/$defs/Day"}]}}, [0] * 20)
def test_whatever_is_allowed_fits_the_schema(
    format_name: str, properties: dict[str, Any], numbers: list[int]
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = {"properties": properties, "required": sorted(properties)[:2], "$defs": DAYS}
    schema["additionalProperties"] = False
    how = ParserConfig(tool_parser=TOOL_PARSERS[format_name], tools={"f": schema}, most_calls=1)
    made, text = matcher(how), bytearray()
    for number in numbers * 20:
        if made.is_accepting or made.is_terminated:
            break
        everything = [i for i in allowed(made) if 32 <= i < 127] or allowed(made)
        closing = [i for i in everything if chr(i) in '"}]\n</p'] if len(text) > 60 else []
        text.append((closing or everything)[number % len(closing or everything)])
        made.advance_to(text)
    parser = OutputParser(how)
    answer = join(parser.push(text.decode(errors="replace")) + parser.finish())
    if made.is_accepting:
        assert parser.called_tools
        jsonschema.validate(json.loads(answer.calls[0].arguments), schema)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"properties": [1]}, "properties must be an object"),
        ({"properties": None}, "properties must be an object"),
        ({"required": True}, "properties must be an object"),
        ({"minProperties": 1}, "minProperties beside properties cannot be enforced"),
        ({"$ref": "#/$defs/now"}, r"\$ref beside properties"),
        ({"required": ["day"]}, "'day' is required, but not among the properties"),
        ({"required": [["day"]]}, "is required, but not among the properties"),
    ],
)
def test_schemas_that_are_none_are_refused(wrong: dict[str, Any], problem: str) -> None:
    how = ParserConfig(
        tool_parser=TOOL_PARSERS["qwen3_coder"], tools={"now": {"type": "object"} | wrong}
    )
    with pytest.raises(NoGrammarError, match=problem):
        grammar(how, {})


@pytest.mark.parametrize("format_name", FORMATS)
def test_texts_in_a_schema_are_no_grammar(format_name: str) -> None:
    text = 'as %json {x} or %json{"multipleOf": 1000003}'
    days = {"type": "integer", "description": text}
    properties = {"days": days, "any": True}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    how = ParserConfig(tool_parser=TOOL_PARSERS[format_name], tools={"plan": schema})
    assert allows(how, written(format_name, ("plan", {"days": 3, "any": "x"})))


TAGS = {
    "format": {
        "type": "triggered_tags",
        "triggers": ["<q"],
        "tags": [
            {"begin": "<q>", "content": {"type": "json_schema", "json_schema": CITY}, "end": "</q>"}
        ],
    }
}
QUERY = '<q>{"city": "Rome"}</q>'


@pytest.mark.parametrize("format_name", FORMATS)
def test_text_with_constrained_tags_stands_beside_tools(format_name: str) -> None:
    how, call = reading(format_name), written(format_name, WEATHER)
    tags = {"must_call": False, "text_format": StructuredOutputs(structural_tag=TAGS)}
    for text in (call, "plain", f"so {QUERY} and", f"{QUERY}{QUERY}"):
        assert allows(how, text, **tags), text
    for text in ("<q>no</q>", '<q>{"days": 3}</q>', "<query>"):
        assert not allows(how, text, **tags), text
    assert not allows(how, QUERY, **tags | {"must_call": True})


def test_text_with_constrained_tags_comes_after_thoughts() -> None:
    how = reading("hermes", "think")
    tags = {"must_call": False, "text_format": StructuredOutputs(structural_tag=TAGS)}
    assert allows(how, f"<think>\nhm\n</think>\n\nso {QUERY}", **tags)
    assert not allows(how, "<think>\nhm\n</think>\n\n<q>no</q>", **tags)


@pytest.mark.parametrize("tree", [{"type": "no such"}, {"type": "tag", "begin": "a"}])
def test_a_structural_tag_that_cannot_be_read_is_refused_beside_tools(tree: dict[str, Any]) -> None:
    wrong = StructuredOutputs(structural_tag={"format": tree})
    with pytest.raises(NoGrammarError):
        grammar(reading("hermes"), {}, must_call=False, text_format=wrong)


SCHEMA_TAGS = StructuredOutputs(
    structural_tag={
        "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<f"],
    }
)


@pytest.mark.parametrize("in_reasoning", [False, True])
@pytest.mark.parametrize(
    ("answer", "is_allowed"),
    [
        ("maybe <f or <f>abc</f></think>Well <f>12</f> it is", True),
        ("no tag</think>Well", True),
        ("maybe <f>1</f></think>Well <f>abc</f>", False),
        ("<f>abc</f>, and no end", False),
    ],
)
def test_structural_tags_begin_after_the_thought(
    in_reasoning: bool, answer: str, is_allowed: bool
) -> None:
    how = reading(FORMATS[0], reasoning="think", in_reasoning=in_reasoning)
    how = msgspec.structs.replace(how, tool_parser=None)
    begin = "" if in_reasoning else "<think>"
    options = {"text_format": SCHEMA_TAGS, "must_call": False}
    assert allows(how, begin + answer, **options) is is_allowed


@pytest.mark.parametrize(
    ("answer", "is_allowed"), [("1 <f>12</f> 2", True), ("<f>x</f>", False), ("<thin", True)]
)
def test_structural_tags_stand_in_answers_without_a_thought(answer: str, is_allowed: bool) -> None:
    how = msgspec.structs.replace(reading(FORMATS[0], reasoning="think"), tool_parser=None)
    assert allows(how, answer, text_format=SCHEMA_TAGS, must_call=False) is is_allowed


ANY_THEN_DIGITS = [
    StructuredOutputs(regex=r"(?s:[^x]*)\d{3}"),
    StructuredOutputs(grammar="start: ANY\nANY: /(?s:[^x]*)/ /[0-9]{3}/"),
    StructuredOutputs(grammar='start: lead NUM\nlead[lazy]: /(?s:[^x]*)/ ">"\nNUM: /[0-9]{3}/'),
    StructuredOutputs(grammar="root ::= [^x]* [0-9] [0-9] [0-9]"),
]


@pytest.mark.parametrize("text_format", ANY_THEN_DIGITS)
@pytest.mark.parametrize("mark_space", ["", "\n"])
def test_constraints_of_any_text_begin_after_the_thought(
    text_format: StructuredOutputs, mark_space: str
) -> None:
    how = ParserConfig(REASONING_PARSERS["think"])
    options: dict[str, Any] = {"text_format": text_format, "must_call": False}
    assert allows(how, "b->123", **options)
    assert allows(how, "<thin>123", **options)
    assert not allows(how, "x->123", **options)
    # without a mark after white space, since a thought may only begin at once
    may_think = not mark_space
    assert allows(how, f"{mark_space}<think>x</think>b->123", **options) is may_think
    for answer in ("<think>123", "<think>b</think>x->123", "<think>b</think>12", "<think>>123"):
        assert not allows(how, mark_space + answer, **options)


def test_what_begins_as_a_mark_does_may_be_an_answer() -> None:
    angle = StructuredOutputs(grammar='start: "<" NAME ">"\nNAME: /[a-z]+/')
    how = ParserConfig(REASONING_PARSERS["think"])
    options: dict[str, Any] = {"text_format": angle, "must_call": False}
    for name in ("t", "table", "thin", "thinks"):
        assert allows(how, f"<{name}>", **options)
        assert allows(how, f"<think>a</think><{name}>", **options)
    assert not allows(how, "<think>", **options)
    one = StructuredOutputs(choice=["<", "yes"])
    assert allows(how, "<", must_call=False, text_format=one)


def test_a_trigger_within_a_thought_constrains_nothing() -> None:
    how, call = reading("hermes", "think"), written("hermes", NOW)
    wrong = "<tool_call>{}</tool_call>"
    for must_call in (True, False):
        assert allows(how, f"<think>so {wrong}</think>{call}", must_call=must_call)
        assert not allows(how, f"<think>so {call}</think>{wrong}", must_call=must_call)
    assert not allows(how, f"<think>{wrong}", must_call=False)


def test_a_control_token_begins_a_thought_within_the_grammar() -> None:
    how, ids = ParserConfig(REASONING_PARSERS["think"]), {"<think>": 7, "</think>": 8}
    assert grammar(how, ids, must_call=False, text_format=ANY_THEN_DIGITS[0]).startswith(
        "start: thought? form\n"
    )
    assert thought_mark(how, ids.get) is None
    opened = ParserConfig(REASONING_PARSERS["think"], in_reasoning=True)
    assert thought_mark(opened, lambda _: None) is None
    ended = ParserConfig(REASONING_PARSERS["think"], is_past_reasoning=True)
    assert thought_mark(ended, lambda _: None) is None
    for known in (ids, {}):
        text = grammar(ended, known, must_call=False, text_format=ANY_THEN_DIGITS[0])
        assert text.startswith("start: form\n")
