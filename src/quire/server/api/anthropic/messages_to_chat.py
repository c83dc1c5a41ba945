"""Converts a MessagesRequest or CountRequest to a ChatRequest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from quire.errors import invalid_value
from quire.server.api.anthropic.messages_request import (
    Block,
    CountRequest,
    MessagesRequest,
    MessagesToolChoice,
    PlainText,
    RedactedThinkingBlock,
    TextBlock,
    Thinking,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from quire.server.api.common.chat_messages import Message, TextPart, ToolCall
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.response_format import JsonSchema, JsonSchemaFormat
from quire.server.api.common.tool_definitions import ALL_ARE_SHOWN, NamedChoice, Tool, ToolChoice
from quire.server.http.field_names import Origins
from quire.server.model_registry import RegisteredModel

_ACCOUNTING = "x-anthropic-billing-header:"


def to_chat(request: CountRequest, model: RegisteredModel) -> ChatRequest:
    """The ChatRequest with the same conversation. Raises InvalidRequestError."""
    origins = Origins()
    messages, tools = _messages(request, origins), request.tools or ()
    chat = ChatRequest(
        model=request.model,
        messages=messages,
        continue_final_message=_continues(messages[-1]),
        tools=[Tool.of(t.name, t.description, t.input_schema, t.strict) for t in tools] or None,
        tool_choice=_choice(request.tool_choice),
    )
    chat.take_over(request)
    chat.__dict__["origins"] = origins
    if any(tool.defer_loading for tool in tools):
        chat.note_no_effect(ALL_ARE_SHOWN)
    if request.tool_choice is not None and request.tool_choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    if request.thinking is not None:
        _add_thinking(chat, request.thinking, model)
    if (config := request.output_config) is not None:
        chat.reasoning_effort = config.effort
        if config.format is not None:
            schema = JsonSchema(name="answer", schema=config.format.schema)
            chat.response_format = JsonSchemaFormat(schema)
    if isinstance(request, MessagesRequest):
        _add_sampling_fields(chat, request)
    return chat


def _add_thinking(chat: ChatRequest, thinking: Thinking, model: RegisteredModel) -> None:
    if thinking.type not in ("enabled", "adaptive", "disabled"):
        problem = f"must be enabled, adaptive or disabled, not {thinking.type[:64]!r}"
        raise invalid_value("thinking.type", problem)
    budget = thinking.budget_tokens
    if budget is None if thinking.type == "enabled" else budget:
        raise invalid_value("thinking.budget_tokens", "it goes with the type enabled, and only so")
    if thinking.type == "disabled" or thinking.display == "omitted":
        chat.include_reasoning = False
    if thinking.type != "adaptive" and "enable_thinking" in model.engine.tokenizer.chat_variables:
        chat.chat_template_kwargs = {"enable_thinking": thinking.type == "enabled"}
    if model.parsers.reasoning is not None:
        chat.thinking_token_budget = budget
    elif budget:
        chat.note_no_effect("thinking.budget_tokens has no effect: the model marks no reasoning")


def _add_sampling_fields(chat: ChatRequest, request: MessagesRequest) -> None:
    chat.max_tokens = request.max_tokens
    chat.stop = request.stop_sequences
    chat.stream = request.stream
    chat.temperature, chat.top_p, chat.top_k = request.temperature, request.top_p, request.top_k
    chat.user = request.metadata.user_id if request.metadata is not None else None


def _continues(last: Message) -> bool:
    """Whether the answer goes on from the last message. Raises InvalidRequestError."""
    if last.role == "assistant" and (last.tool_calls or not last.content):
        fix = "send the results of its calls" if last.tool_calls else "end with the user's"
        raise invalid_value("messages", f"the last one has no text to continue at its end; {fix}")
    return last.role == "assistant"


def _messages(request: CountRequest, origins: Origins) -> list[Message]:
    """The conversation. origins: is filled with the paths of its messages."""
    found: list[Message] = []
    if system := _system_text(request.system):
        found.append(Message(role="system", content=system))
    for index, message in enumerate(request.messages):
        where, begin = f"messages[{index}].content", len(found)
        if isinstance(message.content, str):
            found.append(Message(role=message.role, content=message.content))
        elif message.role == "assistant":
            found.append(_assistant(message.content, where))
        elif message.role == "system":
            found.append(_system(message.content, where))
        else:
            found += _user(message.content, where)
        origins |= {f"messages[{each}]": where for each in range(begin, len(found))}
    return found


def _system_text(system: str | Sequence[PlainText] | None) -> str:
    """The text of the field `system`, less what is for Anthropic's accounting.

    Claude Code sends that as the first block. It differs between sessions, so that no prefix would
    be found in the cache.
    """
    if system is None or isinstance(system, str):
        return system or ""
    return _text([block for block in system if not block.text.startswith(_ACCOUNTING)])


def _system(blocks: Sequence[Block], where: str) -> Message:
    texts = [TextPart(type="text", text=b.text) for b in blocks if isinstance(b, TextBlock)]
    if len(texts) != len(blocks):
        raise invalid_value(where, "a system message has only text; remove its other blocks")
    return Message(role="system", content=texts)


def _user(blocks: Sequence[Block], where: str) -> Iterator[Message]:
    """Tool results become messages of their own; consecutive texts become one message."""
    texts: list[TextPart] = []
    for index, block in enumerate(blocks):
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
                    f"{where}[{index}].type", "only the assistant has this; remove it"
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
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(TextPart(type="text", text=block.text))
            case ThinkingBlock():
                message.reasoning_content = (message.reasoning_content or "") + block.thinking
            case RedactedThinkingBlock():
                pass
            case ToolUseBlock():
                arguments = msgspec.json.encode(block.input).decode()
                calls.append(ToolCall.of(block.id, block.name, arguments))
            case _:
                raise invalid_value(f"{where}[{index}].type", "only the user has this; remove it")
    message.content, message.tool_calls = texts or None, calls or None
    return message


def _text(content: str | Sequence[PlainText | TextBlock | ToolReferenceBlock]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        block.tool_name if isinstance(block, ToolReferenceBlock) else block.text
        for block in content
    )


def _choice(choice: MessagesToolChoice | None) -> ToolChoice | None:
    if choice is None:
        return None
    if (choice.name is not None) != (choice.type == "tool"):
        raise invalid_value("tool_choice.name", "it goes with the type tool, and only with it")
    if choice.name is not None:
        return NamedChoice.of(choice.name)
    return "required" if choice.type == "any" else choice.type
