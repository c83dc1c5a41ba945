"""Converts a ResponsesRequest to a ChatRequest, whose fields have other NAMES there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from quire.errors import invalid_value
from quire.server.api.common import response_format
from quire.server.api.common.chat_messages import Message, TextPart, ToolCall
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.generation_request import NO_PADDING, NO_PROGRESS
from quire.server.api.common.tool_definitions import (
    ALL_ARE_SHOWN,
    AllowedChoice,
    AllowedTools,
    FunctionChoice,
    NamedChoice,
    ToolChoice,
    ToolReference,
)
from quire.server.api.openai.responses_input import (
    InputCall,
    InputCustomCall,
    InputCustomResult,
    InputItem,
    InputMessage,
    InputPart,
    InputReasoning,
    InputResult,
    read_item,
)
from quire.server.api.openai.responses_request import (
    AS_IN_CHATS,
    FORMAT_FIELDS,
    LOGPROBS,
    Reasoning,
    ResponsesRequest,
    TextFormat,
)
from quire.server.api.openai.responses_tools import (
    CalledTool,
    CustomToolChoice,
    ResponsesAllowedTools,
    ResponsesToolChoice,
    ResponsesTools,
    as_arguments,
)
from quire.server.http.field_names import FieldNames, Origins

NAMES = FieldNames(
    {
        ".function": "",
        "messages": "input",
        "max_completion_tokens": "max_output_tokens",
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        "thinking_token_budget": "reasoning.max_tokens",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
    }
)


def to_chat(
    request: ResponsesRequest, tools: ResponsesTools, previous: Sequence[msgspec.Raw] = ()
) -> ChatRequest:
    """The ChatRequest with the same conversation. previous: the items of its earlier turns.

    Raises InvalidRequestError.
    """
    includes_logprobs, origins = LOGPROBS in (request.include or ()), Origins()
    reasoning = request.reasoning or Reasoning()
    chat = ChatRequest(
        **{name: getattr(request, name) for name in AS_IN_CHATS},
        messages=_messages(request, previous, origins),
        logprobs=includes_logprobs or request.top_logprobs is not None,
        max_completion_tokens=request.max_output_tokens,
        tools=list(tools.functions) or None,
        tool_choice=_choice(request.tool_choice),
        reasoning_effort=reasoning.effort,
        thinking_token_budget=reasoning.max_tokens,
        response_format=_response_format(request.text.format if request.text is not None else None),
    )
    chat.take_over(request)
    chat.__dict__["origins"] = origins
    chat.note_no_effect(*tools.without_effect, *_without_effect(request, tools))
    return chat


def _without_effect(request: ResponsesRequest, tools: ResponsesTools) -> Iterator[str]:
    if request.text is not None and request.text.verbosity is not None:
        yield "text.verbosity has no effect: the length of an answer is the model's choice"
    if tools.are_deferred:
        yield ALL_ARE_SHOWN
    for name in ("summary", "generate_summary"):
        if getattr(request.reasoning, name, None) is not None:
            yield f"reasoning.{name} has no effect: the reasoning itself is returned"
    for name in request.include or ():
        if name != LOGPROBS:
            yield f"include: {name!r} has no effect: there is nothing of the kind"
    if request.stream_options is not None and request.stream_options.include_obfuscation:
        yield NO_PADDING
    if request.return_progress and not request.stream:
        yield NO_PROGRESS


def _messages(
    request: ResponsesRequest, previous: Sequence[msgspec.Raw], origins: Origins
) -> list[Message]:
    """Items in order; reasoning, text and calls of one answer are one assistant message.

    origins: is filled with the items' paths.
    """
    found: list[Message] = []
    if request.instructions:
        found.append(Message(role="system", content=request.instructions))
    message: Message | None = None  # the assistant's, while items may still belong to it
    for where, item in _items(request, previous):
        if isinstance(item, InputCall | InputCustomCall) and item.status == "incomplete":
            continue  # its arguments were cut, so nobody has made the call
        if not _continues(item, message):
            message = Message(role="assistant") if _is_assistant_item(item) else None
            origins[f"messages[{len(found)}]"] = where
            found.append(_other_message(item) if message is None else message)
        if message is not None:
            _add(item, message)
            if isinstance(item, InputCall | InputCustomCall):
                number = len(message.tool_calls or ()) - 1
                origins[f"messages[{len(found) - 1}].tool_calls[{number}].function"] = where
    return found


def _items(
    request: ResponsesRequest, previous: Sequence[msgspec.Raw]
) -> Iterator[tuple[str, InputItem]]:
    """Each item, and its path in the request."""
    for raw in previous:
        yield "previous_response_id", read_item(raw, "previous_response_id")
    if isinstance(request.input, str):
        yield "input", InputMessage(role="user", content=request.input)
        return
    for index, raw in enumerate(request.input):
        yield (where := f"input[{index}]"), read_item(raw, where)


def _is_assistant_item(item: InputItem) -> bool:
    is_message = isinstance(item, InputMessage) and item.role == "assistant"
    return is_message or isinstance(item, InputCall | InputCustomCall | InputReasoning)


def _continues(item: InputItem, message: Message | None) -> bool:
    """Whether the item continues the message: in the order reasoning, text, calls."""
    if message is None or not _is_assistant_item(item):
        return False
    if isinstance(item, InputCall | InputCustomCall):
        return True
    return not message.tool_calls and message.content is None


def _add(item: InputItem, message: Message) -> None:
    match item:
        case InputReasoning():
            reasoning = "".join(part.text for part in item.content or item.summary)
            message.reasoning_content = (message.reasoning_content or "") + reasoning
        case InputCall() | InputCustomCall():
            arguments = item.arguments if isinstance(item, InputCall) else as_arguments(item.input)
            name = CalledTool(item.name, item.namespace).function_name
            call = ToolCall.of(item.call_id, name, arguments)
            message.tool_calls = [*(message.tool_calls or ()), call]
        case InputMessage():
            message.content = _content(item.content)


def _other_message(item: InputItem) -> Message:
    if isinstance(item, InputResult | InputCustomResult):
        return Message(role="tool", content=_content(item.output), tool_call_id=item.call_id)
    assert isinstance(item, InputMessage), "the assistant's items are taken together"
    return Message(role=item.role, content=_content(item.content))


def _content(content: str | list[InputPart]) -> str | list[TextPart]:
    if isinstance(content, str):
        return content
    return [TextPart(type="text", text=part.text) for part in content]


def _choice(
    choice: str | ResponsesToolChoice | CustomToolChoice | ResponsesAllowedTools | None,
) -> ToolChoice | None:
    match choice:
        case ResponsesToolChoice(name) | CustomToolChoice(name):
            return NamedChoice.of(name)
        case ResponsesAllowedTools():
            functions = [FunctionChoice(name=tool.name) for tool in choice.tools]
            tools = [ToolReference(type="function", function=each) for each in functions]
            return AllowedChoice(allowed_tools=AllowedTools(mode=choice.mode, tools=tools))
    return choice


def _response_format(text_format: TextFormat | None) -> response_format.ResponseFormat | None:
    if text_format is None:
        return None
    _check_format_fields(text_format)
    match text_format.type:
        case "text":
            return response_format.TextFormat()
        case "json_object":
            return response_format.JsonObjectFormat()
        case "structural_tag":
            return response_format.StructuralTagFormat(
                format=text_format.format,
                structures=text_format.structures,
                triggers=text_format.triggers,
            )
    assert text_format.schema is not None  # checked above
    schema = response_format.JsonSchema(
        name=text_format.name or "schema", schema=text_format.schema
    )
    return response_format.JsonSchemaFormat(schema)


def _check_format_fields(text_format: TextFormat) -> None:
    for name, kind in FORMAT_FIELDS.items():
        is_given, is_of_type = getattr(text_format, name) is not None, text_format.type == kind
        is_missing = name == "schema" and is_of_type and not is_given
        if is_missing or (is_given and not is_of_type):
            problem = f"it goes with the type {kind}, and only with it"
            raise invalid_value(f"text.format.{name}", problem)
