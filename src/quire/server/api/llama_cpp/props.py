"""/props, /apply-template: what llama.cpp's clients read of a server, and of its chat template."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.server.api.common import chat_request, conversation, route_rules
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.common.model_route import LightReply, LightRoute, model_info_route
from quire.server.http.openapi_entry import ApiRoute, PostEntry
from quire.server.model_registry import ModelRegistry, RegisteredModel
from quire.version import __version__


class GenerationSettings(msgspec.Struct, kw_only=True):
    """A model's defaults. n_ctx: tokens of prompt and answer. params: its sampling params."""

    n_ctx: int
    params: dict[str, Any]


class Props(msgspec.Struct, kw_only=True):
    """A model and its server. total_slots: requests that run at a time. model_path: the
    folder, file or hub name that was loaded.
    """

    default_generation_settings: GenerationSettings
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool = False
    modalities: dict[str, bool]


def props_route(models: ModelRegistry) -> ApiRoute:
    """The route of /props."""
    summary = "A model's context, slots and chat template, in llama.cpp's format."
    return model_info_route(models, "/props", summary, Props, _props)


def _props(model: RegisteredModel) -> Props:
    tokenizer, info = model.engine.tokenizer, model.engine.info
    settings = GenerationSettings(
        n_ctx=info.limits.max_model_len, params=dict(info.sampling_defaults)
    )
    return Props(
        default_generation_settings=settings,
        total_slots=info.limits.max_num_seqs,
        model_alias=model.name,
        model_path=info.model,
        chat_template=tokenizer.chat_template_text,
        bos_token=tokenizer.names.get("bos_token") or "",
        eos_token=tokenizer.names.get("eos_token") or "",
        build_info=f"quire-{__version__}",
        modalities={"vision": False, "audio": False},
    )


class AppliedTemplate(msgspec.Struct):
    """A conversation as the text that the model reads, as /completion takes it."""

    prompt: str


def apply_template(data: bytes, models: ModelRegistry) -> LightReply:
    """The reply to the body of a chat. Raises InvalidRequestError."""
    request = chat_request.parse(data, ChatRequest)
    model = models.find(request.model)
    ids = conversation.encode(request, model)
    text = model.engine.tokenizer.decode(ids, skip_special_tokens=False)
    return LightReply(AppliedTemplate(text), request.no_effect)


TEMPLATE_ROUTE = LightRoute(
    PostEntry(
        "/apply-template",
        "A conversation through the chat template, as text.",
        rules=(route_rules.MODEL, *route_rules.CHAT),
        example={"messages": [route_rules.USER_MESSAGE]},
        body=ChatRequest,
        reply=AppliedTemplate,
    ),
    apply_template,
)
