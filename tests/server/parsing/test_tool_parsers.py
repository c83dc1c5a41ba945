"""Formats, as they are read from the words of real chat templates."""

from __future__ import annotations

import pytest

from quire.server.parsing.tool_parsers import choose_parsers

QWEN3 = "{%- for tool in tools %}...<tool_call>\\n{\\\"name\\\"...'<think>\\n\\n</think>\\n\\n'"
CODER = "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"
LLAMA = '<|start_header_id|>...{"name": function name, "parameters": dictionary...}'
GLM = "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}"
DEEPSEEK = "<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>'...'```json'"
DEEPSEEK31 = "<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' ...</think>"
PHI4 = "message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>'"
GRANITE = "respond only with <|tool_call|> followed by a JSON list of tools used."
MISTRAL = '[AVAILABLE_TOOLS]...[TOOL_CALLS] [{"name": ...[THINK]...[/THINK]'


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        (QWEN3, "hermes", "think"),
        (CODER, "qwen3_coder", None),
        (LLAMA, "llama3", None),
        (MISTRAL, "mistral", "mistral"),
        (GLM, "glm45", None),
        (DEEPSEEK, "deepseek_v3", None),
        (DEEPSEEK31, "deepseek_v31", "think"),
        (PHI4, "phi4_mini_json", None),
        (GRANITE, "granite", None),
        ("<|action_start|><|plugin|>", "internlm", None),
        ("<|im_start|>", None, None),
        ("", None, None),
    ],
)
def test_auto(template: str, tools: str | None, reasoning: str | None) -> None:
    chosen = choose_parsers(template, {"tools"})
    assert (chosen.tools and chosen.tools.name) == tools
    assert (chosen.reasoning and chosen.reasoning.name) == reasoning
    assert choose_parsers(template, {"messages"}).tools is None


def test_named_parsers_are_chosen() -> None:
    chosen = choose_parsers(QWEN3, {"tools"}, tools="mistral", reasoning="none")
    assert chosen.tools is not None
    assert chosen.tools.name == "mistral"
    assert chosen.reasoning is None
