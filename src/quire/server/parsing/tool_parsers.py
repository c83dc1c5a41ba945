"""The tool parsers by name, as `--tool-call-parser` takes them: TOOL_PARSERS."""

from __future__ import annotations

from quire.server.parsing.json_tool_parsers import (
    read_deepseek_calls,
    read_hermes_calls,
    read_internlm_calls,
    read_listed_calls,
    read_llama3_calls,
    read_mistral_calls,
)
from quire.server.parsing.tag_tool_parsers import read_glm_call, read_qwen_call
from quire.server.parsing.text_source import Marks
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

TOOL_PARSERS = {
    parser.name: parser
    for parser in (
        ToolParser(
            "hermes",
            read_hermes_calls,
            CallTemplate('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", "\n"),
            Marks("<tool_call>"),
            ("</tool_call>",),
        ),
        ToolParser(
            "llama3",
            read_llama3_calls,
            CallTemplate('{"name": "NAME", "parameters": ', "}"),
            Marks("<|python_tag|>"),
            bare=True,
        ),
        ToolParser(
            "mistral",
            read_mistral_calls,
            CallTemplate(*_LISTED, "[TOOL_CALLS][", "]"),
            Marks("[TOOL_CALLS]"),
            new_id=short_id,
            fit_id=fit_short_id,
        ),
        ToolParser(
            "mistral_args",
            read_mistral_calls,
            CallTemplate("[TOOL_CALLS]NAME[ARGS]", "", ""),
            Marks("[TOOL_CALLS]"),
            ("[CALL_ID]", "[ARGS]"),
            new_id=short_id,
            fit_id=fit_short_id,
        ),
        ToolParser(
            "qwen3_coder",
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
            "phi4_mini_json",
            read_listed_calls,
            CallTemplate(*_LISTED, "<|tool_call|>[", "]<|/tool_call|>"),
            Marks("<|tool_call|>", "functools["),
            ("<|/tool_call|>",),
        ),
        ToolParser(
            "granite",
            read_listed_calls,
            CallTemplate(*_LISTED, "<|tool_call|>[", "]"),
            Marks("<|tool_call|>"),
        ),
        ToolParser(
            "internlm",
            read_internlm_calls,
            CallTemplate(
                '<|action_start|><|plugin|>\n{"name": "NAME", "parameters": ', "}<|action_end|>"
            ),
            Marks("<|action_start|>"),
            ("<|plugin|>", "<|action_end|>"),
        ),
    )
}
