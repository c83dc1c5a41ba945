"""The formats in which models write tool calls and thoughts, by the names that settings have."""

from __future__ import annotations

from quire.server.parsing.call_frames import CallFrame, ReasoningFormat, TagFrame, ToolFormat
from quire.server.parsing.call_ids import fit_short_id, short_id
from quire.server.parsing.json_calls import (
    read_deepseek_calls,
    read_hermes_calls,
    read_internlm_calls,
    read_listed_calls,
    read_llama3_calls,
    read_mistral_calls,
)
from quire.server.parsing.output_source import Marks
from quire.server.parsing.tag_calls import read_glm_call, read_qwen_call

_LISTED = ('{"name": "NAME", "arguments": ', "}", ", ")
_DEEPSEEK_FRAME = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_INNER = (
    *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    _DEEPSEEK_FRAME[1],
)

TOOL_FORMATS = {
    form.name: form
    for form in (
        ToolFormat(
            "hermes",
            read_hermes_calls,
            CallFrame('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", "\n"),
            Marks("<tool_call>"),
            ("</tool_call>",),
        ),
        ToolFormat(
            "llama3",
            read_llama3_calls,
            CallFrame('{"name": "NAME", "parameters": ', "}"),
            Marks("<|python_tag|>"),
            bare=True,
        ),
        ToolFormat(
            "mistral",
            read_mistral_calls,
            CallFrame(*_LISTED, "[TOOL_CALLS][", "]"),
            Marks("[TOOL_CALLS]"),
            new_id=short_id,
            fit_id=fit_short_id,
        ),
        ToolFormat(
            "mistral_args",
            read_mistral_calls,
            CallFrame("[TOOL_CALLS]NAME[ARGS]", "", ""),
            Marks("[TOOL_CALLS]"),
            ("[CALL_ID]", "[ARGS]"),
            new_id=short_id,
            fit_id=fit_short_id,
        ),
        ToolFormat(
            "qwen3_coder",
            read_qwen_call,
            CallFrame(
                "<tool_call>\n<function=NAME>\n",
                "</function>\n</tool_call>",
                "\n",
                tags=TagFrame("<parameter=KEY>\n", "</parameter>", "\n"),
            ),
            Marks("<tool_call>", "<function="),
            ("</tool_call>",),
        ),
        ToolFormat(
            "glm45",
            read_glm_call,
            CallFrame(
                "<tool_call>NAME\n",
                "</tool_call>",
                "\n",
                tags=TagFrame("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>"),
            ),
            Marks("<tool_call>"),
            ("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ),
        ToolFormat(
            "deepseek_v3",
            read_deepseek_calls,
            CallFrame(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
                "\n```<｜tool▁call▁end｜>",
                "\n",
                *_DEEPSEEK_FRAME,
            ),
            Marks(_DEEPSEEK_FRAME[0]),
            _DEEPSEEK_INNER,
        ),
        ToolFormat(
            "deepseek_v31",
            read_deepseek_calls,
            CallFrame(
                "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
                "<｜tool▁call▁end｜>",
                "",
                *_DEEPSEEK_FRAME,
            ),
            Marks(_DEEPSEEK_FRAME[0]),
            _DEEPSEEK_INNER,
        ),
        ToolFormat(
            "phi4_mini_json",
            read_listed_calls,
            CallFrame(*_LISTED, "<|tool_call|>[", "]<|/tool_call|>"),
            Marks("<|tool_call|>", "functools["),
            ("<|/tool_call|>",),
        ),
        ToolFormat(
            "granite",
            read_listed_calls,
            CallFrame(*_LISTED, "<|tool_call|>[", "]"),
            Marks("<|tool_call|>"),
        ),
        ToolFormat(
            "internlm",
            read_internlm_calls,
            CallFrame(
                '<|action_start|><|plugin|>\n{"name": "NAME", "parameters": ', "}<|action_end|>"
            ),
            Marks("<|action_start|>"),
            ("<|plugin|>", "<|action_end|>"),
        ),
    )
}

REASONING_FORMATS = {
    form.name: form
    for form in (
        ReasoningFormat("think", "<think>", "</think>"),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    )
}
