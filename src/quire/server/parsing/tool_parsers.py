"""The tool parsers by name; a model's tool parser and reasoning parser, chosen by its template.

The names are those that `--tool-call-parser` takes.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import msgspec

from quire.server.parsing.reasoning_parser import REASONING_PARSERS, ReasoningParser, reasoning_of
from quire.server.parsing.text_source import Marks
from quire.server.parsing.tool_call_formats import (
    read_deepseek_calls,
    read_glm_call,
    read_listed_calls,
    read_llama3_calls,
    read_marked_call,
    read_mistral_calls,
    read_qwen_call,
)
from quire.server.parsing.tool_parser import (
    CallTemplate,
    TagTemplate,
    ToolParser,
    fit_short_id,
    short_id,
)

_LISTED = ('{"name": "NAME", "arguments": ', "}", ", ")
_DEEPSEEK_FRAME = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_INNER = (
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", _DEEPSEEK_FRAME[1],
)  # fmt: skip

# A template belongs to the first one of which it contains all signs.
TOOL_PARSERS = {
    parser.name: parser
    for parser in (
        ToolParser(
            "qwen3_coder",
            ("<function=", "<parameter="),
            read_qwen_call,
            CallTemplate(
                "<tool_call>\n<function=NAME>\n",
                "</function>\n</tool_call>",
                "\n",
                tags=TagTemplate("<parameter=KEY>\n", "</parameter>", "\n"),
            ),
            Marks("<tool_call>", "<function="),
            ("</tool_call>",),
        ),
        ToolParser(
            "glm45",
            ("<arg_key>", "<arg_value>"),
            read_glm_call,
            CallTemplate(
                "<tool_call>NAME\n",
                "</tool_call>",
                "\n",
                tags=TagTemplate("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>"),
            ),
            Marks("<tool_call>"),
            ("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ),
        ToolParser(
            "deepseek_v3",
            ("<｜tool▁sep｜>", "```json"),
            read_deepseek_calls,
            CallTemplate(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
                "\n```<｜tool▁call▁end｜>",
                "\n",
                *_DEEPSEEK_FRAME,
            ),
            Marks(_DEEPSEEK_FRAME[0]),
            _DEEPSEEK_INNER,
        ),
        ToolParser(
            "deepseek_v31",
            ("<｜tool▁sep｜>",),
            read_deepseek_calls,
            CallTemplate(
                "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
                "<｜tool▁call▁end｜>",
                "",
                *_DEEPSEEK_FRAME,
            ),
            Marks(_DEEPSEEK_FRAME[0]),
            _DEEPSEEK_INNER,
        ),
        ToolParser(
            "mistral_args",
            ("[TOOL_CALLS]", "[ARGS]"),
            read_mistral_calls,
            CallTemplate("[TOOL_CALLS]NAME[ARGS]", "", ""),
            Marks("[TOOL_CALLS]"),
            ("[CALL_ID]", "[ARGS]"),
            new_id=short_id,
            fit_id=fit_short_id,
        ),
        ToolParser(
            "mistral",
            ("[TOOL_CALLS]",),
            read_mistral_calls,
            CallTemplate(*_LISTED, "[TOOL_CALLS][", "]"),
            Marks("[TOOL_CALLS]"),
            new_id=short_id,
            fit_id=fit_short_id,
        ),
        ToolParser(
            "phi4_mini_json",
            ("<|tool|>", "<|/tool|>"),
            read_listed_calls,
            CallTemplate(*_LISTED, "<|tool_call|>[", "]<|/tool_call|>"),
            Marks("<|tool_call|>", "functools["),
            ("<|/tool_call|>",),
        ),
        ToolParser(
            "granite",
            ("<|tool_call|>",),
            read_listed_calls,
            CallTemplate(*_LISTED, "<|tool_call|>[", "]"),
            Marks("<|tool_call|>"),
        ),
        ToolParser(
            "internlm",
            ("<|plugin|>",),
            partial(
                read_marked_call, begin=["<|action_start|>", "<|plugin|>"], end="<|action_end|>"
            ),
            CallTemplate(
                '<|action_start|><|plugin|>\n{"name": "NAME", "parameters": ', "}<|action_end|>"
            ),
            Marks("<|action_start|>"),
            ("<|plugin|>", "<|action_end|>"),
        ),
        ToolParser(
            "hermes",
            ("<tool_call>",),
            partial(read_marked_call, begin=["<tool_call>"], end="</tool_call>"),
            CallTemplate('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", "\n"),
            Marks("<tool_call>"),
            ("</tool_call>",),
        ),
        ToolParser(
            "llama3",
            ("<|start_header_id|>", '"parameters"'),
            read_llama3_calls,
            CallTemplate('{"name": "NAME", "parameters": ', "}"),
            Marks("<|python_tag|>"),
            bare=True,
        ),
    )
}


class ModelParsers(msgspec.Struct, frozen=True):
    """A model's parsers; None where it has no such output, or in an unknown format."""

    tools: ToolParser | None = None
    reasoning: ReasoningParser | None = None


def choose_parsers(
    template: str, variables: Collection[str], *, tools: str = "auto", reasoning: str = "auto"
) -> ModelParsers:
    """The tool parser and the reasoning parser for a chat template.

    template: its text; of several templates, all. variables: the names that it reads. tools,
    reasoning: the name of a parser, "none", or "auto" to choose by the template.
    """
    tool_parser = TOOL_PARSERS.get(tools)
    if tools == "auto" and "tools" in variables:
        tool_parser = tool_parser_of(template)
    found = reasoning_of(template) if reasoning == "auto" else REASONING_PARSERS.get(reasoning)
    return ModelParsers(tool_parser, found)


def tool_parser_of(template: str) -> ToolParser | None:
    """The tool parser of a chat template's text; None where there is none."""
    parsers = TOOL_PARSERS.values()
    return next((each for each in parsers if all(sign in template for sign in each.signs)), None)
