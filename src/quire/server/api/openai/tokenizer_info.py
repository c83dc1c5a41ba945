"""/tokenizer_info: what a model's tokenizer is, in vLLM's format."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.json_response import JsonResponse
from quire.server.http.openapi_entry import ApiRoute, OpenApiEntry
from quire.server.model_registry import ModelRegistry, RegisteredModel


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """A tokenizer, by the names that tokenizer_config.json has.

    model_max_length: tokens of prompt and answer. bos_token ...: the text of special tokens; None
    where there is none. chat_template: None without one.
    """

    tokenizer_class: str = "PreTrainedTokenizerFast"  # what reads the same tokenizer.json
    model_max_length: int
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class TokenizerInfoRoute:
    """The endpoint /tokenizer_info."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    @property
    def route(self) -> ApiRoute:
        """The route of /tokenizer_info."""
        entry = OpenApiEntry(
            path="/tokenizer_info",
            summary="A model's tokenizer: special tokens, chat template, sizes.",
            reply=TokenizerInfo,
            errors=(404, 503),
            names_model=True,
        )
        return ApiRoute(self.answer, entry)

    async def answer(self, request: Request) -> Response:
        """The tokenizer of the model that the query names, or of the first, as JSON."""
        info = _info(self._models.find(request.query_params.get("model")))
        return JsonResponse(info)


def _info(model: RegisteredModel) -> TokenizerInfo:
    tokenizer = model.engine.tokenizer
    return TokenizerInfo(
        model_max_length=model.engine.info.limits.max_model_len,
        vocab_size=tokenizer.vocab_size,
        bos_token=tokenizer.names.get("bos_token"),
        eos_token=tokenizer.names.get("eos_token"),
        pad_token=tokenizer.names.get("pad_token"),
        unk_token=tokenizer.names.get("unk_token"),
        chat_template=tokenizer.chat_template_text or None,
    )
