"""Readers of tool calls: in JSON as Hermes, Llama 3, Mistral or DeepSeek write them, and as tags.

Each `read_*` starts at one of its format's marks (or, for bare calls, at the answer's first brace),
in an attempt that the caller has started. It raises MalformedCall where the text is not a call.

Qwen3-Coder and GLM-4.5 write tags around names, keys and bare values:

    <tool_call><function=NAME><parameter=KEY>      <tool_call>NAME
    value                                          <arg_key>KEY</arg_key>
    </parameter></function></tool_call>            <arg_value>value</arg_value></tool_call>

Between GLM's tags there may be line ends or none, depending on the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from quire.server.parsing.incremental_json import read_object
from quire.server.parsing.tag_arguments import BareArguments, read_key
from quire.server.parsing.text_source import NAME, MalformedCall, Marks, Wait
from quire.server.parsing.tool_call_reader import ToolCallReader, read_json_call

_BETWEEN = re.compile(r"[ \t\r\n;]*")
_DEEPSEEK_CALL = "<｜tool▁call▁begin｜>"
_PARAMETER_END = Marks("</parameter>")
_VALUE_END = Marks("</arg_value>")


def read_marked_call(calls: ToolCallReader, begin: Sequence[str], end: str) -> Wait[None]:
    """One object between marks, as Hermes and InternLM write it; the end may be missing."""
    source = calls.source
    for mark in begin:
        yield from source.expect(mark)
        yield from source.skip_space()
    yield from read_json_call(calls)
    yield from source.skip_space()
    yield from source.accept(end)


def read_llama3_calls(calls: ToolCallReader) -> Wait[None]:
    """One object, or several with semicolons between them."""
    source = calls.source
    yield from source.accept("<|python_tag|>")
    yield from source.skip_space()
    while True:
        yield from read_json_call(calls)
        calls.attempt()
        yield from source.run(_BETWEEN)
        if (yield from source.peek()) != "{":
            break
    source.give_back()


def read_mistral_calls(calls: ToolCallReader) -> Wait[None]:
    """A list of objects after the mark; in newer models a name, a second mark and the arguments."""
    source = calls.source
    yield from source.expect("[TOOL_CALLS]")
    yield from source.skip_space()
    if (yield from source.accept("[")):
        yield from _read_list(calls)
    else:
        yield from _read_named(calls)


def _read_list(calls: ToolCallReader) -> Wait[None]:
    source = calls.source
    while True:
        yield from source.skip_space()
        yield from read_json_call(calls)
        calls.attempt()
        yield from source.skip_space()
        if not (yield from source.accept(",")):
            break
    yield from source.expect("]")
    source.end_attempt()


def _read_named(calls: ToolCallReader) -> Wait[None]:
    source = calls.source
    calls.name((yield from source.word(NAME)))
    if (yield from source.accept("[CALL_ID]")):
        yield from source.word(NAME)
    yield from source.accept("[ARGS]")
    yield from source.skip_space()
    yield from read_object(source, calls.arguments)
    calls.complete()


def read_listed_calls(calls: ToolCallReader) -> Wait[None]:
    """A list of objects after a mark, as Phi-4-mini and Granite write it; Phi has two marks."""
    source = calls.source
    if not (yield from source.accept("<|tool_call|>")):
        yield from source.expect("functools")
    yield from source.skip_space()
    yield from source.expect("[")
    yield from _read_list(calls)
    yield from source.skip_space()
    yield from source.accept("<|/tool_call|>")


def read_deepseek_calls(calls: ToolCallReader) -> Wait[None]:
    """One or several calls between common marks."""
    source = calls.source
    yield from source.expect("<｜tool▁calls▁begin｜>")
    yield from source.skip_space()
    yield from source.expect(_DEEPSEEK_CALL)
    while True:
        yield from _read_deepseek_call(calls)
        calls.attempt()
        yield from source.skip_space()
        if not (yield from source.accept(_DEEPSEEK_CALL)):
            break
    if (yield from source.accept("<｜tool▁calls▁end｜>")):
        source.end_attempt()
    else:
        source.give_back()


def _read_deepseek_call(calls: ToolCallReader) -> Wait[None]:
    """The name and the arguments; before V3.1 also the type in front and a code fence around."""
    source = calls.source
    name = yield from source.word(NAME)
    yield from source.expect("<｜tool▁sep｜>")
    yield from source.skip_space()
    if (yield from source.peek()) != "{":
        if name != "function":
            raise MalformedCall
        name = yield from source.word(NAME)
        yield from source.skip_space()
        yield from source.accept("```json")
        yield from source.skip_space()
    calls.name(name)
    yield from read_object(source, calls.arguments)
    calls.complete()
    yield from source.skip_space()
    yield from source.accept("```")
    yield from source.skip_space()
    yield from source.accept("<｜tool▁call▁end｜>")


def read_qwen_call(calls: ToolCallReader) -> Wait[None]:
    """Read one call of Qwen3-Coder. Raises MalformedCall."""
    source = calls.source
    yield from source.accept("<tool_call>")
    yield from source.skip_space()
    yield from source.expect("<function=")
    name = yield from source.word(NAME)
    yield from source.expect(">")
    calls.name(name)
    arguments = BareArguments(calls, name)
    yield from source.skip_space()
    while not (yield from source.accept("</function>")):
        yield from source.expect("<parameter=")
        key = yield from read_key(source)
        yield from source.expect(">")
        yield from source.accept("\n")
        yield from arguments.read(key, _PARAMETER_END, drop="\n")
        yield from source.skip_space()
    arguments.end()
    yield from source.skip_space()
    yield from source.accept("</tool_call>")


def read_glm_call(calls: ToolCallReader) -> Wait[None]:
    """Read one call of GLM. Raises MalformedCall."""
    source = calls.source
    yield from source.expect("<tool_call>")
    yield from source.skip_space()
    name = yield from source.word(NAME)
    calls.name(name)
    arguments = BareArguments(calls, name)
    yield from source.skip_space()
    while not (yield from source.accept("</tool_call>")):
        yield from source.expect("<arg_key>")
        key = yield from read_key(source)
        yield from source.expect("</arg_key>")
        yield from source.skip_space()
        yield from source.expect("<arg_value>")
        yield from arguments.read(key, _VALUE_END)
        yield from source.skip_space()
    arguments.end()
