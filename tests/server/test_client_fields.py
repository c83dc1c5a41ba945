"""Each field that the official clients can send is honoured, or refused by its name.

Made of the clients' own type annotations, so that another field is noticed where a newer client is
looked at; where one is merely installed, its new fields are told and skipped.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import version
from typing import Any, get_type_hints

import msgspec
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params

from quire.compat.names_table import NAMES
from quire.server.api.anthropic import messages_request
from quire.server.api.common import chat_request
from quire.server.api.openai import completions_request, embeddings_request, responses_request
from quire.server.http.request_body import SCOPES

MESSAGES = (messages_request.MessagesRequest, messages_request.MESSAGES_REFUSED)
COUNT = (messages_request.CountRequest, messages_request.MESSAGES_REFUSED)
ROUTES: list[tuple[type[Any], type[msgspec.Struct], Collection[str]]] = [
    (
        chat_params.CompletionCreateParamsStreaming,
        chat_request.ChatRequest,
        chat_request.CHAT_REFUSED,
    ),
    (
        completion_create_params.CompletionCreateParamsStreaming,
        completions_request.CompletionRequest,
        completions_request.COMPLETION_REFUSED,
    ),
    (
        response_create_params.ResponseCreateParamsStreaming,
        responses_request.ResponsesRequest,
        responses_request.RESPONSES_REFUSED,
    ),
    (
        embedding_create_params.EmbeddingCreateParams,
        embeddings_request.EmbeddingRequest,
        embeddings_request.EMBEDDING_REFUSED,
    ),
    (message_create_params.MessageCreateParamsStreaming, *MESSAGES),
    (beta_params.MessageCreateParamsStreaming, *MESSAGES),
    (message_count_tokens_params.MessageCountTokensParams, *COUNT),
    (beta_count_params.MessageCountTokensParams, *COUNT),
]
LOOKED_AT = {"anthropic": (2, 12), "openai": (3, 54)}  # the newest versions whose fields were read
FOREIGN = {row.name for scope in SCOPES for row in NAMES[scope]}
HEADERS = {"betas", "user_profile_id", "workspace_id"}  # arguments that are sent as headers


@pytest.mark.parametrize(
    ("params", "request_type", "refused"),
    ROUTES,
    ids=[f"{kind.__module__}.{kind.__name__}" for kind, _, _ in ROUTES],
)
def test_each_field_of_a_client_is_known(
    params: type[Any], request_type: type[msgspec.Struct], refused: Collection[str]
) -> None:
    sent = set(get_type_hints(params, include_extras=True))
    assert len(sent) > 4, "these are no fields"
    unknown = sorted(sent - HEADERS - {*request_type.__struct_fields__} - {*refused} - FOREIGN)
    client = params.__module__.partition(".")[0]
    if unknown and tuple(map(int, version(client).split(".")[:2])) > LOOKED_AT[client]:
        pytest.skip(f"{client} {version(client)} has new fields: {', '.join(unknown)}")
    assert unknown == []
