"""Routes that describe a model: the one that the query names, or the first."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.openapi_entry import ApiRoute, JsonResponse, OpenApiEntry
from quire.server.model_registry import ModelRegistry, RegisteredModel


def model_info_route(
    models: ModelRegistry,
    path: str,
    summary: str,
    reply: type[msgspec.Struct],
    describe: Callable[[RegisteredModel], msgspec.Struct],
) -> ApiRoute:
    """The route of a path that answers with `describe`, of type `reply`, as JSON."""

    async def answer(request: Request) -> Response:
        return JsonResponse(describe(models.find(request.query_params.get("model"))))

    entry = OpenApiEntry(path, summary, reply=reply, errors=(404, 503), names_model=True)
    return ApiRoute(answer, entry)
