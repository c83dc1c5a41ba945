"""/openapi.json: what the routes take and give, made of the structs that they really read and send.

Owns the table of operations. Bounds come from the structs' own constraints and, for what the
sampler checks, from SamplingParams' ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.core.sampling_params import FLOAT_RANGES, INT_RANGES, MAX_LOGPROBS
from quire.server import chat_wire, completions, messages, protocol, responses_wire, tokenize
from quire.server.health import HealthReply
from quire.server.http_errors import AnthropicError, ErrorChunk
from quire.server.messages_protocol import CountRequest, MessagesRequest
from quire.server.models import ModelCard, ModelList, VersionReply
from quire.server.responses_protocol import InputItem, ResponsesRequest
from quire.version import __version__

REF = "#/components/schemas/{name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One method of one path. media: of the answer. errors: statuses besides 401, 405 and 500."""

    path: str
    method: str = "get"
    summary: str
    body: type[msgspec.Struct] | None = None
    reply: type[msgspec.Struct] | None = None
    streams: bool = False
    media: str = "application/json"
    errors: tuple[int, ...] = ()
    needs_key: bool = True


_BODY_ERRORS = (400, 404, 408, 413, 415, 503)
_RUN_ERRORS = (*_BODY_ERRORS, 429, 504)


def _run(path: str, summary: str, body: type[Any], reply: type[Any]) -> Operation:
    """An operation that runs the model, whole or as a stream."""
    return Operation(
        path=path, method="post", summary=summary, body=body, reply=reply, streams=True,
        errors=_RUN_ERRORS,
    )  # fmt: skip


def _look(path: str, summary: str, body: type[Any], reply: type[Any]) -> Operation:
    """An operation that reads a body and runs no model."""
    return Operation(
        path=path, method="post", summary=summary, body=body, reply=reply, errors=_BODY_ERRORS
    )


def _health(path: str, summary: str, method: str = "get") -> Operation:
    return Operation(
        path=path, method=method, summary=summary, reply=HealthReply, errors=(503,),
        needs_key=False,
    )  # fmt: skip


OPERATIONS = (
    _run("/v1/completions", "Go on from a text.",
         protocol.CompletionRequest, completions.CompletionReply),
    _run("/v1/chat/completions", "Answer a conversation.",
         protocol.ChatRequest, chat_wire.ChatReply),
    _run("/v1/responses", "Answer a conversation, as a response.",
         ResponsesRequest, responses_wire.Response),
    _run("/v1/messages", "Answer a conversation, in Anthropic's words.",
         MessagesRequest, messages.MessageReply),
    _look("/v1/messages/count_tokens", "Count a conversation's tokens.",
          CountRequest, messages.TokenCountReply),
    _look("/tokenize", "Text to token ids.", tokenize.TokenizeRequest, tokenize.TokenizeReply),
    _look("/detokenize", "Token ids to text.",
          tokenize.DetokenizeRequest, tokenize.DetokenizeReply),
    Operation(path="/v1/models", summary="The served models.", reply=ModelList),
    Operation(path="/v1/models/{name}", summary="One model.", reply=ModelCard, errors=(404,)),
    Operation(path="/version", summary="The server's version.", reply=VersionReply),
    _health("/health", "Whether the engine gets on with its work."),
    _health("/ping", "The same as /health."),
    _health("/ping", "The same as /health.", method="post"),
    _health("/ready", "Whether requests are welcome."),
    Operation(path="/live", summary="The engine at work, for live views."),
    Operation(path="/metrics", summary="Figures for Prometheus.", media="text/plain"),
    Operation(path="/openapi.json", summary="This document."),
    Operation(path="/", summary="The page.", media="text/html", needs_key=False),
    Operation(path="/page/{path}", summary="A file of the page.", media="*/*",
              errors=(404,), needs_key=False),
)  # fmt: skip

_ERRORS = {
    400: "A field or the body is wrong.",
    401: "The API key is missing or wrong.",
    404: "The path or the model does not exist.",
    405: "The path has no such method.",
    408: "The request came too slowly.",
    413: "The body is too large.",
    415: "The body is not JSON, or is compressed.",
    429: "As many requests wait as may; see Retry-After.",
    500: "The engine failed this request.",
    503: "The server cannot answer now; see Retry-After.",
    504: "The request did not end in the time that it had.",
}


class OpenApi:
    """The document and its route."""

    async def answer(self, _request: Request) -> Response:
        """The document as JSON."""
        return Response(self._body, media_type="application/json")

    @cached_property
    def _body(self) -> bytes:
        return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    """The whole document, as plain values."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quire", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"header": []}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method} {operation.path}",
        "responses": {
            "200": {"description": "The answer.", "content": _content(operation)},
            **{str(status): _failure(operation, status) for status in _statuses(operation)},
        },
    }
    if operation.body is not None:
        content = {"application/json": {"schema": _ref(operation.body)}}
        told["requestBody"] = {"required": True, "content": content}
    if not operation.needs_key:
        told["security"] = []
    if "{" in operation.path:
        name = operation.path.partition("{")[2].rstrip("}")
        told["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return told


def _content(operation: Operation) -> dict[str, Any]:
    schema = _ref(operation.reply) if operation.reply is not None else {}
    stream = {"text/event-stream": {"schema": {"type": "string"}}} if operation.streams else {}
    return {operation.media: {"schema": schema}, **stream}


def _statuses(operation: Operation) -> list[int]:
    return sorted({*operation.errors, 405, 500, *((401,) if operation.needs_key else ())})


def _failure(operation: Operation, status: int) -> dict[str, Any]:
    schema: type[msgspec.Struct]
    schema = AnthropicError if operation.path.startswith("/v1/messages") else ErrorChunk
    if operation.reply is HealthReply and status == 503:
        schema = HealthReply
    told: dict[str, Any] = {
        "description": _ERRORS[status],
        "content": {"application/json": {"schema": _ref(schema)}},
    }
    if status in (429, 503):
        retry = {"schema": {"type": "string"}, "description": "Seconds until the next try."}
        told["headers"] = {"Retry-After": retry}
    return told


_TYPES: tuple[Any, ...] = (
    *dict.fromkeys(t for o in OPERATIONS for t in (o.body, o.reply) if t is not None),
    ErrorChunk,
    AnthropicError,
    InputItem,
    protocol.Prompts,
)
_REFS, _ = msgspec.json.schema_components(_TYPES, ref_template=REF)
_REF_OF: Mapping[Any, dict[str, Any]] = dict(zip(_TYPES, _REFS, strict=True))


def _ref(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return _REF_OF[struct]


def _schemas() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template=REF)
    for operation in OPERATIONS:
        if operation.body is not None:
            schema = schemas[_ref(operation.body)["$ref"].rpartition("/")[2]]
            schema["additionalProperties"] = False
            for name, found in schema["properties"].items():
                _add_bounds(name, found)
    completion = schemas["CompletionRequest"]["properties"]
    completion["prompt"] = _REF_OF[protocol.Prompts]
    completion["logprobs"]["anyOf"][0] |= {"minimum": 0, "maximum": MAX_LOGPROBS}
    for choice in schemas["ResponsesRequest"]["properties"]["input"]["anyOf"]:
        if choice["type"] == "array":
            choice["items"] = _REF_OF[InputItem]
    return schemas


def _add_bounds(name: str, schema: dict[str, Any]) -> None:
    """Put the sampler's ranges where the wire's structs leave them to it."""
    bounds: tuple[float, float] | None = INT_RANGES.get(name) or FLOAT_RANGES.get(name)
    if bounds is None:
        return
    for choice in _numbers(schema):
        choice.setdefault("minimum", bounds[0])
        choice.setdefault("maximum", bounds[1])


def _numbers(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for choice in schema.get("anyOf", [schema]):
        if choice.get("type") in ("integer", "number"):
            yield choice
