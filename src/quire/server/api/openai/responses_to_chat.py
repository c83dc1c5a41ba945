"""From the items of OpenAI's Responses API to a conversation in the form of a ChatRequest."""

from __future__ import annotations

from collections.abc import Iterator

from quire.errors import invalid_value
from quire.server.api.common import response_format
from quire.server.api.common.chat_messages import CalledFunction, Message, TextPart, ToolCall
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.tool_definitions import (
    Function,
    FunctionChoice,
    NamedChoice,
    Tool,
    ToolChoice,
)
from quire.server.api.openai.responses_request import (
    InputCall,
    InputItem,
    InputMessage,
    InputPart,
    InputReasoning,
    InputResult,
    ResponsesRequest,
    ResponsesTool,
    ResponsesToolChoice,
    TextFormat,
    read_item,
)


def to_chat(request: ResponsesRequest) -> ChatRequest:
    """The same conversation as a ChatRequest. Raises InvalidRequestError."""
    return ChatRequest(
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
        item = read_item(raw, f"input[{place}]")
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


def _form(form: TextFormat | None) -> response_format.ResponseFormat | None:
    if form is None:
        return None
    if (form.schema is not None) != (form.type == "json_schema"):
        problem = "it goes with the type json_schema, and only with it"
        raise invalid_value("text.format.schema", problem)
    if form.schema is not None:
        schema = response_format.JsonSchema(name=form.name or "schema", schema=form.schema)
        return response_format.JsonSchemaFormat(schema)
    return (
        response_format.TextFormat() if form.type == "text" else response_format.JsonObjectFormat()
    )
