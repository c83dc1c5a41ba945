"""MessagesRequest, CountRequest: the bodies of Anthropic's Messages API.

messages_to_chat.py converts them to a ChatRequest. Unknown fields are refused anywhere in them;
unsupported fields of the API are listed with the values that ask for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.api.common.chat_request import MAX_MESSAGES
from quire.server.api.common.tool_definitions import MAX_TOOLS, DirectCaller, FunctionName
from quire.server.http import field_bounds
from quire.server.http.field_bounds import ShortText
from quire.server.http.request_body import RequestBody
from quire.server.http.strict_json import Strict


class CacheControl(Strict):
    """Asks for prefix caching, which is done for every request. Without effect."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: ShortText | None = None


Cached = CacheControl | None | UnsetType


class TextBlock(Strict, tag_field="type", tag="text"):
    """A content block of text."""

    text: str
    citations: UnsetType | None = UNSET
    cache_control: Cached = UNSET


class PlainText(Strict):
    """Text where no other block is allowed; its type is a plain field there."""

    type: Literal["text"]
    text: str
    citations: UnsetType | None = UNSET
    cache_control: Cached = UNSET


class ThinkingBlock(Strict, tag_field="type", tag="thinking"):
    """The model's reasoning. signature: always empty, and ignored."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Strict, tag_field="type", tag="redacted_thinking"):
    """Reasoning that only another service can read. It is left out of the prompt."""

    data: str


class ToolUseBlock(Strict, tag_field="type", tag="tool_use"):
    """A content block with a tool call. caller: not sent, since some clients refuse null there."""

    id: ShortText
    name: FunctionName
    input: dict[str, Any]
    caller: DirectCaller | UnsetType | None = UNSET
    cache_control: Cached = UNSET


class ToolReferenceBlock(Strict, tag_field="type", tag="tool_reference"):
    """A tool that a search has found: its name, as the model sees all tools from the start."""

    tool_name: FunctionName
    cache_control: Cached = UNSET


class ToolResultBlock(Strict, tag_field="type", tag="tool_result"):
    """The result of a call. is_error: puts the word Error in front of the content."""

    tool_use_id: ShortText
    content: str | list[TextBlock | ToolReferenceBlock] | None = None
    is_error: bool | None = None
    cache_control: Cached = UNSET


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(Strict):
    """One message: the user's may have tool results, the assistant's reasoning and calls.

    The system's has text and may stand anywhere.
    """

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class MessagesTool(Strict):
    """A tool of the client's own. input_schema: a JSON schema of an object.

    Without effect: eager_input_streaming, as arguments are always streamed as they are written, and
    defer_loading, as the model sees all tools from the start.
    """

    name: FunctionName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    cache_control: Cached = UNSET


class MessagesToolChoice(Strict):
    """Choice of tools: may, must or must not be called. name: of the tool for type tool."""

    variants = (
        {
            "required": ["name"],
            "properties": {"type": {"const": "tool"}, "name": {"type": "string"}},
        },
        {"properties": {"type": {"enum": ["auto", "any", "none"]}, "name": {"type": "null"}}},
    )
    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """The field `thinking`: whether to reason, if the model's chat template can switch it.

    budget_tokens: with the type enabled, else 0; tokens of reasoning after which its end is forced,
    where the model marks its reasoning; -1: no limit. display: omitted leaves the reasoning out.
    """

    variants = (
        {
            "required": ["budget_tokens"],
            "properties": {"type": {"const": "enabled"}, "budget_tokens": {"type": "integer"}},
        },
        {
            "properties": {
                "type": {"enum": ["adaptive", "disabled"]},
                "budget_tokens": {"enum": [None, 0]},
            }
        },
    )
    type: Annotated[str, field_bounds.one_of("enabled", "adaptive", "disabled")]
    budget_tokens: field_bounds.ThinkingTokens | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Strict):
    """The format of the answer's text."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Strict):
    """Settings of the answer. effort: how much to reason, if the template has a variable for it."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(Strict):
    """The field `metadata`. user_id has no effect."""

    user_id: ShortText | None = None


class CountRequest(RequestBody, kw_only=True, dict=True):
    """Body of /v1/messages/count_tokens, and the fields of /v1/messages for the prompt."""

    neutral: ClassVar = {
        "billing_policy": (None,),
        "compaction": (None,),
        "diagnostics": (None,),
        "fallback_credit_token": (None,),
        "fallbacks": (None, []),
        "output_format": (None,),
        "thread": (None,),
        "user_profile_id": (None,),
        "workspace_id": (None,),
    }
    model: str | None = None
    messages: Annotated[list[InputMessage], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[PlainText] | None = None
    tools: Annotated[list[MessagesTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None


class MessagesRequest(CountRequest, kw_only=True, dict=True):
    """Body of /v1/messages."""

    max_tokens: field_bounds.TokenCount
    stop_sequences: field_bounds.StopStrings | None = None
    stream: bool | None = None
    temperature: field_bounds.Temperature | None = None
    top_p: field_bounds.TopP | None = None
    top_k: field_bounds.TopK | None = None
    metadata: Metadata | None = None
