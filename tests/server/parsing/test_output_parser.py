"""Outputs of every format: well-formed, malformed, cut anywhere, and hostile."""

from __future__ import annotations

import json
import re
import sys
import time
from itertools import count, pairwise
from typing import Any

import pytest
from cpu_limit import cpu_limit
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.server.parsing.output_events import (
    Answer,
    Event,
    ToolCall,
    ToolCallArguments,
    arguments_of,
    join,
)
from quire.server.parsing.output_parser import OutputParser, ParserConfig
from quire.server.parsing.reasoning_parser import REASONING_PARSERS
from quire.server.parsing.text_source import MAX_ATTEMPT_CHARS, MAX_SPACE_CHARS
from quire.server.parsing.tool_parser import long_id, short_id
from quire.server.parsing.tool_parsers import TOOL_PARSERS

TOOLS: dict[str, dict[str, Any]] = {
    "f": {"properties": {"a": {"type": "string"}, "n": {"type": ["integer", "null"]}, "x": {}}},
    "get.weather-2": {},
}
FORMATS = sorted(TOOL_PARSERS)


def reading(tools: str | None, reasoning: str | None = None, **options: Any) -> ParserConfig:
    format_name = TOOL_PARSERS[tools] if tools else None
    thoughts = REASONING_PARSERS[reasoning] if reasoning else None
    return ParserConfig(thoughts, tool_parser=format_name, **({"tools": TOOLS} | options))


def parse(how: ParserConfig, *pieces: str) -> tuple[Answer, bool]:
    numbers = count()
    parser = OutputParser(how, new_id=lambda: f"id{next(numbers)}")
    events: list[Event] = []
    for piece in pieces:
        events += parser.push(piece)
    return join(events + parser.finish()), parser.called_tools


def parsed(format_name: str, text: str, **options: Any) -> tuple[str, list[tuple[str, str]], bool]:
    """Text, calls and whether all is well; checked to be the same character by character."""
    how = reading(format_name, **options)
    answer, called = parse(how, text)
    assert (answer, called) == parse(how, *text)
    return answer.text, [(call.name, call.arguments) for call in answer.calls], called


# What models write

DS = {
    "calls": "<｜tool▁calls▁begin｜>",
    "call": "<｜tool▁call▁begin｜>",
    "sep": "<｜tool▁sep｜>",
    "end": "<｜tool▁call▁end｜>",
    "over": "<｜tool▁calls▁end｜>",
}
ARGUMENTS = '{"a": "x\\n\\u00e9", "n": [1, -2.5e3, {"b": null}], "x": {}}'
WELL_FORMED = {
    "hermes": [
        '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>',
        '<tool_call>{"arguments": %s, "name": "f"}</tool_call>\n',
        '<tool_call>\n{"name": "f", "arguments": %s\n</tool_call>',  # a brace is missing
        '<tool_call>\n{"id": "1", "name": "f", "arguments": %s, "type": "function"}',
    ],
    "llama3": [
        '{"name": "f", "parameters": %s}',
        ' \n{"type": "function", "name": "f", "parameters": %s};',
        '<|python_tag|>{"name": "f", "parameters": %s}',
    ],
    "mistral": [
        '[TOOL_CALLS] [{"name": "f", "arguments": %s}]',
        '[TOOL_CALLS][{"name": "f", "arguments": %s, "id": "abcdefghi"}]',
        "[TOOL_CALLS]f[ARGS]%s",
        "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]%s",
    ],
    "deepseek_v3": [
        f"{DS['calls']}{DS['call']}function{DS['sep']}f\n```json\n%s\n```{DS['end']}{DS['over']}",
        f"{DS['calls']}\n{DS['call']}function{DS['sep']}f\n%s\n{DS['end']}\n",
    ],
    "deepseek_v31": [
        f"{DS['calls']}{DS['call']}f{DS['sep']}%s{DS['end']}{DS['over']}",
        f"{DS['calls']}{DS['call']}f{DS['sep']}%s",
    ],
    "phi4_mini_json": [
        '<|tool_call|>[{"name": "f", "arguments": %s}]<|/tool_call|>',
        'functools[{"name": "f", "arguments": %s}]',
    ],
    "granite": ['<|tool_call|> [{"name": "f", "arguments": %s}]'],
    "internlm": [
        '<|action_start|><|plugin|>\n{"name": "f", "parameters": %s}<|action_end|>',
        '<|action_start|> <|plugin|>{"name": "f", "parameters": %s}\n<|action_end|>',
    ],
}


@pytest.mark.parametrize(
    ("format_name", "text"),
    [(format_name, text) for format_name, texts in WELL_FORMED.items() for text in texts],
)
def test_a_call(format_name: str, text: str) -> None:
    rest, calls, called = parsed(format_name, text % ARGUMENTS)
    assert (calls, called) == ([("f", ARGUMENTS)], True)
    assert rest in ("", ";")


@pytest.mark.parametrize(
    ("format_name", "text"),
    [
        ("hermes", '<tool_call>{"name":"f","arguments":{}}</tool_call>\n\n' * 2),
        ("llama3", '{"name":"f","parameters":{}}; {"name":"f","parameters":{}}'),
        ("mistral", '[TOOL_CALLS][{"name":"f","arguments":{}} ,\n{"name":"f","arguments":{}}]'),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}" * 2),
        ("qwen3_coder", "<tool_call><function=f></function></tool_call>\n" * 2),
        ("glm45", "<tool_call>f\n</tool_call>\n<tool_call>f</tool_call>"),
        (
            "deepseek_v31",
            DS["calls"] + f"{DS['call']}f{DS['sep']}{{}}{DS['end']}\n" * 2 + DS["over"],
        ),
        ("deepseek_v3", DS["calls"] + f"{DS['call']}f{DS['sep']}{{}}{DS['end']}" * 2),
        ("granite", '<|tool_call|>[{"name":"f","arguments":{}},{"name":"f","arguments":{}}]'),
    ],
)
def test_several_calls_and_at_most_one(format_name: str, text: str) -> None:
    assert parsed(format_name, text) == ("", [("f", "{}")] * 2, True)
    assert parsed(format_name, text + "rest", most_calls=1) == ("", [("f", "{}")], True)


def test_text_around_calls_stays() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    assert parsed("hermes", f"Let me see.\n\n{call}\n") == ("Let me see.", [("f", "{}")], True)
    assert parsed("hermes", f"{call} and {call}")[0] == " and"
    assert parsed("hermes", f"a < b <tool {call[:-1]}")[0] == "a < b <tool</tool_call"


def test_line_ends_inside_strings_are_mended() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "x\n\ty"}}</tool_call>'
    assert parsed("hermes", text) == ("", [("f", '{"a": "x\\n\\ty"}')], True)


XML_CALL = """<tool_call>
<function=f>
<parameter=a>
 say "hi"
 twice

</parameter>
<parameter=n>
%s
</parameter>
<parameter=x>%s</parameter>
<parameter=new>5</parameter>
</function>
</tool_call>"""


GLM_CALL = """<tool_call>f
<arg_key>a</arg_key>
<arg_value> say "hi"
 twice
</arg_value>
<arg_key>n</arg_key>
<arg_value>%s</arg_value>
<arg_key>x</arg_key><arg_value>
%s
</arg_value><arg_key>new</arg_key><arg_value>5</arg_value></tool_call>"""


@pytest.mark.parametrize(
    ("format_name", "text"), [("qwen3_coder", XML_CALL), ("glm45", GLM_CALL)], ids=lambda v: v[:5]
)
@pytest.mark.parametrize(
    ("n", "x", "values"),
    [
        ("7", '{"q": [1]}', [7, {"q": [1]}]),
        ("None", "True", [None, True]),
        ("1.5", "a < b", ["1.5", "a < b"]),
        ("9" * 5000, "NaN", ["9" * 5000, "NaN"]),
        ("[" * 100_000, "[" * 1000, ["[" * 100_000, "[" * 1000]),
    ],
    ids=["json", "python", "no fit", "no json", "deep"],
)
def test_bare_values_get_the_type_of_their_schema(
    format_name: str, text: str, n: str, x: str, values: list[Any]
) -> None:
    how = reading(format_name)
    answer, called = parse(how, "ok\n" + text % (n, x))
    if format_name == "glm45" and isinstance(values[1], str):
        values = [values[0], f"\n{x}\n"]  # a string is all that stands between the tags
    expected = {"a": ' say "hi"\n twice\n', "n": values[0], "x": values[1], "new": "5"}
    assert called
    assert answer.text == "ok"
    assert json.loads(answer.calls[0].arguments) == expected


TEXT_OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
DEFS = {"t": TEXT_OR_NULL, "loop": {"oneOf": [{"$ref": "#/$defs/loop"}, {"const": 7}]}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (TEXT_OR_NULL, "5", "5"),
        (TEXT_OR_NULL, "null", None),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"const": "true"}, "true", "true"),
        ({"anyOf": [{"const": 7}, {"type": "string"}]}, "7", 7),
        ({"anyOf": [{"const": 7}, {"type": "string"}]}, "5", "5"),
        ({"anyOf": [{"enum": [1, 2.5]}, {"type": ["boolean", "string"]}]}, "true", True),
        ({"const": 7}, "5", 5),
        ({"$ref": "#/$defs/t"}, "5", "5"),
        ({"$ref": "#/$defs/loop"}, "7", 7),
        ({"$ref": "#/$defs/loop"}, "[7]", "[7]"),
        ({"$ref": "#/$defs/none"}, "5", 5),
        ({"anyOf": [{"type": "string"}, {}]}, "5", 5),
        (True, "5", 5),
        ({"anyOf": [{"type": "string"}] * 200}, "5", 5),  # too many to look at
    ],
    ids=str,
)
def test_types_may_be_those_of_alternatives(schema: Any, text: str, value: Any) -> None:
    tools = {"f": {"properties": {"v": schema}, "$defs": DEFS}}
    call = f"<tool_call>f<arg_key>v</arg_key><arg_value>{text}</arg_value></tool_call>"
    answer, called = parse(ParserConfig(tool_parser=TOOL_PARSERS["glm45"], tools=tools), call)
    assert called
    assert json.loads(answer.calls[0].arguments) == {"v": value}


# What is no call

NO_CALLS = [
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_call> </tool_call>"),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments"'),
    ("hermes", '<tool_call>{"name": "f", "name": "f", "arguments": {}}'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 01}, "name": "f"}</tool_call>'),
    ("hermes", "<tool_call>f(1)</tool_call>"),
    ("hermes", "<tool_call>" + " " * (MAX_ATTEMPT_CHARS + 9)),
    ("hermes", " \n" * 200),
    ("llama3", ' {"answer": 42}'),
    ("llama3", 'Use {"name": "f", "parameters": {}}'),
    ("llama3", "<|python_tag|>print(1)"),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS][]"),
    ("mistral", "[TOOL_CALLS]unknown[ARGS]{}"),
    ("qwen3_coder", "<tool_call>\n<function=unknown>\n</function></tool_call>"),
    ("qwen3_coder", "<function=>"),
    ("qwen3_coder", "<function=f> so"),
    ("glm45", "<tool_call>"),
    ("glm45", "<tool_call>f and so on"),
    ("glm45", "<tool_call>unknown\n</tool_call>"),
    ("glm45", "<tool_call>f<arg_key>a</arg_key> b"),
    ("deepseek_v3", DS["calls"] + DS["over"]),
    ("deepseek_v3", f"{DS['calls']}{DS['call']}f{DS['sep']}f\n{{}}"),
    ("deepseek_v3", f"{DS['calls']}{DS['call']}function{DS['sep']}unknown\n```json\n{{}}\n```"),
    ("deepseek_v31", f"{DS['calls']}{DS['call']}unknown{DS['sep']}{{}}{DS['end']}"),
    ("phi4_mini_json", "functools[]"),
    ("phi4_mini_json", "functools.partial"),
    ("granite", "<|tool_call|>{}"),
    ("internlm", '<|action_start|><|interpreter|>\n{"name": "f", "parameters": {}}'),
]


@pytest.mark.parametrize(("format_name", "text"), NO_CALLS)
def test_what_is_no_call_comes_back_as_it_was(format_name: str, text: str) -> None:
    for around in (text, f"a \n{text}", f"{text} \nb"):
        if format_name != "llama3" or around is not text:
            assert parsed(format_name, around) == (around, [], False)


@pytest.mark.parametrize(
    ("format_name", "text", "arguments", "rest"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1, 2}} b', '{"a": 1, ', "2}} b"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": tru', '{"a": ', "tru"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', '{"a": "b', ""),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a" "b"}', '{"a" ', '"b"}'),
        ("qwen3_coder", "<function=f><parameter=a>1", '{"a": "1', ""),
        ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>", '{"a": "1"', ""),
        ("deepseek_v31", f"{DS['calls']}{DS['call']}f{DS['sep']}{{,", "{", ","),
    ],
)
def test_a_call_that_breaks_in_its_arguments_keeps_them(
    format_name: str, text: str, arguments: str, rest: str
) -> None:
    assert parsed(format_name, text) == (rest, [("f", arguments)], False)


# Thoughts


@pytest.mark.parametrize(
    ("text", "in_reasoning", "thought", "rest"),
    [
        ("<think>\nhm\n\n</think>\n\nyes", False, "hm", "yes"),
        ("\n<think></think>yes", False, "", "yes"),
        ("hm\n</think>\nyes", True, "hm", "yes"),
        ("<think>hm</think>yes", True, "hm", "yes"),
        ("<think>hm</thi", False, "hm</thi", ""),
        ("yes <think>no</think>", False, "", "yes <think>no</think>"),
        (" <thin", False, "", " <thin"),
        (" " * 70 + "<think>hm</think>", False, "", " " * 70 + "<think>hm</think>"),
    ],
)
def test_thoughts(text: str, in_reasoning: bool, thought: str, rest: str) -> None:
    how = reading(None, "think", in_reasoning=in_reasoning)
    answer, _ = parse(how, text)
    assert answer == parse(how, *text)[0] == Answer(rest, thought)


def test_a_thought_before_a_bare_call() -> None:
    text = '[THINK]a call?[/THINK]\n{"name": "f", "parameters": {}}'
    answer, called = parse(reading("llama3", "mistral"), text)
    assert answer == Answer("", "a call?", [ToolCall("id0", "f", "{}")])
    assert called


# Any text

WORDS = [
    *(
        mark
        for format_name in TOOL_PARSERS.values()
        for mark in (*format_name.begin.texts, *format_name.inner)
    ),
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<function=f>", "</function>", "<parameter=a>"),
    *("function", "```json", "```", "functools", f"{DS['calls']}{DS['call']}f{DS['sep']}"),
    *("<tool_call>f", "<arg_key>a</arg_key>", "<arg_key>n</arg_key><arg_value>", "</arg_value>"),
    *("<parameter=n>", "</parameter>", '{"name": "f", ', '"arguments": ', '"parameters": '),
    *(
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "\\",
        "\\u00e9",
        "\\ud83d",
        "\n",
        " ",
        "; ",
        "f",
        "1",
        "-",
    ),
    *("true", "nul", "0.5e3", "{}", '{"a": "b"}', '"x": [1, {}]', "é", "\x00", '{"a": 1}}'),
]
TEXTS = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), max_size=30)
READINGS = st.builds(
    lambda tools, thoughts, **options: reading(tools, thoughts, **options),
    st.sampled_from([None, *FORMATS]),
    st.sampled_from([None, *REASONING_PARSERS]),
    in_reasoning=st.booleans(),
    most_calls=st.sampled_from([None, 1]),
)


@settings(max_examples=150)
@given(READINGS, TEXTS, st.data())
def test_how_the_text_is_cut_has_no_influence(
    how: ParserConfig, words: list[str], data: st.DataObject
) -> None:
    text = "".join(words)
    cuts_of = st.lists(st.integers(0, len(text)), max_size=8).map(sorted)
    cuts = [0, *data.draw(cuts_of), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(cuts)]
    whole = parse(how, text)
    assert parse(how, *pieces) == parse(how, *text) == whole
    answer, called = whole
    if called:
        assert all(isinstance(json.loads(call.arguments), dict) for call in answer.calls)


@settings(max_examples=60)
@given(st.sampled_from(FORMATS), TEXTS)
def test_without_tools_every_text_stays_whole(format_name: str, words: list[str]) -> None:
    text = "".join(words)
    assert parse(ParserConfig(tool_parser=TOOL_PARSERS[format_name]), *text)[0] == Answer(text)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=4)
STYLES = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


@settings(max_examples=60)
@given(OBJECTS, STYLES, st.sampled_from(sorted(WELL_FORMED)), st.data())
def test_arguments_arrive_as_they_were_written(
    value: dict[str, Any], style: dict[str, Any], format_name: str, data: st.DataObject
) -> None:
    text = data.draw(st.sampled_from(WELL_FORMED[format_name]))
    written = json.dumps(value, **style)
    answer, called = parse(reading(format_name), text.replace("%s", written))
    assert called
    assert [call.arguments for call in answer.calls] == [written]


@settings(max_examples=150)
@given(OBJECTS, st.data())
def test_arguments_are_accepted_as_json_does(value: dict[str, Any], data: st.DataObject) -> None:
    written = json.dumps(value)
    index = data.draw(st.integers(1, len(written)))
    cut = data.draw(st.integers(0, 2))
    added = data.draw(
        st.sampled_from(["", ",", "}", "]", "{", '"', "\\", "0", "-", ".", "tr", "e"])
    )
    changed = written[:index] + added + written[index + cut :]
    answer, called = parse(reading("mistral"), f"[TOOL_CALLS]f[ARGS]{changed}")
    try:
        _, end = json.JSONDecoder(parse_constant=_refuse).raw_decode(changed)
    except ValueError:
        assert not called
    else:
        assert called
        arguments = answer.calls[0].arguments
        assert arguments_of(arguments) is not None
        assert arguments == changed[:end] or arguments_of(changed[:end]) is None


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"\\ud83d"', "\ufffd"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ('"\\ude00\\ud83d\\ud83d\\ude00"', "\ufffd\ufffd\U0001f600"),
        ('["\\uDBFF\\u0041"]', ["\ufffdA"]),
        ("[1e999, 1e300]", [sys.float_info.max, 1e300]),
        ('{"v": -1E+4000}', {"v": -sys.float_info.max}),
        ('["a\nb"]', ["a\nb"]),
    ],
)
@pytest.mark.parametrize("format_name", ["hermes", "glm45"])
def test_every_reader_takes_the_arguments(format_name: str, written: str, value: Any) -> None:
    """Some take no half of a surrogate pair, and no number beyond those of 64 bits."""
    if format_name == "glm45" and isinstance(value, str):
        return  # texts there have no escapes
    call = CALLS_OF_X[format_name] % written
    answer, called = parse(reading(format_name), call)
    assert called
    assert arguments_of(answer.calls[0].arguments) == {"x": value}
    assert parse(reading(format_name), *call) == (answer, called)


CALLS_OF_X = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"x": %s}}</tool_call>',
    "glm45": "<tool_call>f<arg_key>x</arg_key><arg_value>%s</arg_value></tool_call>",
}


def _refuse(constant: str) -> None:
    raise ValueError(constant)


# Harm

HARM = [
    ("hermes", "<tool_call>" * 10_000),
    ("hermes", "<tool_call>{" * 10_000),
    ("hermes", '<tool_call>{"name": "f", "arguments": ' + '{"a": [' * 10_000),
    ("hermes", '<tool_call>{"name": "' * 5_000),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"' + "\\n" * 20_000),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 100_000),
    ("hermes", '<tool_call>{"name":"f","arguments":{}} , "id": "' * 2_000),
    ("hermes", "\n" * 100_000 + "<tool_call>" + " " * 100_000),
    ("hermes", "<think>" + "</think" * 10_000),
    ("llama3", '{"name": "f", "parameters": {}};' * 3_000),
    ("mistral", "[TOOL_CALLS][" * 5_000),
    ("qwen3_coder", "<function=f><parameter=n>" + "[" * 100_000),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>" + "\n</parameter" * 10_000),
    ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>" + "</arg_value" * 10_000),
    ("glm45", "<tool_call>f<arg_key>" * 5_000),
    ("deepseek_v3", (DS["calls"] + DS["call"]) * 3_000),
    ("deepseek_v31", DS["calls"] + f"{DS['call']}f{DS['sep']}{{}}\n" * 2_000),
    ("phi4_mini_json", "functools[" * 5_000),
    ("internlm", "<|action_start|><|plugin|>" * 3_000),
]


@pytest.mark.parametrize(("format_name", "text"), HARM)
def test_harmful_texts_take_linear_time_and_little_memory(format_name: str, text: str) -> None:
    parser = OutputParser(reading(format_name, "think"), new_id=str)
    with cpu_limit(4.0, time.process_time):  # quadratic time would be minutes
        for index in range(0, len(text), 50):
            parser.push(text[index : index + 50])
            assert len(parser._source.text) <= MAX_ATTEMPT_CHARS + MAX_SPACE_CHARS + 100
        parser.finish()


def test_ids() -> None:
    assert re.fullmatch(r"call_[0-9a-f]{24}", long_id())
    assert re.fullmatch(r"[0-9a-f]{9}", short_id())
    events = OutputParser(reading("mistral")).push("[TOOL_CALLS]f[ARGS]{}")
    assert events[1:] == [ToolCallArguments(0, "{}")]
    assert len(events[0].id) == 9  # type: ignore[union-attr]
