"""/v1/chat/completions/input_tokens: llama.cpp's count of a conversation's tokens."""

from __future__ import annotations

import msgspec

from quire.server.api.common import chat_request, conversation, route_rules
from quire.server.api.common.chat_request import CHAT_RULES, ChatRequest
from quire.server.api.common.model_route import LightRoute
from quire.server.http.openapi_entry import RUN_ERRORS, OpenApiEntry
from quire.server.model_registry import ModelRegistry


class InputTokensReply(msgspec.Struct, kw_only=True):
    """The number of tokens that the model reads."""

    object: str = "response.input_tokens"
    input_tokens: int


def count_tokens(data: bytes, models: ModelRegistry) -> InputTokensReply:
    """The reply to the body of a chat. Raises InvalidRequestError."""
    request = chat_request.parse(data)
    token_ids = conversation.encode(request, models.find(request.model))
    return InputTokensReply(input_tokens=len(token_ids))


ROUTE = LightRoute(
    OpenApiEntry(
        method="post",
        path="/v1/chat/completions/input_tokens",
        summary="Count a conversation's tokens, in llama.cpp's format.",
        rules=(route_rules.MODEL, *route_rules.CHAT),
        example={"messages": [route_rules.USER_MESSAGE]},
        body=ChatRequest,
        struct_rules=CHAT_RULES,
        reply=InputTokensReply,
        errors=RUN_ERRORS,
    ),
    count_tokens,
)
