"""The admin endpoints: an application of its own, for a listener of its own, off by default.

Nothing here is reachable on the public port. What would harm others when anybody may ask for it
belongs here.
"""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.server.http import strict_json
from quire.server.http.application import Application
from quire.server.http.envelope import Envelope
from quire.server.http.http_errors import HttpError
from quire.server.http.request_reader import read_body
from quire.server.model_loading import Loader
from quire.server.model_registry import Entry
from quire.server.ops.admin_wire import (
    AdminStats,
    AdmissionStats,
    Done,
    LoadRequest,
    ModelStatus,
    ModelStatuses,
    UnloadRequest,
)
from quire.server.ops.openapi import OpenApi
from quire.server.ops.openapi_operations import ADMIN_OPERATIONS
from quire.server.settings import ServerSettings

MAX_BODY_BYTES = 4096

T = TypeVar("T", bound=msgspec.Struct)


_load, _unload = msgspec.json.Decoder(LoadRequest), msgspec.json.Decoder(UnloadRequest)


def build_admin_app(loader: Loader, settings: ServerSettings) -> Starlette:
    """Make the ASGI application; every path of it asks for the admin key, if there is one."""
    endpoints = _Endpoints(loader, settings)
    routes = [
        Route("/stats", endpoints.stats),
        Route("/reset_prefix_cache", endpoints.reset_prefix_cache, methods=["POST"]),
        Route("/admin/models", endpoints.models),
        Route("/admin/models/load", endpoints.load, methods=["POST"]),
        Route("/admin/models/unload", endpoints.unload, methods=["POST"]),
        Route("/openapi.json", OpenApi(ADMIN_OPERATIONS).answer),
    ]
    app = Application(routes, lambda inner: Envelope(inner, keys=settings.admin_keys))
    app.router.default = _no_such_path([route.path for route in routes])
    return app


def _no_such_path(paths: list[str]) -> ASGIApp:
    async def refuse(_scope: Scope, _receive: Receive, _send: Send) -> None:
        text = f"no such path among the admin endpoints, which are {', '.join(paths)}; "
        raise HttpError(404, text + "the API is on the public port", code="not_found")

    return refuse


class _Endpoints:
    def __init__(self, loader: Loader, settings: ServerSettings) -> None:
        self._loader = loader
        self._models = loader.models
        self._settings = settings

    async def stats(self, request: Request) -> Response:
        served = self._models.find(request.query_params.get("model"))
        await served.engine.view()  # brings the figures of now; this process may have had no news
        found = served.admission
        admission = AdmissionStats(
            num_answers=found.heads.num_answers,
            num_waiting=found.num_waiting,
            num_prompt_tokens=found.heads.num_prompt_tokens,
            num_refused=found.num_refused,
            max_answers=found.capacity.max_running + found.capacity.max_waiting,
        )
        tasks = len(asyncio.all_tasks())
        return _json(AdminStats(served.engine.stats, admission, tasks))

    async def reset_prefix_cache(self, _request: Request) -> Response:
        for served in self._models.loaded():
            await served.engine.reset_prefix_cache()
        return _json(Done())

    async def models(self, _request: Request) -> Response:
        await asyncio.gather(*(served.engine.view() for served in self._models.loaded()))
        statuses = [_status(entry) for entry in self._models.entries()]
        loaded = sum(s.num_bytes or 0 for s in statuses if s.state != "unloaded")
        return _json(ModelStatuses(statuses, loaded, self._settings.model_memory_bytes))

    async def load(self, request: Request) -> Response:
        """Answers once requests can come. Raises ModelNotLoadedError."""
        asked = await _read(request, _load)
        entry = self._models.entry(asked.model)
        await self._loader.load(entry.name, self._settings.model_load_timeout)
        return _json(_status(entry))

    async def unload(self, request: Request) -> Response:
        """Answers once the engine has ended."""
        asked = await _read(request, _unload)
        entry = self._models.entry(asked.model)
        if entry.condition.state == "loading":
            text = f"model: {entry.name} is being loaded; unload it when it is there"
            raise HttpError(409, text, code="model_is_loading")
        if entry.condition.state != "unloaded":
            grace = self._settings.shutdown_timeout if asked.grace is None else asked.grace
            await self._loader.unload(entry.name, grace)
        return _json(_status(entry))


async def _read(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """The body. Raises InvalidRequestError."""
    data = await read_body(request.scope, request.receive, MAX_BODY_BYTES)
    asked = strict_json.decode(data, decoder)
    strict_json.check_names(strict_json.read_names(data), decoder.type.__struct_fields__, {})
    return asked


def _status(entry: Entry) -> ModelStatus:
    found, engine = entry.condition, None if entry.served is None else entry.served.engine
    stats = None if engine is None or found.state == "unloaded" else engine.stats
    last_work = 0.0 if engine is None else engine.last_work
    return ModelStatus(
        name=found.name,
        state=found.state,
        at_start=found.at_start,
        num_bytes=found.num_bytes,
        idle_seconds=round(time.monotonic() - last_work, 1) if last_work else None,
        running=0 if stats is None else stats.num_running,
        waiting=0 if stats is None else stats.num_waiting,
        waiting_for_load=entry.num_waiting,
        failure=found.failure or None,
    )


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
