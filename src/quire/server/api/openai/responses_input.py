"""The items of the field `input` of /v1/responses."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quire.server.api.common.tool_definitions import DirectCaller, FunctionName
from quire.server.http import strict_json
from quire.server.http.field_bounds import ShortText
from quire.server.http.strict_json import Strict

Status = Literal["in_progress", "completed", "incomplete"]


class InputPart(Strict):
    """A part of a message. annotations and logprobs: copied from an answer; without effect.

    prompt_cache_breakpoint: without effect, as every prefix is cached.
    """

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


class InputMessage(Strict, tag_field="type", tag="message"):
    """A message. id, status and phase: copied from an answer; without effect."""

    optional_tag = True
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart]
    id: ShortText | None = None
    status: Status | None = None
    phase: ShortText | None = None


class InputCall(Strict, tag_field="type", tag="function_call"):
    """A call that the assistant made earlier. namespace: of the tool."""

    call_id: ShortText
    name: FunctionName
    arguments: str
    namespace: FunctionName | None = None
    caller: DirectCaller | None = None
    id: ShortText | None = None
    status: Status | None = None


class InputCustomCall(Strict, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool that the assistant made earlier. namespace: of the tool."""

    call_id: ShortText
    name: FunctionName
    input: str
    namespace: FunctionName | None = None
    caller: DirectCaller | None = None
    id: ShortText | None = None
    status: Status | None = None


class InputResult(Strict, tag_field="type", tag="function_call_output"):
    """The result of a tool call, given back to the model."""

    call_id: ShortText
    output: str | list[InputPart]
    name: ShortText | None = None
    namespace: FunctionName | None = None
    caller: DirectCaller | None = None
    id: ShortText | None = None
    status: Status | None = None


class InputCustomResult(Strict, tag_field="type", tag="custom_tool_call_output"):
    """The result of a custom tool's call, given back to the model."""

    call_id: ShortText
    output: str | list[InputPart]
    name: ShortText | None = None
    caller: DirectCaller | None = None
    id: ShortText | None = None
    status: Status | None = None


class ItemReference(Strict, tag_field="type", tag="item_reference"):
    """An item of a stored response's output."""

    id: ShortText


class ReasoningPart(Strict):
    """A part of the reasoning."""

    type: Literal["reasoning_text"]
    text: str


class SummaryPart(Strict):
    """A part of a summary of the reasoning."""

    type: Literal["summary_text"]
    text: str


class InputReasoning(Strict, tag_field="type", tag="reasoning"):
    """The assistant's earlier reasoning. That of another service may have only a summary.

    encrypted_content: what only that service can read; without effect.
    """

    summary: list[SummaryPart] = msgspec.field(default_factory=list)
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None
    id: ShortText | None = None
    status: Status | None = None


InputItem = (
    InputMessage
    | InputCall
    | InputCustomCall
    | InputResult
    | InputCustomResult
    | InputReasoning
    | ItemReference
)
_item_decoder: msgspec.json.Decoder[InputItem] = msgspec.json.Decoder(InputItem)


def read_item(raw: msgspec.Raw, where: str) -> InputItem:
    """Decode an input item; one without a type is a message. Raises InvalidRequestError."""
    data = bytes(raw)
    if data.startswith(b"{") and (names := strict_json.read_names(data)) and "type" not in names:
        data = b'{"type":"message",' + data[1:]
    return strict_json.decode(data, _item_decoder, path=where)
