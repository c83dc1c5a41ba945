"""Chat messages: their structs in a request, their checks, and the dicts for chat templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import msgspec

from quire.errors import invalid_value
from quire.server.api.common.tool_definitions import CACHE_CONTROL, MAX_TOOLS
from quire.server.http.field_bounds import FunctionKind, ShortText, TextKind, one_of
from quire.server.http.strict_json import Strict

ROLES = ("system", "developer", "user", "assistant", "tool")

Role = Annotated[str, one_of(*ROLES)]

# the rules of check_message as JSON Schema
_OTHERS = {
    "content": {"type": ["string", "array"]},
    "tool_calls": {"enum": [None, []]},
    "reasoning_content": {"enum": [None, ""]},
    "reasoning": {"enum": [None, ""]},
}
MESSAGE_VARIANTS: tuple[dict[str, Any], ...] = (
    {
        "required": ["content"],
        "properties": {
            **_OTHERS,
            "role": {"enum": ["system", "developer", "user"]},
            "tool_call_id": {"type": "null"},
        },
    },
    {"properties": {"role": {"const": "assistant"}, "tool_call_id": {"type": "null"}}},
    {
        "required": ["content", "tool_call_id"],
        "properties": {
            **_OTHERS,
            "role": {"const": "tool"},
            "tool_call_id": {"type": "string"},
        },
    },
)


class TextPart(Strict):
    """A part of a message's content; only parts of type "text" are taken.

    prompt_cache_breakpoint: without effect, as every prefix is cached.
    """

    neutral: ClassVar = {"cache_control": CACHE_CONTROL}
    type: TextKind
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None


class CalledFunction(Strict):
    """A function that was called. arguments: the text of a JSON object."""

    name: ShortText
    arguments: str


class ToolCall(Strict, kw_only=True):
    """A call that the assistant made earlier."""

    neutral: ClassVar = {"index": range(MAX_TOOLS)}  # of the call's parts in a stream
    id: ShortText
    type: FunctionKind = "function"
    function: CalledFunction

    @classmethod
    def of(cls, call_id: str, name: str, arguments: str) -> ToolCall:
        """The call of a function."""
        return cls(id=call_id, function=CalledFunction(name=name, arguments=arguments))


class Message(Strict):
    """One message of a conversation. role: one of ROLES.

    tool_calls and reasoning (under either name) are the assistant's. tool_call_id: of the call
    that a tool's message answers. Only the assistant may leave the content out.
    provider_specific_fields: what litellm keeps of an answer besides; without effect.
    """

    # an official client sends an assistant's message back with most of these, empty
    neutral: ClassVar = {
        "annotations": (None, []),
        "audio": (None,),
        "function_call": (None,),
        "refusal": (None, ""),
        "cache_control": CACHE_CONTROL,
        "prefix": (None, False),
        "type": (None, "text"),
        "reasoning_details": (None, []),
    }
    variants = MESSAGE_VARIANTS
    role: Role
    content: str | list[TextPart] | None = None
    name: ShortText | None = None
    tool_calls: Annotated[list[ToolCall], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: ShortText | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    provider_specific_fields: dict[str, Any] | None = None


def check_message(message: Message, path: str) -> None:
    """Refuse messages that no chat template can render. Raises InvalidRequestError."""
    role = message.role
    if role not in ROLES:
        raise invalid_value(f"{path}role", f"must be one of {', '.join(ROLES)}, not {role[:64]!r}")
    if message.content is None and role != "assistant":
        raise invalid_value(f"{path}content", "it is missing; it must be a string")
    if role != "assistant" and (
        message.tool_calls or message.reasoning_content or message.reasoning
    ):
        names = ("tool_calls", "reasoning_content", "reasoning")
        name = next(name for name in names if getattr(message, name))
        raise invalid_value(f"{path}{name}", f"a message of the role {role} has none; remove it")
    if (message.tool_call_id is not None) != (role == "tool"):
        problem = (
            "it is missing; it must be the call's id" if role == "tool" else "only tools have one"
        )
        raise invalid_value(f"{path}tool_call_id", problem)


def echoed_text(message: Message) -> str:
    """The text of an assistant's message, which `echo` returns; nothing of any other."""
    content = message.content if message.role == "assistant" else None
    if isinstance(content, list):
        return "\n".join(part.text for part in content)
    return content or ""


def for_template(message: Message, fit_id: Callable[[str], str] = str) -> dict[str, Any]:
    """A message as chat templates read it. fit_id: converts call ids for the template."""
    # always with a text, as in vLLM: templates read it beside calls and reasoning, too
    plain: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if isinstance(message.content, list):
        plain["content"] = [{"type": "text", "text": part.text} for part in message.content]
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls:
        plain["tool_calls"] = [
            msgspec.to_builtins(call) | {"id": fit_id(call.id)} for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = fit_id(message.tool_call_id)
    if reasoning := message.reasoning_content or message.reasoning:
        plain["reasoning_content"] = reasoning
    return plain
