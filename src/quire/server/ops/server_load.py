"""/load: how many answers the server works on, in vLLM's format."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.json_response import JsonResponse
from quire.server.http.openapi_entry import ApiRoute, OpenApiEntry
from quire.server.model_registry import ModelRegistry


class LoadReply(msgspec.Struct):
    """The reply. server_load: answers that run or wait, of all models and API processes."""

    server_load: int


class ServerLoad:
    """The endpoint /load."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    @property
    def route(self) -> ApiRoute:
        """The route of /load."""
        entry = OpenApiEntry(path="/load", summary="How many answers run or wait.", reply=LoadReply)
        return ApiRoute(self.answer, entry)

    async def answer(self, _request: Request) -> Response:
        """The number of answers, as JSON."""
        reply = LoadReply(self._models.entrance.in_flight.num_answers)
        headers = {"cache-control": "no-store"}
        return JsonResponse(reply, headers=headers)
