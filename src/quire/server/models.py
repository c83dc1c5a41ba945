"""/v1/models and /version: what is served, by which version."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.engine.control import ModelState
from quire.server.served import Entry, ServedModels
from quire.version import __version__


class ModelCard(msgspec.Struct):
    """A served model, as /v1/models lists it. created: start of the server, Unix seconds.

    state: whether it is in memory; one that is not is loaded by a request. max_model_len: None
    before it was loaded for the first time.
    """

    id: str
    created: int
    max_model_len: int | None
    state: ModelState
    object: str = "model"
    owned_by: str = "quire"


class ModelList(msgspec.Struct, kw_only=True):
    """All served models."""

    object: str = "list"
    data: list[ModelCard]


class VersionReply(msgspec.Struct):
    """The server's version."""

    version: str


class Models:
    """The routes."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._created = int(time.time())

    @property
    def routes(self) -> list[Route]:
        """All three paths."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/version", self.version),
        ]

    async def models(self, _request: Request) -> Response:
        """All models."""
        return _json(ModelList(data=[self._card(entry) for entry in self._models.entries()]))

    async def model(self, request: Request) -> Response:
        """One model by its name."""
        return _json(self._card(self._models.entry(request.path_params["name"])))

    async def version(self, _request: Request) -> Response:
        """The version."""
        return _json(VersionReply(__version__))

    def _card(self, entry: Entry) -> ModelCard:
        served = entry.served
        longest = None if served is None else served.engine.info.limits.max_model_len
        return ModelCard(entry.name, self._created, longest, entry.condition.state)


def _json(content: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
