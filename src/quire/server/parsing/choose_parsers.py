"""Chooses a model's tool parser and reasoning parser, by its chat template or the settings."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from quire.server.parsing.reasoning_parser import (
    REASONING_PARSERS,
    ReasoningParser,
    reasoning_of,
)
from quire.server.parsing.tool_parser import ToolParser
from quire.server.parsing.tool_parsers import TOOL_PARSERS

# A template belongs to the first tool parser of which it contains all texts.
_TOOL_SIGNS = {
    "qwen3_coder": ("<function=", "<parameter="),
    "glm45": ("<arg_key>", "<arg_value>"),
    "deepseek_v3": ("<｜tool▁sep｜>", "```json"),
    "deepseek_v31": ("<｜tool▁sep｜>",),
    "mistral_args": ("[TOOL_CALLS]", "[ARGS]"),
    "mistral": ("[TOOL_CALLS]",),
    "phi4_mini_json": ("<|tool|>", "<|/tool|>"),
    "granite": ("<|tool_call|>",),
    "internlm": ("<|plugin|>",),
    "hermes": ("<tool_call>",),
    "llama3": ("<|start_header_id|>", '"parameters"'),
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
    if tools == "auto":
        tools = _tools_of(template) if "tools" in variables else "none"
    found = reasoning_of(template) if reasoning == "auto" else REASONING_PARSERS.get(reasoning)
    return ModelParsers(TOOL_PARSERS.get(tools), found)


def _tools_of(template: str) -> str:
    signs = _TOOL_SIGNS.items()
    return next((n for n, texts in signs if all(t in template for t in texts)), "none")
