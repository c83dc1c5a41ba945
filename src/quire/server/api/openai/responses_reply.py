"""The structs that /v1/responses sends: the response, its output items, and stream events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.api.common.logprob_formats import ChatLogprob
from quire.server.api.common.timings import WithProgress, WithTimings
from quire.server.api.common.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from quire.server.api.openai.responses_request import Reasoning, TextConfig
from quire.server.api.openai.responses_tools import (
    AnyTool,
    CustomToolChoice,
    ResponsesAllowedTools,
    ResponsesToolChoice,
)


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    """The text part of a message."""

    text: str = ""
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """The text part of reasoning."""

    text: str = ""


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """The assistant's message; content has one part."""

    id: str
    role: str = "assistant"
    content: list[OutputText]
    status: str = "in_progress"


class OutputReasoning(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """The assistant's reasoning; content has one part."""

    id: str
    summary: list[Any] = []
    content: list[ReasoningText]
    status: str = "in_progress"


class OutputCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A tool call. arguments: the text of a JSON object. namespace: of the tool, if it has one."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    namespace: str | UnsetType = UNSET
    status: str = "in_progress"


class OutputCustomCall(msgspec.Struct, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool. namespace: of the tool, if it has one."""

    id: str
    call_id: str
    name: str
    input: str = ""
    namespace: str | UnsetType = UNSET
    status: str = "in_progress"


OutputItem = OutputMessage | OutputReasoning | OutputCall | OutputCustomCall


class InputTokensDetails(PromptTokensDetails):
    """Parts of input_tokens. cache_write_tokens: always 0, as nobody pays for storing them."""

    cache_write_tokens: int = 0


class ResponsesUsage(msgspec.Struct, kw_only=True):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: CompletionTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ResponsesUsage:
        """Token counts in the format of this API."""
        details = usage.completion_tokens_details
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=CompletionTokensDetails() if details is UNSET else details,
            total_tokens=usage.total_tokens,
        )


class Details(msgspec.Struct):
    """Why an answer is incomplete."""

    reason: str = "max_output_tokens"


class ResponseError(msgspec.Struct):
    """Why a response in the background failed."""

    code: str | None
    message: str


class RawMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="raw_message_tokens"):
    """Text that the model read or wrote, and its token ids."""

    message: str
    tokens: list[int]


class Response(WithTimings, kw_only=True):
    """An answer, complete or started, with the settings of its request.

    input_messages, output_messages: the whole prompt and answer, if the request asks for them.
    """

    id: str
    object: str = "response"
    created_at: int
    status: str
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: Details | None
    model: str
    output: list[OutputItem]
    usage: ResponsesUsage | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    reasoning: Reasoning
    store: bool = False
    temperature: float
    text: TextConfig
    tool_choice: str | ResponsesToolChoice | CustomToolChoice | ResponsesAllowedTools
    tools: Sequence[AnyTool]
    top_p: float
    truncation: str = "disabled"
    user: str | None
    input_messages: list[RawMessage] | UnsetType = UNSET
    output_messages: list[RawMessage] | UnsetType = UNSET


class StreamEvent(WithProgress, msgspec.Struct, kw_only=True):
    """One event; sequence_number counts them from 0."""

    sequence_number: int = 0


class Created(StreamEvent, kw_only=True, tag_field="type", tag="response.created"):
    """Stream event: the response has been accepted."""

    response: Response


class InProgress(StreamEvent, kw_only=True, tag_field="type", tag="response.in_progress"):
    """Stream event: the model has started."""

    response: Response


class Completed(StreamEvent, kw_only=True, tag_field="type", tag="response.completed"):
    """Stream event: the answer is complete."""

    response: Response


class Incomplete(StreamEvent, kw_only=True, tag_field="type", tag="response.incomplete"):
    """Stream event: the answer was cut at max_output_tokens."""

    response: Response


class Failure(StreamEvent, kw_only=True, tag_field="type", tag="error"):
    """Stream event: the answer failed."""

    code: str | None
    message: str
    param: str | None


class ItemAdded(StreamEvent, kw_only=True, tag_field="type", tag="response.output_item.added"):
    """Stream event: an output item starts."""

    output_index: int
    item: OutputItem


class ItemDone(StreamEvent, kw_only=True, tag_field="type", tag="response.output_item.done"):
    """Stream event: an output item is complete."""

    output_index: int
    item: OutputItem


class _OfItem(StreamEvent, kw_only=True):
    item_id: str
    output_index: int


class _OfPart(_OfItem, kw_only=True):
    content_index: int = 0


class PartAdded(_OfPart, kw_only=True, tag_field="type", tag="response.content_part.added"):
    """Stream event: a part of an output item starts."""

    part: OutputText | ReasoningText


class PartDone(_OfPart, kw_only=True, tag_field="type", tag="response.content_part.done"):
    """Stream event: a part of an output item is complete."""

    part: OutputText | ReasoningText


class TextPiece(_OfPart, kw_only=True, tag_field="type", tag="response.output_text.delta"):
    """Stream event: the next part of a message's text."""

    delta: str
    logprobs: list[ChatLogprob] = []


class TextDone(_OfPart, kw_only=True, tag_field="type", tag="response.output_text.done"):
    """Stream event: the complete text of a message."""

    text: str
    logprobs: list[ChatLogprob] = []


class ReasoningPiece(_OfPart, kw_only=True, tag_field="type", tag="response.reasoning_text.delta"):
    """Stream event: the next part of the reasoning."""

    delta: str


class ReasoningDone(_OfPart, kw_only=True, tag_field="type", tag="response.reasoning_text.done"):
    """Stream event: the complete reasoning."""

    text: str


class ArgumentsPiece(
    _OfItem, kw_only=True, tag_field="type", tag="response.function_call_arguments.delta"
):
    """Stream event: the next part of a tool call's arguments."""

    delta: str


class ArgumentsDone(
    _OfItem, kw_only=True, tag_field="type", tag="response.function_call_arguments.done"
):
    """Stream event: the complete arguments of a tool call."""

    name: str
    arguments: str


class InputPiece(
    _OfItem, kw_only=True, tag_field="type", tag="response.custom_tool_call_input.delta"
):
    """Stream event: the input of a custom tool's call, as a whole."""

    delta: str


class InputDone(
    _OfItem, kw_only=True, tag_field="type", tag="response.custom_tool_call_input.done"
):
    """Stream event: the complete input of a custom tool's call."""

    input: str


EVENTS = (
    Created, InProgress, ItemAdded, PartAdded, TextPiece, TextDone, ReasoningPiece, ReasoningDone,
    ArgumentsPiece, ArgumentsDone, InputPiece, InputDone, PartDone, ItemDone, Completed, Incomplete,
    Failure,
)  # fmt: skip
