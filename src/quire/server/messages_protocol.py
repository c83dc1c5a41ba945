"""Anthropic's Messages API on the wire: its bodies, and their one conversion to a conversation.

Names that nobody knows are refused wherever they stand; those of the API that are not supported
are listed with the values that ask for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.errors import invalid_value
from quire.server import body, bounds, forms, protocol
from quire.server.body import Strict
from quire.server.bounds import ShortText
from quire.server.tools import (
    MAX_TOOLS,
    Function,
    FunctionChoice,
    FunctionName,
    NamedChoice,
    Tool,
    ToolChoice,
)
from quire.server.turns import CalledFunction, Message, TextPart, ToolCall


class CacheControl(Strict):
    """Asks for what is done for every request: finding its prefix again. Without effect."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


Cached = CacheControl | None | UnsetType


class TextBlock(Strict, tag_field="type", tag="text"):
    """Text."""

    text: str
    citations: UnsetType | None = UNSET
    cache_control: Cached = UNSET


class PlainText(Strict):
    """Text where nothing else may stand. A tag is only asked for where there is a choice."""

    type: Literal["text"]
    text: str
    citations: UnsetType | None = UNSET
    cache_control: Cached = UNSET


class ThinkingBlock(Strict, tag_field="type", tag="thinking"):
    """The model's thoughts. signature: always empty, and not looked at."""

    thinking: str
    signature: str = ""


class ToolUseBlock(Strict, tag_field="type", tag="tool_use"):
    """A tool call."""

    id: ShortText
    name: FunctionName
    input: dict[str, Any]
    cache_control: Cached = UNSET


class ToolResultBlock(Strict, tag_field="type", tag="tool_result"):
    """What came of a call. is_error: the template is told so by the word Error in front."""

    tool_use_id: ShortText
    content: str | list[PlainText] | None = None
    is_error: bool | None = None
    cache_control: Cached = UNSET


Block = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock


class Turn(Strict):
    """One side's words: the user's may hold tool results, the assistant's thoughts and calls."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class MessagesTool(Strict):
    """A tool of the client's own. input_schema: a JSON schema of an object."""

    name: FunctionName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: Cached = UNSET


class MessagesToolChoice(Strict):
    """Whether tools may, must or must not be called; name: of the one for type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


TOOL_CHOICE_FORMS: tuple[dict[str, Any], ...] = (  # as JSON Schema
    {"required": ["name"], "properties": {"type": {"const": "tool"}, "name": {"type": "string"}}},
    {"properties": {"type": {"enum": ["auto", "any", "none"]}, "name": {"type": "null"}}},
)


class Thinking(Strict):
    """Whether the model is to think, as far as its template can be told.

    budget_tokens: always refused. display: omitted leaves the thoughts out.
    """

    type: Annotated[str, bounds.one_of("adaptive", "disabled")]
    budget_tokens: Annotated[int | None, msgspec.Meta(extra_json_schema={"type": "null"})] = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Strict):
    """The form of the answer's text."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Strict):
    """What the answer is to be like. effort: how long to think, where the template can be told."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(Strict):
    """user_id has no effect."""

    user_id: ShortText | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """Body of /v1/messages/count_tokens, and the part of /v1/messages that makes the prompt."""

    model: str | None = None
    messages: Annotated[list[Turn], msgspec.Meta(min_length=1, max_length=protocol.MAX_MESSAGES)]
    system: str | list[PlainText] | None = None
    tools: Annotated[list[MessagesTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """Body of /v1/messages."""

    max_tokens: bounds.TokenCount
    stop_sequences: bounds.StopStrings | None = None
    stream: bool | None = None
    temperature: bounds.Temperature | None = None
    top_p: bounds.TopP | None = None
    top_k: bounds.TopK | None = None
    metadata: Metadata | None = None


MESSAGES_UNSUPPORTED: body.NeutralValues = {
    "billing_policy": (None,),
    "compaction": (None,),
    "container": (None,),
    "context_management": (None,),
    "diagnostics": (None,),
    "fallback_credit_token": (None,),
    "fallbacks": (None, []),
    "inference_geo": (None,),
    "mcp_servers": (None, []),
    "output_format": (None,),
    "service_tier": (None, "auto", "standard_only"),
    "speed": (None, "standard"),
    "thread": (None,),
    "user_profile_id": (None,),
    "workspace_id": (None,),
}

_decoder = msgspec.json.Decoder(MessagesRequest)
_count_decoder = msgspec.json.Decoder(CountRequest)


def parse(data: bytes) -> MessagesRequest:
    """Read a /v1/messages body. Raises InvalidRequestError."""
    request = body.decode(data, _decoder)
    body.check_names(body.read_names(data), request.__struct_fields__, MESSAGES_UNSUPPORTED)
    return request


def parse_count(data: bytes) -> CountRequest:
    """Read a /v1/messages/count_tokens body. Raises InvalidRequestError."""
    request = body.decode(data, _count_decoder)
    body.check_names(body.read_names(data), request.__struct_fields__, MESSAGES_UNSUPPORTED)
    return request


def to_chat(request: CountRequest, variables: frozenset[str]) -> protocol.ChatRequest:
    """The same conversation as a ChatRequest. variables: those of the chat template.

    Raises InvalidRequestError.
    """
    if request.messages[-1].role == "assistant":
        problem = "the last one is the assistant's, from which it cannot go on; end with the user's"
        raise invalid_value("messages", problem)
    chat = protocol.ChatRequest(
        model=request.model,
        messages=list(_messages(request)),
        tools=[_tool(tool) for tool in request.tools or ()] or None,
        tool_choice=_choice(request.tool_choice),
    )
    if request.tool_choice is not None and request.tool_choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    if request.thinking is not None:
        _add_thinking(chat, request.thinking, variables)
    if request.output_config is not None:
        chat.reasoning_effort = request.output_config.effort
        chat.response_format = _form(request.output_config.format)
    if isinstance(request, MessagesRequest):
        _add_wishes(chat, request)
    return chat


def _add_thinking(
    chat: protocol.ChatRequest, thinking: Thinking, variables: frozenset[str]
) -> None:
    if thinking.type == "enabled" or thinking.budget_tokens is not None:
        problem = "a budget cannot be kept to; leave it out, and give the type adaptive"
        raise invalid_value("thinking.budget_tokens", problem)
    if thinking.type not in ("adaptive", "disabled"):
        problem = f"{thinking.type[:64]!r} is not supported; give adaptive or disabled"
        raise invalid_value("thinking.type", problem)
    if thinking.type == "disabled" or thinking.display == "omitted":
        chat.include_reasoning = False
    if thinking.type == "disabled" and "enable_thinking" in variables:
        chat.chat_template_kwargs = {"enable_thinking": False}


def _form(form: OutputFormat | None) -> forms.ResponseFormat | None:
    if form is None:
        return None
    return forms.JsonSchemaFormat(forms.JsonSchema(name="answer", schema=form.schema))


def _add_wishes(chat: protocol.ChatRequest, request: MessagesRequest) -> None:
    chat.max_tokens = request.max_tokens
    chat.stop = request.stop_sequences
    chat.stream = request.stream
    chat.temperature, chat.top_p, chat.top_k = request.temperature, request.top_p, request.top_k
    chat.user = request.metadata.user_id if request.metadata is not None else None


def _messages(request: CountRequest) -> Iterator[Message]:
    if request.system:
        yield Message(role="system", content=_text(request.system))
    for place, turn in enumerate(request.messages):
        where = f"messages[{place}].content"
        if isinstance(turn.content, str):
            yield Message(role=turn.role, content=turn.content)
        elif turn.role == "assistant":
            yield _assistant(turn.content, where)
        else:
            yield from _user(turn.content, where)


def _user(blocks: Sequence[Block], where: str) -> Iterator[Message]:
    """Tool results become messages of their own; texts next to each other are one."""
    texts: list[TextPart] = []
    for place, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(TextPart(type="text", text=block.text))
            case ToolResultBlock():
                if texts:
                    yield Message(role="user", content=texts)
                    texts = []
                yield _result(block)
            case _:
                raise invalid_value(
                    f"{where}[{place}].type", "only the assistant has this; remove it"
                )
    if texts or not blocks:
        yield Message(role="user", content=texts)


def _result(block: ToolResultBlock) -> Message:
    content = _text(block.content or "")
    if block.is_error:
        content = f"Error: {content}"
    return Message(role="tool", content=content, tool_call_id=block.tool_use_id)


def _assistant(blocks: Sequence[Block], where: str) -> Message:
    message = Message(role="assistant")
    texts: list[TextPart] = []
    calls: list[ToolCall] = []
    for place, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(TextPart(type="text", text=block.text))
            case ThinkingBlock():
                message.reasoning_content = (message.reasoning_content or "") + block.thinking
            case ToolUseBlock():
                arguments = msgspec.json.encode(block.input).decode()
                function = CalledFunction(name=block.name, arguments=arguments)
                calls.append(ToolCall(id=block.id, function=function))
            case _:
                raise invalid_value(f"{where}[{place}].type", "only the user has this; remove it")
    message.content, message.tool_calls = texts or None, calls or None
    return message


def _text(content: str | list[PlainText]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _tool(tool: MessagesTool) -> Tool:
    function = Function(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _choice(choice: MessagesToolChoice | None) -> ToolChoice | None:
    if choice is None:
        return None
    if (choice.name is not None) != (choice.type == "tool"):
        raise invalid_value("tool_choice.name", "it goes with the type tool, and only with it")
    if choice.name is not None:
        return NamedChoice(type="function", function=FunctionChoice(name=choice.name))
    return "required" if choice.type == "any" else choice.type
