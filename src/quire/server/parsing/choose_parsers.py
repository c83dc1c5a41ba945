"""Which formats a model speaks, read from its chat template, or told by the server's settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from quire.server.parsing.reasoning_parser import REASONING_PARSERS, ReasoningParser
from quire.server.parsing.tool_parser import ToolParser
from quire.server.parsing.tool_parsers import TOOL_PARSERS

# A template belongs to the first format of which it holds all texts.
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
_REASONING_SIGNS = {"think": ("</think>",), "mistral": ("[/THINK]",)}


@dataclass(frozen=True, slots=True)
class ModelParsers:
    """How a model writes tool calls and thoughts; None where it has none, or an unknown way."""

    tools: ToolParser | None = None
    reasoning: ReasoningParser | None = None


def choose_parsers(
    template: str, variables: Collection[str], *, tools: str = "auto", reasoning: str = "auto"
) -> ModelParsers:
    """The formats for a chat template.

    template: its text, all of them if there are several. variables: the names it reads. tools,
    reasoning: the name of a format, "none", or "auto" for the one that the template shows.
    """
    if tools == "auto":
        tools = _shown(template, _TOOL_SIGNS) if "tools" in variables else "none"
    if reasoning == "auto":
        reasoning = _shown(template, _REASONING_SIGNS)
    return ModelParsers(TOOL_PARSERS.get(tools), REASONING_PARSERS.get(reasoning))


def _shown(template: str, signs: Mapping[str, tuple[str, ...]]) -> str:
    return next((n for n, texts in signs.items() if all(t in template for t in texts)), "none")
