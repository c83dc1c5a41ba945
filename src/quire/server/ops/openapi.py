"""/openapi.json: what the routes take and give, made of the structs that they really read and send.

Owns the form of the document; openapi_operations.py has the table, openapi_schemas.py the schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.http_errors import AnthropicError, ErrorChunk, id_headers
from quire.server.ops.health import HealthReply
from quire.server.ops.openapi_operations import OPERATIONS, Operation
from quire.server.ops.openapi_schemas import Schema, Schemas
from quire.version import __version__

_ABOUT = (
    "Quire speaks OpenAI's API, and Anthropic's for messages. Bodies are strict JSON in UTF-8, not "
    "compressed: no name twice in an object, no NaN, no half surrogate pairs, and integers are "
    "written without fraction or exponent (1, not 1.0). Fields that are not named here are "
    "refused; null means the default. A request may be refused for its HTTP before its path is "
    "looked at: 400, 408 or 431, with the same error object."
)
_ERRORS = {
    400: "A field or the body is wrong.",
    401: "The API key is missing or wrong.",
    404: "The path or the model does not exist.",
    405: "The path has no such method.",
    408: "The request came too slowly, or did not end in the time that it gave itself.",
    409: "The model is being loaded; wait until it is there.",
    413: "The body is too large.",
    415: "The body is not JSON, or is compressed.",
    429: "As many requests wait as may; see Retry-After.",
    431: "The headers are too long or too many.",
    500: "The engine failed this request.",
    503: "The server cannot answer now; see Retry-After.",
    504: "The request did not end in the time that the server gives to each.",
}
_EVERYWHERE = (405, 431, 500)

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
    "description": "One of the served models; without it, the first.",
}


class OpenApi:
    """The document of some operations, and its route."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations

    async def answer(self, _request: Request) -> Response:
        """The document as JSON."""
        return Response(self._body, media_type="application/json")

    @cached_property
    def _body(self) -> bytes:
        return msgspec.json.encode(document(self._operations))


def document(operations: Sequence[Operation] = OPERATIONS) -> dict[str, Any]:
    """The whole document, as plain values."""
    replies = [kind for o in operations for kind in (o.reply, *o.events) if kind is not None]
    schemas = Schemas(
        bodies=[o.body for o in operations if o.body is not None],
        others=[*replies, ErrorChunk, AnthropicError],
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, schemas)
    failures = {
        _failure_name(o, status): _failure(o, status, schemas)
        for o in operations
        for status in _statuses(o)
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


def _described(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    told: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "responses": {
            "200": {
                "description": "The answer.",
                "headers": _id_headers(operation),
                "content": _content(operation, schemas),
            },
            **{
                str(status): _component("responses", _failure_name(operation, status))
                for status in _statuses(operation)
            },
        },
    }
    if operation.rules:
        rules = "\n".join(f"- {rule}" for rule in operation.rules)
        told["description"] = f"Besides what the schema says:\n\n{rules}"
    if operation.body is not None:
        content = {"schema": schemas.ref(operation.body), "example": operation.example}
        told["requestBody"] = {"required": True, "content": {"application/json": content}}
    if not operation.needs_key:
        told["security"] = []
    if parameters := _parameters(operation):
        told["parameters"] = parameters
    return told


def _operation_id(operation: Operation) -> str:
    words = operation.path.replace("{", "").replace("}", "").replace(".", "_").split("/")
    return "_".join([operation.method, *filter(None, words)])


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    name = operation.path.partition("{")[2].rstrip("}")
    text = {"type": "string", "minLength": 1}
    told: list[dict[str, Any]] = []
    if name:
        told.append({"name": name, "in": "path", "required": True, "schema": text})
    if operation.names_model:
        told.append(_MODEL)
    if 504 in operation.errors:
        told.append(_TIMEOUT)
    return told


def _content(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    schema = schemas.ref(operation.reply) if operation.reply is not None else {}
    content = {operation.media: {"schema": schema}}
    if operation.events:
        content["text/event-stream"] = {"schema": _event(operation, schemas)}
    return content


def _event(operation: Operation, schemas: Schemas) -> Schema:
    """One event of a stream. Where events have names, those are the types of their data."""
    data: Schema = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [schemas.ref(kind) for kind in operation.events]},
    }
    tags = [kind.__struct_config__.tag for kind in operation.events]
    if None not in tags:
        return {
            "type": "object",
            "required": ["event", "data"],
            "properties": {"event": {"enum": tags}, "data": data},
        }
    data = {"anyOf": [{"const": "[DONE]"}, data]}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _statuses(operation: Operation) -> list[int]:
    return sorted({*operation.errors, *_EVERYWHERE, *((401,) if operation.needs_key else ())})


def _failure_kind(operation: Operation, status: int) -> type[msgspec.Struct]:
    is_health = operation.reply is HealthReply and status == 503
    return HealthReply if is_health else operation.failure


def _failure_name(operation: Operation, status: int) -> str:
    return f"{_failure_kind(operation, status).__name__}-{status}"


def _failure(operation: Operation, status: int, schemas: Schemas) -> dict[str, Any]:
    headers = _id_headers(operation)
    if status in (429, 503):
        headers["Retry-After"] = _component("headers", "retry-after")
    schema = schemas.ref(_failure_kind(operation, status))
    return {
        "description": _ERRORS[status],
        "headers": headers,
        "content": {"application/json": {"schema": schema}},
    }


def _id_headers(operation: Operation) -> dict[str, Any]:
    sent = id_headers(operation.path, "")
    return {name.decode(): _component("headers", "request-id") for name, _ in sent}


def _component(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}
