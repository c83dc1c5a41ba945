"""/openapi.json: what the routes take and return, made of the structs that they decode and encode.

Owns the layout of the document. Each route declares its entry beside its handler
(http/openapi_entry.py); the schemas are made in openapi_schemas.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from quire.server.http.http_errors import AnthropicError, ErrorChunk, PlainError, id_headers
from quire.server.http.openapi_entry import ApiRoute, OpenApiEntry
from quire.server.ops.openapi_schemas import Schema, Schemas
from quire.version import __version__

_ABOUT = (
    "Quire speaks OpenAI's API, Anthropic's for messages, Ollama's below /api, and routes of "
    "llama.cpp. Bodies are strict JSON in UTF-8, not compressed: no name twice in an object, no "
    "NaN, no half surrogate pairs, and integers are written without fraction or exponent (1, not "
    "1.0). Fields that are not named here are refused; null means the default. A request may be "
    "refused for its HTTP before its path is looked at: 400, 408, 414 or 431, with the same error "
    "object."
)
_ERRORS = {
    400: "A field or the body is wrong.",
    401: "The API key is missing or wrong.",
    403: "The server is not known by the name in the header Host.",
    404: "The path or the model does not exist.",
    405: "The path has no such method.",
    408: "The request came too slowly, or did not end in the time that it gave itself.",
    409: "The model is being loaded; wait until it is there.",
    413: "The body is too large.",
    414: "The URL is too long.",
    415: "A browser's body is not JSON, or the body is compressed.",
    429: "The queue is full; see Retry-After.",
    431: "The headers are too long or too many.",
    500: "The engine failed this request.",
    503: "The server cannot answer now; see Retry-After.",
    504: "The request did not end within the server's time limit.",
}
_EVERYWHERE = (403, 405, 414, 431, 500)

_REQUEST_ID = {
    "schema": {"type": "string", "minLength": 1, "maxLength": 128},
    "description": "The client's own x-request-id if it was a plain label, else a new one.",
}
_RETRY_AFTER = {
    "schema": {"type": "string", "pattern": "^[0-9]+$"},
    "description": "Seconds until the next try.",
}
_TIMEOUT = {
    "name": "X-Request-Timeout",
    "in": "header",
    "schema": {"type": "number", "exclusiveMinimum": 0},
    "description": "Seconds after which the request is given up with 408.",
}
_MODEL = {
    "name": "model",
    "in": "query",
    "schema": {"type": "string", "minLength": 1},
    "description": "The name of a model; without it, the first.",
}

_OPENAPI_ENTRY = OpenApiEntry("/openapi.json", "This document.")


def with_openapi(routes: Sequence[ApiRoute], root_path: str = "") -> list[ApiRoute]:
    """The routes, and one more that serves the document of them all.

    root_path: the prefix of all paths, such as /llm.
    """
    servers = {"servers": [{"url": root_path}]} if root_path else {}
    body: list[bytes] = []  # encoded for the first request

    async def openapi(_request: Request) -> Response:
        if not body:
            body.append(msgspec.json.encode(document(documented) | servers))
        return Response(body[0], media_type="application/json")

    documented = [*routes, ApiRoute(openapi, _OPENAPI_ENTRY)]
    return documented


def entries_of(routes: Iterable[BaseRoute]) -> list[OpenApiEntry]:
    """The entries of routes, in their order."""
    return [entry for route in routes if isinstance(route, ApiRoute) for entry in route.entries]


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI document of some routes, as plain values."""
    entries = entries_of(routes)
    replies = [
        kind
        for entry in entries
        for kind in (entry.reply, entry.items, *entry.events, *entry.failures.values())
        if kind is not None
    ]
    schemas = Schemas(
        bodies=[entry.body for entry in entries if entry.body is not None],
        others=[*replies, ErrorChunk, AnthropicError, PlainError],
    )
    paths: dict[str, dict[str, Any]] = {}
    for entry in entries:
        paths.setdefault(entry.shown_path, {})[entry.method] = _operation(entry, schemas)
    failures = {
        _failure_name(entry, status): _failure(entry, status, schemas)
        for entry in entries
        for status in _statuses(entry)
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quire", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": schemas.used_by([paths, failures]),
            "responses": failures,
            "headers": {"request-id": _REQUEST_ID, "retry-after": _RETRY_AFTER},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"header": []}],
    }


def _operation(entry: OpenApiEntry, schemas: Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": entry.summary,
        "operationId": _operation_id(entry),
        "responses": {
            "200": {
                "description": "The answer.",
                "headers": _id_headers(entry),
                "content": _content(entry, schemas),
            },
            **{
                str(status): _component("responses", _failure_name(entry, status))
                for status in _statuses(entry)
            },
        },
    }
    if entry.rules:
        rules = "\n".join(f"- {rule}" for rule in entry.rules)
        operation["description"] = f"Besides what the schema says:\n\n{rules}"
    if entry.body is not None:
        content = {"schema": schemas.ref(entry.body), "example": entry.example}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    if not entry.needs_key:
        operation["security"] = []
    if parameters := _parameters(entry):
        operation["parameters"] = parameters
    return operation


def _operation_id(entry: OpenApiEntry) -> str:
    words = entry.shown_path.replace("{", "").replace("}", "").replace(".", "_").split("/")
    return "_".join([entry.method, *filter(None, words)])


def _parameters(entry: OpenApiEntry) -> list[dict[str, Any]]:
    name = entry.shown_path.partition("{")[2].partition("}")[0]
    text = {"type": "string", "minLength": 1}
    parameters: list[dict[str, Any]] = []
    if name:
        parameters.append({"name": name, "in": "path", "required": True, "schema": text})
    if entry.names_model:
        parameters.append(_MODEL)
    if 504 in entry.errors:
        parameters.append(_TIMEOUT)
    return parameters


def _content(entry: OpenApiEntry, schemas: Schemas) -> dict[str, Any]:
    schema = schemas.ref(entry.reply) if entry.reply is not None else {}
    if entry.items is not None:
        items = {"type": "array", "items": schemas.ref(entry.items)}
        schema = {"anyOf": [schema, items]}
    content = {entry.media: {"schema": schema}}
    if entry.binary:
        content[entry.binary] = {"schema": {"type": "string", "format": "binary"}}
    if entry.lines:
        lines = {"anyOf": [schemas.ref(kind) for kind in entry.events]}
        content["application/x-ndjson"] = {"schema": lines}
    elif entry.events:
        content["text/event-stream"] = {"schema": _event(entry, schemas)}
    return content


def _event(entry: OpenApiEntry, schemas: Schemas) -> Schema:
    """The schema of one server-sent event. Where events have names, those are the structs' tags."""
    data: Schema = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [schemas.ref(kind) for kind in entry.events]},
    }
    tags = [kind.__struct_config__.tag for kind in entry.events]
    if None not in tags:
        return {
            "type": "object",
            "required": ["event", "data"],
            "properties": {"event": {"enum": tags}, "data": data},
        }
    data = {"anyOf": [{"const": "[DONE]"}, data]}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _statuses(entry: OpenApiEntry) -> list[int]:
    return sorted({*entry.errors, *_EVERYWHERE, *((401,) if entry.needs_key else ())})


def _failure_name(entry: OpenApiEntry, status: int) -> str:
    return f"{entry.failure(status).__name__}-{status}"


def _failure(entry: OpenApiEntry, status: int, schemas: Schemas) -> dict[str, Any]:
    headers = _id_headers(entry)
    if status in (429, 503):
        headers["Retry-After"] = _component("headers", "retry-after")
    schema = schemas.ref(entry.failure(status))
    return {
        "description": _ERRORS[status],
        "headers": headers,
        "content": {"application/json": {"schema": schema}},
    }


def _id_headers(entry: OpenApiEntry) -> dict[str, Any]:
    headers = id_headers(entry.path, "")
    return {name.decode(): _component("headers", "request-id") for name, _ in headers}


def _component(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}
