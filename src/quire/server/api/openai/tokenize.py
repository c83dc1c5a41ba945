"""/tokenize, /detokenize: texts or conversations to token ids and back; /tokenizer_info."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

import msgspec

from quire.engine.frontend.prompt_encoding import Encoding, counting, token_ids_of
from quire.errors import invalid_value
from quire.server.api.common import chat_request, conversation, route_rules
from quire.server.api.common.model_route import LightReply, LightRoute, model_info_route
from quire.server.api.common.tool_definitions import Tools
from quire.server.http import field_bounds
from quire.server.http.openapi_entry import ApiRoute, PostEntry
from quire.server.http.request_body import RequestBody, read_body
from quire.server.model_registry import ModelRegistry, RegisteredModel
from quire.tokenizer.tokenizer import Tokenizer

_CHAT_FIELDS = (*chat_request.CHAT_FIELDS, "tools")
TOKENIZE_VARIANTS: tuple[dict[str, Any], ...] = (  # a prompt or messages, as JSON Schema
    {
        "required": ["prompt"],
        "properties": {"prompt": {"type": "string"}, "content": {"type": "null"}}
        | {name: {"type": "null"} for name in _CHAT_FIELDS},
    },
    {
        "required": ["content"],
        "properties": {"content": {"type": "string"}}
        | {name: {"type": "null"} for name in ("prompt", *_CHAT_FIELDS)},
    },
    {
        "required": ["messages"],
        "properties": {
            "prompt": {"type": "null"},
            "content": {"type": "null"},
            "messages": {"type": "array"},
        },
    },
)


class TokenizeRequest(RequestBody, kw_only=True, dict=True):
    """Body of /tokenize: a prompt, or messages.

    add_special_tokens: around a prompt, such as a BOS, unless false; around a conversation, where
    the chat template writes them, if true. return_token_strs: return each token's name, too.
    In llama.cpp's format content is the prompt, without special tokens unless add_special;
    with_pieces: each token as an object with its text.
    """

    neutral: ClassVar = {"chat_template": (None,)}
    variants = TOKENIZE_VARIANTS
    model: str | None = None
    prompt: str | None = None
    messages: chat_request.Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    content: str | None = None
    add_special: bool | None = None
    parse_special: Literal[True] | None = None
    with_pieces: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None


class TokenPiece(msgspec.Struct):
    """A token. piece: its text, or its bytes where they are a part of a character."""

    id: int
    piece: str | list[int]


class TokenizeReply(msgspec.Struct, kw_only=True):
    """Token ids and their count. token_strs: tokens as the vocabulary spells them."""

    count: int
    max_model_len: int
    tokens: list[int | TokenPiece]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestBody, kw_only=True, dict=True):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[field_bounds.TokenId]


class DetokenizeReply(msgspec.Struct):
    """The text of the ids, control tokens included.

    content: the same under llama.cpp's name, for requests without `model`, which its API lacks.
    """

    prompt: str
    content: str | msgspec.UnsetType = msgspec.UNSET


def tokenize(data: bytes, models: ModelRegistry) -> LightReply:
    """The reply to a body. Raises InvalidRequestError."""
    check = partial(_check_length, models)
    request = read_body(data, TokenizeRequest, check)
    model = models.find(request.model)
    _read_content(request)
    tokens = _tokens(request, model)
    tokenizer = model.engine.tokenizer
    reply = TokenizeReply(
        count=len(tokens),
        max_model_len=model.engine.info.limits.max_model_len,
        tokens=[_piece(i, tokenizer) for i in tokens] if request.with_pieces else [*tokens],
        token_strs=[tokenizer.id_to_token(i) or "" for i in tokens]
        if request.return_token_strs
        else None,
    )
    return LightReply(reply, request.no_effect)


def detokenize(data: bytes, models: ModelRegistry) -> LightReply:
    """The reply to a body. Raises InvalidRequestError, also for an id without a token."""
    request = read_body(data, DetokenizeRequest)
    engine = models.find(request.model).engine
    tokenizer, most = engine.tokenizer, counting(engine.info.limits).max_model_len
    if len(request.tokens) > most:
        problem = f"{len(request.tokens)} tokens, but the limit here is {most}; send fewer"
        raise invalid_value("tokens", problem)
    for index, token_id in enumerate(request.tokens):
        if tokenizer.id_to_token(token_id) is None:
            size = tokenizer.vocab_size
            problem = f"{token_id} is not a token of this vocabulary of {size}; remove it"
            raise invalid_value(f"tokens[{index}]", problem)
    text = tokenizer.decode(request.tokens, skip_special_tokens=False)
    reply = DetokenizeReply(text, text if request.model is None else msgspec.UNSET)
    return LightReply(reply, request.no_effect)


def _check_length(models: ModelRegistry, request: TokenizeRequest) -> None:
    """Refuse a text that is far too long, before the body is read again, which no stream can
    interrupt. Raises ContextLengthError.
    """
    if text := request.prompt or request.content:
        counting(models.find(request.model).engine.info.limits).check_chars(len(text))


def _read_content(request: TokenizeRequest) -> None:
    """Take llama.cpp's names of the prompt. Raises InvalidRequestError."""
    special, other = request.add_special_tokens, request.add_special
    if None not in (request.content, request.prompt):  # of two formats
        raise invalid_value("content", "it is the same as prompt; use one of them")
    if None not in (special, other) and special != other:
        raise invalid_value("add_special", "it is the same as add_special_tokens; use one of them")
    special = other if special is None else special
    if request.content is not None:
        request.prompt, special = request.content, bool(special)
    request.add_special_tokens = special


def _piece(token_id: int, tokenizer: Tokenizer) -> TokenPiece:
    data = tokenizer.token_bytes(token_id)
    try:
        return TokenPiece(token_id, data.decode())
    except UnicodeDecodeError:
        return TokenPiece(token_id, list(data))


def _tokens(request: TokenizeRequest, model: RegisteredModel) -> list[int]:
    prompt, special = request.prompt, request.add_special_tokens
    is_given = prompt is not None
    chat_request.check_input(request, "prompt", is_given=is_given, chat_fields=_CHAT_FIELDS)
    if prompt is not None:
        limits, tokenizer = counting(model.engine.info.limits), model.engine.tokenizer
        return token_ids_of(prompt, tokenizer, limits, Encoding(special=special))
    chat = chat_request.ChatRequest(
        **{name: getattr(request, name) for name in _CHAT_FIELDS}, add_special_tokens=special
    )
    token_ids = conversation.encode(chat, model)
    request.note_no_effect(*chat.no_effect)
    return token_ids


TOKENIZE_ROUTE = LightRoute(
    PostEntry(
        "/tokenize",
        "Text to token ids.",
        rules=(route_rules.MODEL, *route_rules.CHAT),
        example={"prompt": "hello", "return_token_strs": True},
        body=TokenizeRequest,
        reply=TokenizeReply,
    ),
    tokenize,
)

DETOKENIZE_ROUTE = LightRoute(
    PostEntry(
        "/detokenize",
        "Token ids to text.",
        rules=(route_rules.MODEL, "Each of `tokens` is the id of a token."),
        example={"tokens": [1685, 413, 1266]},
        body=DetokenizeRequest,
        reply=DetokenizeReply,
    ),
    detokenize,
)


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
