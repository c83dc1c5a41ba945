"""Routes with their entries in /openapi.json, beside their handlers: OpenApiEntry, ApiRoute.

JsonResponse is what most handlers answer with. The document is assembled from the routes by
ops/openapi.py.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from quire.server.http.http_errors import (
    ANTHROPIC_PATHS,
    OLLAMA_PATHS,
    AnthropicError,
    ErrorChunk,
    PlainError,
)

# Statuses of routes that read a body, and of those that run a model.
BODY_ERRORS = (400, 404, 408, 413, 415, 503)
RUN_ERRORS = (*BODY_ERRORS, 429, 504)


class OpenApiEntry(msgspec.Struct, frozen=True):
    """One method of one path in /openapi.json.

    rules: what a body must satisfy besides its schema, in words, because it depends on the model
    or JSON Schema cannot express it. events: the types of a stream's events; () without streams.
    lines: whether it is a stream of lines of JSON instead. media: content type of the answer;
    binary: of the answer that is not text, where a field asks for one. errors: statuses besides
    those of all paths. failures: the struct of an error body where it is not the API's own error
    object. names_model: whether the query may name a model. items: of a list that the reply may be,
    instead of `reply`.
    """

    path: str
    summary: str
    method: str = "get"
    rules: Sequence[str] = ()
    example: Any = None
    body: type[msgspec.Struct] | None = None
    reply: type[msgspec.Struct] | None = None
    items: type[msgspec.Struct] | None = None
    events: Sequence[type[msgspec.Struct]] = ()
    lines: bool = False
    media: str = "application/json"
    binary: str = ""
    errors: tuple[int, ...] = ()
    failures: Mapping[int, type[msgspec.Struct]] = {}
    needs_key: bool = True
    names_model: bool = False

    @property
    def shown_path(self) -> str:
        """The path as OpenAPI writes it, without starlette's converters."""
        return re.sub(r":\w+}", "}", self.path)

    def failure(self, status: int) -> type[msgspec.Struct]:
        """The struct of the error body with this status."""
        default: type[msgspec.Struct] = ErrorChunk
        if self.path.startswith(ANTHROPIC_PATHS):
            default = AnthropicError
        elif self.path.startswith(OLLAMA_PATHS):
            default = PlainError
        return self.failures.get(status, default)


class PostEntry(OpenApiEntry, frozen=True):
    """The entry of a path that reads a body for a model."""

    method: str = "post"
    errors: tuple[int, ...] = RUN_ERRORS


class ApiRoute(Route):
    """A starlette route with its OpenAPI entries, one for each of its methods.

    handler: a function of a Request, or an ASGI application.
    """

    def __init__(
        self,
        handler: Callable[[Request], Awaitable[Response]] | ASGIApp,
        *entries: OpenApiEntry,
    ) -> None:
        super().__init__(
            entries[0].path, handler, methods=[entry.method.upper() for entry in entries]
        )
        self.entries = entries


class JsonResponse(Response):
    """A reply whose content is encoded by msgspec."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """The body."""
        return msgspec.json.encode(content)
