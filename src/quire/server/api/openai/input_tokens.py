"""Number of tokens of a chat, in llama.cpp's API, or of a response's input, in OpenAI's."""

from __future__ import annotations

from functools import partial

import msgspec

from quire.server.api.common import chat_request, conversation, route_rules
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.model_route import LightReply, LightRoute
from quire.server.api.openai.response_items import is_long, stored_items
from quire.server.api.openai.response_store import ResponseStore
from quire.server.api.openai.responses_request import ResponsesRequest
from quire.server.api.openai.responses_to_chat import NAMES, to_chat
from quire.server.api.openai.responses_tools import read_tools
from quire.server.http.field_names import SAME, FieldNames
from quire.server.http.openapi_entry import PostEntry
from quire.server.http.request_body import read_body
from quire.server.model_registry import ModelRegistry


class InputTokensReply(msgspec.Struct, kw_only=True):
    """The number of tokens that the model reads."""

    object: str = "response.input_tokens"
    input_tokens: int


def count_chat(data: bytes, models: ModelRegistry) -> LightReply:
    """The reply to the body of a chat. Raises InvalidRequestError."""
    return _counted(chat_request.parse(data, ChatRequest), models)


def count_response(
    store: ResponseStore, data: bytes, models: ModelRegistry, tenant: str
) -> LightReply:
    """The reply to the body of a response, the turns before it included.

    Raises InvalidRequestError.
    """
    request = read_body(data, ResponsesRequest)
    tools, previous = read_tools(request.tools or ()), stored_items(store, request, tenant)
    return _counted(to_chat(request, tools, previous.items), models, NAMES.joined(tools.names))


def _counted(chat: ChatRequest, models: ModelRegistry, names: FieldNames = SAME) -> LightReply:
    token_ids = conversation.encode(chat, models.find(chat.model), names=names)
    return LightReply(InputTokensReply(input_tokens=len(token_ids)), chat.no_effect)


CHAT_ROUTE = LightRoute(
    PostEntry(
        "/v1/chat/completions/input_tokens",
        "Count a conversation's tokens, in llama.cpp's format.",
        rules=(route_rules.MODEL, *route_rules.CHAT),
        example={"messages": [route_rules.USER_MESSAGE]},
        body=ChatRequest,
        reply=InputTokensReply,
    ),
    count_chat,
)


def responses_route(store: ResponseStore) -> LightRoute:
    """The route that counts the tokens of a response's input. store: of earlier turns."""
    return LightRoute(_RESPONSES_ENTRY, partial(count_response, store), is_long, needs_tenant=True)


_RESPONSES_ENTRY = PostEntry(
    "/v1/responses/input_tokens",
    "Count the tokens of a response's input.",
    rules=(
        route_rules.MODEL,
        *route_rules.CHAT,
        "`previous_response_id` names a stored response of the same API key.",
    ),
    example={"input": "hello"},
    body=ResponsesRequest,
    reply=InputTokensReply,
)
