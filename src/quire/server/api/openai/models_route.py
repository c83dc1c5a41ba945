"""/v1/models and /version: the models of this server, and its version.

Requests with the header `anthropic-version` are answered in Anthropic's format.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.engine.processes.control_channel import ModelState
from quire.errors import invalid_value
from quire.server.api.common import route_rules
from quire.server.http.http_errors import ANTHROPIC_VERSION, HttpError
from quire.server.http.openapi_entry import ApiRoute, JsonResponse, OpenApiEntry
from quire.server.http.request_reader import read_query
from quire.server.model_registry import ModelEntry, ModelRegistry
from quire.version import __version__


class ModelCard(msgspec.Struct):
    """A model, as /v1/models lists it. created: start of the server, Unix seconds.

    state: whether it is in memory; one that is not is loaded by a request. max_model_len,
    has_chat_template: None before it was loaded for the first time. root: its name without aliases;
    parent: for clients that look for the model of an adapter, of which there are none. quality:
    figures of the weights' quality report, also before they are loaded, or if these are refused by
    them; None where there is none.
    """

    id: str
    created: int
    max_model_len: int | None
    has_chat_template: bool | None
    state: ModelState
    root: str
    object: str = "model"
    owned_by: str = "quire"
    parent: None = None
    quality: dict[str, bool | float | str] | None = None


class ModelList(msgspec.Struct, kw_only=True):
    """The reply of /v1/models: all models."""

    object: str = "list"
    data: list[ModelCard]


class AnthropicModel(msgspec.Struct, kw_only=True):
    """A model in Anthropic's format. created_at: start of the server.

    max_input_tokens, max_tokens: the longest prompt and answer; None before it was loaded.
    """

    type: str = "model"
    id: str
    display_name: str
    created_at: datetime
    lifecycle: str = "active"
    max_input_tokens: int | None
    max_tokens: int | None


class AnthropicModels(msgspec.Struct, kw_only=True):
    """A page of the list of models. has_more: in the requested direction."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class VersionReply(msgspec.Struct):
    """The server's version."""

    version: str


class ModelsRoutes:
    """The routes /v1/models and /version."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models
        self._created = int(time.time())

    @property
    def routes(self) -> list[ApiRoute]:
        """The routes of all three paths."""
        versioned = (route_rules.VERSIONED,)
        return [
            ApiRoute(
                self.models,
                OpenApiEntry(
                    "/v1/models",
                    "The models of this server.",
                    rules=versioned,
                    reply=ModelList,
                    errors=(400,),
                ),
            ),
            ApiRoute(
                self.model,
                OpenApiEntry(
                    "/v1/models/{name:path}",
                    "One model.",
                    rules=versioned,
                    reply=ModelCard,
                    errors=(404,),
                ),
            ),
            ApiRoute(
                self.version, OpenApiEntry("/version", "The server's version.", reply=VersionReply)
            ),
        ]

    async def models(self, request: Request) -> Response:
        """Handle GET /v1/models."""
        named = self._models.named_entries()
        if ANTHROPIC_VERSION in request.headers:
            return _json(_page([self._anthropic(*one) for one in named], request))
        return _json(ModelList(data=[self._card(*one) for one in named]))

    async def model(self, request: Request) -> Response:
        """Handle GET /v1/models/{name}."""
        name = request.path_params["name"]
        if not name:
            raise HttpError(404, "no such path; did you mean /v1/models?", code="not_found")
        entry = self._models.entry(name)
        is_anthropic = ANTHROPIC_VERSION in request.headers
        return _json(self._anthropic(name, entry) if is_anthropic else self._card(name, entry))

    async def version(self, _request: Request) -> Response:
        """Handle GET /version."""
        return _json(VersionReply(__version__))

    def _card(self, name: str, entry: ModelEntry) -> ModelCard:
        quality, has_template = entry.status.quality, None
        if entry.model is not None:
            engine = entry.model.engine
            quality, has_template = engine.info.quality, engine.tokenizer.chat_template_text != ""
        return ModelCard(
            name,
            self._created,
            _max_model_len(entry),
            has_template,
            entry.state,
            root=entry.name,
            quality=None if quality is None else dict(quality),
        )

    def _anthropic(self, name: str, entry: ModelEntry) -> AnthropicModel:
        max_len = _max_model_len(entry)
        return AnthropicModel(
            id=name,
            display_name=name,  # clients show nothing else of a model
            created_at=datetime.fromtimestamp(self._created, UTC),
            max_input_tokens=max_len,
            max_tokens=max_len and max_len - 1,  # a prompt has at least one
        )


class _PageQuery(msgspec.Struct, kw_only=True):
    """The requested part of the list; the names are Anthropic's."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20
    after_id: str | None = None
    before_id: str | None = None


_PROBLEMS = {"limit": "must be an integer between 1 and 1000"}


def _page(models: list[AnthropicModel], request: Request) -> AnthropicModels:
    """The requested part of the list. Raises InvalidRequestError."""
    page = read_query(request, _PageQuery, _PROBLEMS)
    if page.after_id is not None and page.before_id is not None:
        raise invalid_value("before_id", "excludes after_id; set one of them")
    query = request.query_params
    stages = query.getlist("lifecycle") + query.getlist("lifecycle[]")
    if stages and "active" not in stages:
        models = []
    ids = [model.id for model in models]
    if page.before_id is not None:
        models = models[: _index(ids, "before_id", page.before_id)]
        data = models[-page.limit :]
    else:
        if page.after_id is not None:
            models = models[_index(ids, "after_id", page.after_id) + 1 :]
        data = models[: page.limit]
    ends = (data[0].id, data[-1].id) if data else (None, None)
    return AnthropicModels(
        data=data, has_more=len(data) < len(models), first_id=ends[0], last_id=ends[1]
    )


def _index(ids: list[str], field: str, model_id: str) -> int:
    if model_id not in ids:
        raise invalid_value(
            field, f"must be the name of a model of the list, not {model_id[:128]!r}"
        )
    return ids.index(model_id)


def _max_model_len(entry: ModelEntry) -> int | None:
    return None if entry.model is None else entry.model.engine.info.limits.max_model_len


def _json(content: msgspec.Struct) -> Response:
    headers = {"vary": ANTHROPIC_VERSION}
    return JsonResponse(content, headers=headers)
