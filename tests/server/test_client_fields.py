"""Each field that the official clients can send is honoured, or refused by its name.

Made of the clients' own type annotations, so that another field is noticed where a newer client is
looked at; where one is merely installed, its new fields are told and skipped.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, get_type_hints

import pytest
from anthropic import types as anthropic_types
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_params
from openai.types import chat as openai_chat
from openai.types import completion_create_params, embedding_create_params, shared_params
from openai.types import responses as openai_responses
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params, response_input_item_param

from quire.compat.names_table import rows_of
from quire.server.api.anthropic import messages_request
from quire.server.api.common import (
    chat_messages,
    chat_request,
    tool_definitions,
)
from quire.server.api.openai import (
    completions_request,
    embeddings_request,
    responses_input,
    responses_request,
    responses_tools,
)
from quire.server.http.request_body import SCOPES, RequestBody

ROUTES: list[tuple[type[Any], type[RequestBody]]] = [
    (chat_params.CompletionCreateParamsStreaming, chat_request.ChatRequest),
    (
        completion_create_params.CompletionCreateParamsStreaming,
        completions_request.CompletionRequest,
    ),
    (response_create_params.ResponseCreateParamsStreaming, responses_request.ResponsesRequest),
    (embedding_create_params.EmbeddingCreateParams, embeddings_request.EmbeddingRequest),
    (message_create_params.MessageCreateParamsStreaming, messages_request.MessagesRequest),
    (beta_params.MessageCreateParamsStreaming, messages_request.MessagesRequest),
    (message_count_tokens_params.MessageCountTokensParams, messages_request.CountRequest),
    (beta_count_params.MessageCountTokensParams, messages_request.CountRequest),
]
LOOKED_AT = {"anthropic": (2, 12), "openai": (3, 54)}  # the newest versions whose fields were read
FOREIGN = {row.name for scope in SCOPES for row in rows_of(scope)}
HEADERS = {"betas", "user_profile_id", "workspace_id"}  # arguments that are sent as headers


@pytest.mark.parametrize(
    ("params", "request_type"),
    ROUTES,
    ids=[f"{kind.__module__}.{kind.__name__}" for kind, _ in ROUTES],
)
def test_each_field_of_a_client_is_known(
    params: type[Any], request_type: type[RequestBody]
) -> None:
    known = {*request_type.__struct_fields__, *request_type.neutral, *HEADERS} | FOREIGN
    check_fields(params, known)


def check_fields(params: type[Any], known: set[str]) -> None:
    """Every field of a client's type is among those that are known."""
    sent = set(get_type_hints(params, include_extras=True))
    assert sent, "there are no fields"
    unknown, client = sorted(sent - known), params.__module__.partition(".")[0]
    if unknown and tuple(map(int, version(client).split(".")[:2])) > LOOKED_AT[client]:
        pytest.skip(f"{client} {version(client)} has new fields: {', '.join(unknown)}")
    assert unknown == []


MESSAGE = (chat_messages.Message, *chat_messages.Message.neutral)
LATER = ("async", "output_schema")  # fields of functions that no model here was trained on
PART = (chat_messages.TextPart, *chat_messages.TextPart.neutral)
# what a client has within a body → the struct that reads it, and what it may have besides
INNER: list[tuple[type[Any], tuple[Any, ...]]] = [
    (anthropic_types.ToolParam, (messages_request.MessagesTool, "input_examples")),
    (anthropic_types.ToolUseBlockParam, (messages_request.ToolUseBlock, "toolset_name")),
    (anthropic_types.ToolResultBlockParam, (messages_request.ToolResultBlock, "toolset_name")),
    (anthropic_types.TextBlockParam, (messages_request.TextBlock,)),
    (anthropic_types.ThinkingBlockParam, (messages_request.ThinkingBlock,)),
    (anthropic_types.CacheControlEphemeralParam, (messages_request.CacheControl,)),
    (anthropic_types.MetadataParam, (messages_request.Metadata,)),
    (openai_chat.ChatCompletionAssistantMessageParam, MESSAGE),
    (openai_chat.ChatCompletionUserMessageParam, MESSAGE),
    (openai_chat.ChatCompletionToolMessageParam, MESSAGE),
    (openai_chat.ChatCompletionContentPartTextParam, PART),
    (openai_chat.ChatCompletionMessageFunctionToolCallParam, (chat_messages.ToolCall,)),
    (shared_params.FunctionDefinition, (tool_definitions.Function,)),
    (openai_responses.FunctionToolParam, (responses_tools.ResponsesTool, *LATER)),
    (openai_responses.CustomToolParam, (responses_tools.CustomTool, "async")),
    (openai_responses.NamespaceToolParam, (responses_tools.NamespaceTool,)),
    (openai_responses.EasyInputMessageParam, (responses_input.InputMessage,)),
    (openai_responses.ResponseOutputMessageParam, (responses_input.InputMessage,)),
    (openai_responses.ResponseInputTextParam, (responses_input.InputPart,)),
    (openai_responses.ResponseOutputTextParam, (responses_input.InputPart,)),
    (
        openai_responses.ResponseFunctionToolCallParam,
        (responses_input.InputCall, "async"),
    ),
    (
        openai_responses.ResponseCustomToolCallParam,
        (responses_input.InputCustomCall, "async"),
    ),
    (response_input_item_param.FunctionCallOutput, (responses_input.InputResult,)),
    (
        openai_responses.ResponseCustomToolCallOutputParam,
        (responses_input.InputCustomResult,),
    ),
    (response_input_item_param.ItemReference, (responses_input.ItemReference,)),
    (openai_responses.ResponseReasoningItemParam, (responses_input.InputReasoning,)),
]


@pytest.mark.parametrize(("params", "known"), INNER, ids=lambda kind: getattr(kind, "__name__", ""))
def test_each_field_within_a_body_is_known(params: type[Any], known: tuple[Any, ...]) -> None:
    """Those that are named beside a struct are refused there, unless they are null."""
    struct, *refused = known
    check_fields(params, {*struct.__struct_fields__, struct.__struct_config__.tag_field, *refused})
