"""Tool parsers for calls as tags around names, keys and bare values: Qwen3-Coder and GLM-4.5.

    <tool_call><function=NAME><parameter=KEY>      <tool_call>NAME
    value                                          <arg_key>KEY</arg_key>
    </parameter></function></tool_call>            <arg_value>value</arg_value></tool_call>

Between GLM's tags there may be line ends or none, depending on the model.
"""

from __future__ import annotations

from quire.server.parsing.tag_arguments import BareArguments, read_key
from quire.server.parsing.text_source import NAME, Marks, Wait
from quire.server.parsing.tool_call_reader import ToolCallReader

_PARAMETER_END = Marks("</parameter>")
_VALUE_END = Marks("</arg_value>")


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
