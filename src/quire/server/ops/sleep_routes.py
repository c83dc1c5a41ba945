"""/sleep, /wake_up and /is_sleeping: vLLM's names for unloading the models and loading them again.

They are admin endpoints. Both levels end the engines: weights and KV cache leave the memory. They
differ in vLLM by where the weights wait, which here are read again from their files.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.compat.sleep_tags import check_tags
from quire.server.http.openapi_entry import ApiRoute, JsonResponse, OpenApiEntry
from quire.server.http.request_reader import read_query
from quire.server.model_loading import ModelLoader
from quire.server.model_registry import ModelEntry
from quire.server.settings import ServerSettings

_CONFLICT = (400, 409, 503)


class Slept(msgspec.Struct):
    """The reply to /sleep."""

    level: int
    status: Literal["sleeping"] = "sleeping"


class Awake(msgspec.Struct):
    """The reply to /wake_up."""

    tags: list[str] | None
    status: Literal["awake"] = "awake"


class IsSleeping(msgspec.Struct):
    """The reply to /is_sleeping."""

    is_sleeping: bool


class _SleepQuery(msgspec.Struct):
    level: Annotated[int, msgspec.Meta(ge=1, le=2)] = 1
    mode: Literal["abort", "wait"] = "abort"


_PROBLEMS = {
    "level": "must be 1 or 2, and both free weights and KV cache",
    "mode": "must be abort or wait; requests are not kept",
}


class SleepRoutes:
    """The routes for all models of a server."""

    def __init__(self, loader: ModelLoader, settings: ServerSettings) -> None:
        self._loader, self._settings = loader, settings

    @property
    def routes(self) -> list[ApiRoute]:
        """The three routes."""
        return [
            ApiRoute(
                self.sleep,
                OpenApiEntry(
                    "/sleep",
                    "Unload all models. Answers once their engines have ended.",
                    method="post",
                    rules=(
                        "The query may have `level` (1 or 2) and `mode`: abort ends requests, wait "
                        "gives them the shutdown timeout.",
                    ),
                    reply=Slept,
                    errors=_CONFLICT,
                ),
            ),
            ApiRoute(
                self.wake_up,
                OpenApiEntry(
                    "/wake_up",
                    "Load the models of the start. Answers once they accept requests.",
                    method="post",
                    rules=("The query may have `tags`: weights, kv_cache.",),
                    reply=Awake,
                    errors=_CONFLICT,
                ),
            ),
            ApiRoute(
                self.is_sleeping,
                OpenApiEntry(
                    "/is_sleeping",
                    "Whether no model is loaded, and /wake_up would load some.",
                    reply=IsSleeping,
                ),
            ),
        ]

    async def sleep(self, request: Request) -> Response:
        """Unload every loaded model. Raises HttpError while one is being loaded."""
        query = read_query(request, _SleepQuery, _PROBLEMS)
        grace = self._settings.shutdown_timeout if query.mode == "wait" else 0.0
        await self._loader.unload_all(self._entries, grace)
        return JsonResponse(Slept(query.level))

    async def wake_up(self, request: Request) -> Response:
        """Load the models of the start. Raises ModelNotLoadedError."""
        tags = request.query_params.getlist("tags")
        check_tags(tags)
        seconds = self._settings.model_load_timeout
        await asyncio.gather(*(self._loader.load(name, seconds) for name in self._names_of_start))
        return JsonResponse(Awake(tags or None))

    async def is_sleeping(self, _request: Request) -> Response:
        """The reply that says whether every model is unloaded, of which /wake_up loads some.

        Else those who wait for the end of a sleep would wait for ever.
        """
        all_unloaded = all(entry.status.state == "unloaded" for entry in self._entries)
        return JsonResponse(IsSleeping(all_unloaded and bool(self._names_of_start)))

    @property
    def _names_of_start(self) -> list[str]:
        return [entry.name for entry in self._entries if entry.status.at_start]

    @property
    def _entries(self) -> list[ModelEntry]:
        return self._loader.models.entries()
