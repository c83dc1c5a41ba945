"""The table of operations that the OpenAPI document tells: what each path takes, sends and refuses.

rules: what a body must keep to besides its schema, in words, because JSON Schema cannot say it or
because it depends on the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.server.api.anthropic import messages_wire
from quire.server.api.anthropic.messages_protocol import CountRequest, MessagesRequest
from quire.server.api.common.chat_request import ChatRequest
from quire.server.api.openai import chat_wire, completions, embeddings, responses_wire, tokenize
from quire.server.api.openai.completions_protocol import CompletionRequest
from quire.server.api.openai.embeddings_protocol import EmbeddingRequest
from quire.server.api.openai.models_route import ModelCard, ModelList, VersionReply
from quire.server.api.openai.responses_protocol import ResponsesRequest
from quire.server.http.http_errors import AnthropicError, ErrorChunk
from quire.server.ops import admin_wire
from quire.server.ops.health import HealthReply
from quire.server.ops.live_view import LiveState


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One method of one path. media: of the answer. errors: statuses besides those of all paths.

    events: what the data of a stream's events may be; () for a path without streams. names_model:
    in its query.
    """

    path: str
    method: str = "get"
    summary: str
    rules: Sequence[str] = ()
    example: Any = None
    body: type[msgspec.Struct] | None = None
    reply: type[msgspec.Struct] | None = None
    events: Sequence[type[msgspec.Struct]] = ()
    media: str = "application/json"
    errors: tuple[int, ...] = ()
    needs_key: bool = True
    names_model: bool = False

    @property
    def failure(self) -> type[msgspec.Struct]:
        """The form of its errors."""
        return AnthropicError if self.path.startswith("/v1/messages") else ErrorChunk


_BODY_ERRORS = (400, 404, 408, 413, 415, 503)
_RUN_ERRORS = (*_BODY_ERRORS, 429, 504)

_MODEL = "`model` is a served one (else 404), or left out."
_SERVED = "`model` is one that the server has (else 404)."
_CONTEXT = "Prompt and answer fit the model's context and the KV cache."
_VOCABULARY = "Token ids are below the size of the model's vocabulary."
_TOOLS = "`tools` need a chat template that shows them; names differ from one another."
_ARGUMENTS = "A call's `arguments` are the text of a JSON object."
_TEMPLATE = "The model's chat template may refuse an order of roles."
_CHOICE = "`tool_choice` names one of the `tools`, and asks for none where there are none."
_SIZES = "Schemas of tools are at most 32 deep, all tools together at most 256 KiB."
_FORM = "At most one field asks for a form, which is valid and within its bounds when compiled."
_STREAM = "`stream_options` need `stream`, which goes with no `prompt_logprobs`."
_TOKENS = "`min_tokens` is at most `max_tokens`."
_PRIORITY = "`priority` other than 0 needs `--scheduling-policy priority`."
_LAST = "The last message is the user's; tool results are the user's, calls the assistant's."
_TEXTS = "Texts of a conversation hold no U+FDD0."
_VERSIONED = "With the header `anthropic-version` the answer is that of Anthropic's Models API."
_CHAT_RULES = (_TEMPLATE, _ARGUMENTS, _TOOLS, _SIZES, _TEXTS)

_USER = {"role": "user", "content": "hello"}

_POSTS = (
    Operation(
        method="post", path="/v1/completions",
        summary="Go on from a text.",
        rules=(
            _MODEL, _CONTEXT, _VOCABULARY, _FORM, _STREAM, _TOKENS, _PRIORITY,
            "`prompt` has at least one token; prompts times `n` is at most 1024.",
            "`max_tokens` is 0 only with `echo`.",
        ),
        example={"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0},
        body=CompletionRequest,
        reply=completions.CompletionReply,
        events=(completions.CompletionReply, ErrorChunk),
        errors=_RUN_ERRORS,
    ),
    Operation(
        method="post", path="/v1/chat/completions",
        summary="Answer a conversation.",
        rules=(
            _MODEL, _CONTEXT, _VOCABULARY, _FORM, _STREAM, _TOKENS, _PRIORITY, *_CHAT_RULES,
            _CHOICE,
            "`top_logprobs` need `logprobs`.",
            "`max_tokens` and `max_completion_tokens` are the same, or one of them is left out.",
            "`chat_template_kwargs` are at most 16 KiB, 16 deep, and set no `messages` or `tools`.",
            "`reasoning_effort` needs a chat template that reads it.",
        ),
        example={"messages": [_USER], "max_tokens": 8, "temperature": 0},
        body=ChatRequest,
        reply=chat_wire.ChatReply,
        events=(chat_wire.ChatChunk, ErrorChunk),
        errors=_RUN_ERRORS,
    ),
    Operation(
        method="post", path="/v1/responses",
        summary="Answer a conversation, as a response. Nothing is stored.",
        rules=(
            _MODEL, _CONTEXT, _FORM, *_CHAT_RULES, _CHOICE,
            "`reasoning.effort` needs a chat template that reads it.",
        ),
        example={"input": "hello", "max_output_tokens": 8},
        body=ResponsesRequest,
        reply=responses_wire.Response,
        events=(
            responses_wire.Created, responses_wire.InProgress, responses_wire.ItemAdded,
            responses_wire.PartAdded, responses_wire.TextPiece, responses_wire.TextDone,
            responses_wire.ThoughtPiece, responses_wire.ThoughtDone,
            responses_wire.ArgumentsPiece, responses_wire.ArgumentsDone, responses_wire.PartDone,
            responses_wire.ItemDone, responses_wire.Completed, responses_wire.Incomplete,
            responses_wire.Failure,
        ),
        errors=_RUN_ERRORS,
    ),
    Operation(
        method="post", path="/v1/messages",
        summary="Answer a conversation, in Anthropic's words.",
        rules=(_MODEL, _CONTEXT, *_CHAT_RULES, _CHOICE, _LAST),
        example={"messages": [_USER], "max_tokens": 8},
        body=MessagesRequest,
        reply=messages_wire.MessageReply,
        events=(
            messages_wire.MessageStart, messages_wire.Ping,
            messages_wire.BlockStart, messages_wire.BlockDelta, messages_wire.BlockStop,
            messages_wire.MessageDelta, messages_wire.MessageStop, AnthropicError,
        ),
        errors=_RUN_ERRORS,
    ),
    Operation(
        method="post", path="/v1/embeddings",
        summary="Texts to vectors.",
        rules=(
            _MODEL, _VOCABULARY, _PRIORITY,
            "Each `input` has at least one token and fits the model's context and the KV cache.",
            "`dimensions` is at most the model's hidden size.",
        ),
        example={"input": ["red shoes", "blue shoes"], "dimensions": 3},
        body=EmbeddingRequest,
        reply=embeddings.EmbeddingReply,
        errors=_RUN_ERRORS,
    ),
    Operation(
        method="post", path="/v1/messages/count_tokens",
        summary="Count a conversation's tokens.",
        rules=(_MODEL, *_CHAT_RULES, _CHOICE, _LAST),
        example={"messages": [_USER]},
        body=CountRequest,
        reply=messages_wire.TokenCountReply,
        errors=_RUN_ERRORS,
    ),
    Operation(
        method="post", path="/tokenize",
        summary="Text to token ids.",
        rules=(_MODEL, *_CHAT_RULES),
        example={"prompt": "hello", "return_token_strs": True},
        body=tokenize.TokenizeRequest,
        reply=tokenize.TokenizeReply,
        errors=_RUN_ERRORS,
    ),
    Operation(
        method="post", path="/detokenize",
        summary="Token ids to text.",
        rules=(_MODEL, "Each of `tokens` is the id of a token."),
        example={"tokens": [1685, 413, 1266]},
        body=tokenize.DetokenizeRequest,
        reply=tokenize.DetokenizeReply,
        errors=_RUN_ERRORS,
    ),
)  # fmt: skip


def _health(path: str, summary: str, method: str = "get") -> Operation:
    return Operation(
        path=path, method=method, summary=summary, reply=HealthReply, errors=(503,),
        needs_key=False,
    )  # fmt: skip


OPERATIONS = (
    *_POSTS,
    Operation(path="/v1/models", summary="The served models.", rules=(_VERSIONED,),
              reply=ModelList),
    Operation(path="/v1/models/{name}", summary="One model.", rules=(_VERSIONED,), reply=ModelCard,
              errors=(404,)),
    Operation(path="/version", summary="The server's version.", reply=VersionReply),
    _health("/health", "Whether the engine gets on with its work."),
    _health("/ping", "The same as /health."),
    _health("/ping", "The same as /health.", method="post"),
    _health("/ready", "Whether requests are welcome."),
    Operation(path="/live", summary="The engine at work, for live views.", reply=LiveState,
              errors=(404, 503), names_model=True),
    Operation(path="/metrics", summary="Figures for Prometheus.", media="text/plain"),
    Operation(path="/openapi.json", summary="This document."),
    Operation(path="/", summary="The page.", media="text/html", needs_key=False),
    Operation(path="/page/{path}", summary="A file of the page.", media="*/*",
              errors=(404,), needs_key=False),
)  # fmt: skip

ADMIN_OPERATIONS = (
    Operation(
        path="/stats",
        summary="All that is counted of one model.",
        reply=admin_wire.AdminStats,
        errors=(404, 503),
        names_model=True,
    ),
    Operation(
        method="post", path="/reset_prefix_cache",
        summary="Let no later request find what was computed before.",
        reply=admin_wire.Done,
    ),
    Operation(
        path="/admin/models", summary="All models, loaded or not.", reply=admin_wire.ModelStatuses
    ),
    Operation(
        method="post", path="/admin/models/load",
        summary="Load a model. Answers when requests can come.",
        rules=(_SERVED,),
        example={"model": "quire-tiny"},
        body=admin_wire.LoadRequest,
        reply=admin_wire.ModelStatus,
        errors=_BODY_ERRORS,
    ),
    Operation(
        method="post", path="/admin/models/unload",
        summary="Unload a model. Answers when its engine has ended.",
        rules=(_SERVED,),
        example={"model": "quire-tiny", "grace": 5},
        body=admin_wire.UnloadRequest,
        reply=admin_wire.ModelStatus,
        errors=(*_BODY_ERRORS, 409),
    ),
    Operation(path="/openapi.json", summary="This document."),
)  # fmt: skip
