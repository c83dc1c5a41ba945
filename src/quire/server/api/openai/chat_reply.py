"""The structs that /v1/chat/completions sends, made of an answer's events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.api.common.logprob_formats import ChatLogprobs, PromptLogprob
from quire.server.api.common.timings import WithProgress, WithTimings
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
    """A called function; in a stream, more of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call. index: only in streams. id, type and name: only in a call's first part."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True):
    """The assistant's message. The reasoning has the two names that clients look for."""

    role: str = "assistant"
    content: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer of several. Of several conversations, each has what is asked of its prompt."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class ChatReply(WithTimings, kw_only=True):
    """The reply without streaming."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    metadata: dict[str, str] | UnsetType = UNSET
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class Delta(msgspec.Struct, kw_only=True, gc=False):
    """The part of the assistant's message that a chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True, gc=False):
    """The next part of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(WithProgress, kw_only=True, gc=False):
    """One chunk of a stream. system_fingerprint: in the last one of each answer, as vLLM's."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


def message_of(events: Sequence[Event]) -> ChatMessage:
    """The assistant's message made of all its events."""
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
    """The delta of one event."""
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
