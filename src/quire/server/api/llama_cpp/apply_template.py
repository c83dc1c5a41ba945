"""/apply-template: a conversation as the text that the model reads. Runs no model."""

from __future__ import annotations

import msgspec

from quire.server.api.common import chat_request, conversation, route_rules
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.model_route import LightReply, LightRoute
from quire.server.http.openapi_entry import PostEntry
from quire.server.model_registry import ModelRegistry


class AppliedTemplate(msgspec.Struct):
    """The reply. prompt: as /completion takes it, control tokens included."""

    prompt: str


def apply_template(data: bytes, models: ModelRegistry) -> LightReply:
    """The reply to the body of a chat. Raises InvalidRequestError."""
    request = chat_request.parse(data)
    model = models.find(request.model)
    ids = conversation.encode(request, model)
    text = model.engine.tokenizer.decode(ids, skip_special_tokens=False)
    return LightReply(AppliedTemplate(text), request.no_effect)


ROUTE = LightRoute(
    PostEntry(
        "/apply-template",
        "A conversation through the chat template, as text.",
        rules=(route_rules.MODEL, *route_rules.CHAT),
        example={"messages": [{"role": "user", "content": "hello"}]},
        body=ChatRequest,
        reply=AppliedTemplate,
    ),
    apply_template,
)
