"""OpenAI's Responses API on the wire: its body, and its one conversion to a conversation.

Nothing is stored, so a request must bring its whole conversation. Names that nobody knows are
refused wherever they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

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

Status = Literal["in_progress", "completed", "incomplete"]


class InputPart(Strict):
    """A part of a message. annotations and logprobs: as an answer had them; without effect."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputMessage(Strict, tag_field="type", tag="message"):
    """A message. id and status: as an answer had them; without effect."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart]
    id: ShortText | None = None
    status: Status | None = None


class InputCall(Strict, tag_field="type", tag="function_call"):
    """A call that the assistant made earlier."""

    call_id: ShortText
    name: FunctionName
    arguments: str
    id: ShortText | None = None
    status: Status | None = None


class InputResult(Strict, tag_field="type", tag="function_call_output"):
    """What came of a call."""

    call_id: ShortText
    output: str | list[InputPart]
    id: ShortText | None = None
    status: Status | None = None


class ReasoningPart(Strict):
    """A part of the thoughts."""

    type: Literal["reasoning_text"]
    text: str


class InputReasoning(Strict, tag_field="type", tag="reasoning"):
    """What the assistant thought earlier; summary is always empty."""

    summary: Annotated[list[Any], msgspec.Meta(max_length=0)] = msgspec.field(default_factory=list)
    content: list[ReasoningPart] | None = None
    encrypted_content: None = None
    id: ShortText | None = None
    status: Status | None = None


InputItem = InputMessage | InputCall | InputResult | InputReasoning


class ResponsesTool(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesToolChoice(Strict):
    """The one function to be called."""

    type: Literal["function"]
    name: FunctionName


class Reasoning(Strict):
    """effort: how long to think, where the template has such a variable."""

    effort: ShortText | None = None
    summary: None = None
    generate_summary: None = None


class TextFormat(Strict, omit_defaults=True):
    """The form of the answer. name, description and strict, of a schema, have no effect."""

    type: Literal["text", "json_object", "json_schema"]
    name: ShortText | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


TEXT_FORMAT_FORMS: tuple[dict[str, Any], ...] = (  # as JSON Schema
    {
        "required": ["schema"],
        "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
    },
    {"properties": {"type": {"enum": ["text", "json_object"]}, "schema": {"type": "null"}}},
)


class TextWish(Strict, omit_defaults=True):
    """What the text is to be like."""

    format: TextFormat | None = None
    verbosity: None = None


PLAIN_TEXT = TextWish(format=TextFormat(type="text"))


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """Body of /v1/responses. metadata: given back as it is. user: without effect."""

    model: str | None = None
    input: (
        str
        | Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=protocol.MAX_MESSAGES)]
    )
    instructions: str | None = None
    max_output_tokens: bounds.TokenCount | None = None
    temperature: bounds.Temperature | None = None
    top_p: bounds.TopP | None = None
    stream: bool | None = None
    tools: Annotated[list[ResponsesTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextWish | None = None
    metadata: protocol.Metadata | None = None
    user: ShortText | None = None


RESPONSES_UNSUPPORTED: body.NeutralValues = {
    "access_programs": (None, {}),
    "background_options": (None, {}),
    "background": (None, False),
    "context_management": (None, []),
    "conversation": (None,),
    "image": (None, {}),
    "include": (None, []),
    "max_tool_calls": (None,),
    "moderation": (None,),
    "previous_response_id": (None,),
    "prompt": (None,),
    "prompt_cache_key": (None,),
    "prompt_cache_options": protocol.IMPLICIT_CACHE,
    "prompt_cache_retention": (None, "in_memory"),
    "safety_identifier": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "stream_options": (None, {}, {"include_obfuscation": False}),
    "top_logprobs": (None, 0),
    "truncation": (None, "disabled"),
}

_decoder = msgspec.json.Decoder(ResponsesRequest)
_item_decoder: msgspec.json.Decoder[InputItem] = msgspec.json.Decoder(InputItem)


def parse(data: bytes) -> ResponsesRequest:
    """Read a body. Raises InvalidRequestError."""
    request = body.decode(data, _decoder)
    body.check_names(body.read_names(data), request.__struct_fields__, RESPONSES_UNSUPPORTED)
    return request


def to_chat(request: ResponsesRequest) -> protocol.ChatRequest:
    """The same conversation as a ChatRequest. Raises InvalidRequestError."""
    return protocol.ChatRequest(
        model=request.model,
        messages=list(_messages(request)),
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        stream=request.stream,
        tools=[_tool(tool) for tool in request.tools or ()] or None,
        tool_choice=_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
        user=request.user,
        response_format=_form(request.text.format if request.text is not None else None),
    )


def _messages(request: ResponsesRequest) -> Iterator[Message]:
    """Items in order; thoughts, words and calls of one turn of the assistant are one message."""
    if request.instructions:
        yield Message(role="system", content=request.instructions)
    if isinstance(request.input, str):
        yield Message(role="user", content=request.input)
        return
    turn: Message | None = None  # of the assistant, while more may belong to it
    for place, raw in enumerate(request.input):
        item = _item(raw, f"input[{place}]")
        if _belongs(item, turn):
            assert turn is not None
        else:
            if turn is not None:
                yield turn
            turn = Message(role="assistant") if _is_assistants(item) else None
        if turn is None:
            yield _other(item)
        else:
            _add(item, turn)
    if turn is not None:
        yield turn


def _item(raw: msgspec.Raw, where: str) -> InputItem:
    """An item; one without a type is a message."""
    data = bytes(raw)
    if data.startswith(b"{") and (names := body.read_names(data)) and "type" not in names:
        data = b'{"type":"message",' + data[1:]
    return body.decode(data, _item_decoder, path=where)


def _is_assistants(item: InputItem) -> bool:
    is_said = isinstance(item, InputMessage) and item.role == "assistant"
    return is_said or isinstance(item, InputCall | InputReasoning)


def _belongs(item: InputItem, turn: Message | None) -> bool:
    """Whether the item goes on with the turn: in the order thoughts, words, calls."""
    if turn is None or not _is_assistants(item):
        return False
    if isinstance(item, InputCall):
        return True
    return not turn.tool_calls and turn.content is None


def _add(item: InputItem, turn: Message) -> None:
    match item:
        case InputReasoning():
            thoughts = "".join(part.text for part in item.content or ())
            turn.reasoning_content = (turn.reasoning_content or "") + thoughts
        case InputCall():
            function = CalledFunction(name=item.name, arguments=item.arguments)
            call = ToolCall(id=item.call_id, function=function)
            turn.tool_calls = [*(turn.tool_calls or ()), call]
        case InputMessage():
            turn.content = _content(item.content)


def _other(item: InputItem) -> Message:
    if isinstance(item, InputResult):
        return Message(role="tool", content=_content(item.output), tool_call_id=item.call_id)
    assert isinstance(item, InputMessage), "the assistant's items are taken together"
    return Message(role=item.role, content=_content(item.content))


def _content(content: str | list[InputPart]) -> str | list[TextPart]:
    if isinstance(content, str):
        return content
    return [TextPart(type="text", text=part.text) for part in content]


def _tool(tool: ResponsesTool) -> Tool:
    function = Function(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _choice(choice: str | ResponsesToolChoice | None) -> ToolChoice | None:
    if isinstance(choice, ResponsesToolChoice):
        return NamedChoice(type="function", function=FunctionChoice(name=choice.name))
    return choice


def _form(form: TextFormat | None) -> forms.ResponseFormat | None:
    if form is None:
        return None
    if (form.schema is not None) != (form.type == "json_schema"):
        problem = "it goes with the type json_schema, and only with it"
        raise invalid_value("text.format.schema", problem)
    if form.schema is not None:
        schema = forms.JsonSchema(name=form.name or "schema", schema=form.schema)
        return forms.JsonSchemaFormat(schema)
    return forms.TextFormat() if form.type == "text" else forms.JsonObjectFormat()
