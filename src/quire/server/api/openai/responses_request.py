"""ResponsesRequest: the body of /v1/responses. responses_to_chat.py converts it to a ChatRequest.

Unknown fields are refused anywhere in it.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from quire.errors import InvalidRequestError, invalid_value
from quire.server.api.common.chat_request import MAX_MESSAGES, ChatRequest, Metadata
from quire.server.api.common.response_format import StructuralTag
from quire.server.api.common.tool_definitions import MAX_TOOLS
from quire.server.api.openai.responses_input import InputItem
from quire.server.api.openai.responses_tools import (
    TOOLS,
    CustomToolChoice,
    ResponsesAllowedTools,
    ResponsesToolChoice,
)
from quire.server.http import field_bounds
from quire.server.http.field_bounds import ShortText
from quire.server.http.request_body import RequestBody
from quire.server.http.strict_json import Strict

_ItemList = msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)


class Reasoning(Strict):
    """The reasoning before an answer.

    effort: how much to reason, if the chat template has such a variable.
    max_tokens: tokens of reasoning after which its end is forced.
    summary, generate_summary: without effect; the reasoning itself is returned.
    """

    effort: ShortText | None = None
    max_tokens: field_bounds.ThinkingTokens | None = None
    summary: ShortText | None = None
    generate_summary: ShortText | None = None


# which fields of a TextFormat belong to one type alone
FORMAT_FIELDS = {
    "schema": "json_schema",
    **dict.fromkeys(("format", "structures", "triggers"), "structural_tag"),
}


def _format_variant(kind: str, **required: Any) -> dict[str, Any]:
    """JSON Schema of a TextFormat of one type. required: the fields that it needs."""
    others = {name: {"type": "null"} for name, own in FORMAT_FIELDS.items() if own != kind}
    properties = {"type": {"const": kind}, **others, **required}
    return {"required": [*required], "properties": properties}


TEXT_FORMAT_VARIANTS: tuple[dict[str, Any], ...] = (
    _format_variant("json_schema", schema={"type": "object"}),
    *map(_format_variant, ("text", "json_object", "structural_tag")),
)


class TextFormat(Strict, omit_defaults=True):
    """The format of the answer. name, description and strict of a schema have no effect.

    format, or structures and triggers: of structural_tag, as in chats.
    """

    variants = TEXT_FORMAT_VARIANTS
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    name: ShortText | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    structures: list[StructuralTag] | None = None
    triggers: list[str] | None = None


class TextConfig(Strict, omit_defaults=True):
    """The field `text`: settings of the answer's text."""

    format: TextFormat | None = None
    verbosity: ShortText | None = None


PLAIN_TEXT = TextConfig(format=TextFormat(type="text"))


class ResponsesStreamOptions(Strict):
    """Options of a stream. include_obfuscation: without effect, there is no padding."""

    include_obfuscation: bool | None = None


Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ResponsesRequest(RequestBody, kw_only=True, dict=True):
    """Body of /v1/responses. metadata: returned unchanged. user: without effect.

    store: keep the response (the default). previous_response_id: of a stored response, whose
    conversation goes on. background: answer at once, and run on without the client.
    enable_response_messages: also return prompt and answer as token ids. include:
    message.output_text.logprobs asks for log-probabilities, as top_logprobs does; OpenAI's other
    values have no effect. Fields after top_logprobs are those of a chat.
    """

    neutral: ClassVar = {
        "access_programs": (None, {}),
        "background_options": (None, {}),
        "prompt": (None,),
    }
    raw_types: ClassVar = {
        "input": (str, Annotated[list[InputItem], _ItemList]),
        "tools": TOOLS,
    }
    model: str | None = None
    input: str | Annotated[list[msgspec.Raw], _ItemList]
    instructions: str | None = None
    max_output_tokens: field_bounds.TokenLimit | None = None
    temperature: field_bounds.Temperature | None = None
    top_p: field_bounds.TopP | None = None
    stream: bool | None = None
    tools: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"]
        | ResponsesToolChoice
        | CustomToolChoice
        | ResponsesAllowedTools
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    metadata: Metadata | None = None
    user: ShortText | None = None
    stream_options: ResponsesStreamOptions | None = None
    store: bool | None = None
    previous_response_id: ShortText | None = None
    include: Annotated[list[Included], msgspec.Meta(max_length=32)] | None = None
    background: bool | None = None
    enable_response_messages: bool | None = None
    top_logprobs: field_bounds.NumLogprobs | None = None
    top_k: field_bounds.TopK | None = None
    min_p: field_bounds.MinP | None = None
    presence_penalty: field_bounds.Penalty | None = None
    frequency_penalty: field_bounds.Penalty | None = None
    repetition_penalty: field_bounds.RepetitionPenalty | None = None
    logit_bias: field_bounds.LogitBias | None = None
    seed: field_bounds.Seed | None = None
    stop: field_bounds.Word | field_bounds.StopStrings | None = None
    stop_token_ids: field_bounds.TokenIds | None = None
    min_tokens: field_bounds.MinTokens | None = None
    bad_words: field_bounds.BadWords | None = None
    allowed_token_ids: field_bounds.AllowedTokenIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: field_bounds.Int32 | None = None
    cache_salt: ShortText | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None


_OWN_KINDS = ("tools", "tool_choice", "metadata", "stream_options")  # of other types in chats
# fields that a ChatRequest has, too
AS_IN_CHATS = tuple(
    name
    for name in ResponsesRequest.__struct_fields__
    if name in ChatRequest.__struct_fields__ and name not in _OWN_KINDS
)
LOGPROBS = "message.output_text.logprobs"  # a value of include


def check_background(request: ResponsesRequest) -> None:
    """Refuse what does not go with `background`. Raises InvalidRequestError."""
    if request.background and request.store is False:
        text = "background can only be used when `store` is true; leave one of them out"
        raise InvalidRequestError(text, param="background")
    if request.background and request.stream:
        problem = "its answer is not streamed; set stream to false, and ask for the response by id"
        raise invalid_value("background", problem)
