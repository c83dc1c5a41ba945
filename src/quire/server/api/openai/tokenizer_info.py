"""/tokenizer_info: what a model's tokenizer is, in vLLM's format."""

from __future__ import annotations

import msgspec

from quire.server.api.common.model_route import model_info_route
from quire.server.http.openapi_entry import ApiRoute
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


def tokenizer_info_route(models: ModelRegistry) -> ApiRoute:
    """The route of /tokenizer_info."""
    summary = "A model's tokenizer: special tokens, chat template, sizes."
    return model_info_route(models, "/tokenizer_info", summary, TokenizerInfo, _info)


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
