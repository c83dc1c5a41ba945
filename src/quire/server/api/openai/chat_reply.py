"""What /v1/chat/completions sends: whole answers, chunks, and an answer's events as their parts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.api.common.logprob_formats import ChatLogprobs, PromptLogprob
from quire.server.api.common.usage import Usage
from quire.server.parsing.output_events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegin,
    join,
)


class FunctionCall(msgspec.Struct, kw_only=True):
    """What is called, or in a stream more of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call; only a stream has the index, and all but that in a call's first part only."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True):
    """The assistant's turn. The reasoning has the two names that clients look for."""

    role: str = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatReply(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metadata: dict[str, str] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class Delta(msgspec.Struct, kw_only=True):
    """What a chunk adds to the assistant's turn."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """The next part of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One chunk of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


def message_of(events: Sequence[Event]) -> ChatMessage:
    """The assistant's turn that the events tell."""
    answer = join(events)
    message = ChatMessage(content=answer.text)
    if answer.reasoning:
        message.reasoning_content = message.reasoning = answer.reasoning
    if answer.calls:
        message.content = answer.text or None
        message.tool_calls = [
            ToolCall(
                id=call.id,
                type="function",
                function=FunctionCall(name=call.name, arguments=call.arguments),
            )
            for call in answer.calls
        ]
    return message


def delta_of(event: Event) -> Delta:
    """What a chunk says of one event."""
    match event:
        case TextDelta(text):
            return Delta(content=text)
        case ReasoningDelta(text):
            return Delta(reasoning_content=text, reasoning=text)
        case ToolCallBegin(index, call_id, name):
            function = FunctionCall(name=name, arguments="")
            call = ToolCall(index=index, id=call_id, type="function", function=function)
        case ToolCallArguments(index, text):
            call = ToolCall(index=index, function=FunctionCall(arguments=text))
    return Delta(tool_calls=[call])
