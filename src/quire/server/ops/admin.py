"""Admin endpoints: an application of its own for a listener of its own, off by default.

Nothing here can be reached on the public port. An endpoint that would harm others if anybody could
call it belongs here.
"""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.errors import invalid_value
from quire.server.http import strict_json
from quire.server.http.application import Application
from quire.server.http.envelope import Envelope
from quire.server.http.http_errors import HttpError
from quire.server.http.openapi_entry import BODY_ERRORS, ApiRoute, JsonResponse, OpenApiEntry
from quire.server.http.request_reader import read_body, read_query
from quire.server.model_loading import ModelLoader
from quire.server.model_registry import ModelEntry
from quire.server.ops.admin_structs import (
    AdminStats,
    AdmissionStats,
    Done,
    LoadRequest,
    ModelStatus,
    ModelStatuses,
    UnloadRequest,
)
from quire.server.ops.openapi import with_openapi
from quire.server.ops.sleep_routes import SleepRoutes
from quire.server.settings import ServerSettings

MAX_BODY_BYTES = 4096

T = TypeVar("T", bound=msgspec.Struct)

_KNOWN_MODEL = "`model` is the name of a model of this server (else 404)."

_STATS = OpenApiEntry(
    "/stats",
    "All counters of one model.",
    reply=AdminStats,
    errors=(404, 503),
    names_model=True,
)
_RESET_PREFIX_CACHE = OpenApiEntry(
    "/reset_prefix_cache",
    "Empty the prefix cache: later requests find nothing in it.",
    method="post",
    rules=(
        "The query may have `reset_running_requests`, which has no effect, and "
        "`reset_external` (false).",
    ),
    reply=Done,
)
_MODELS = OpenApiEntry("/admin/models", "All models, loaded or not.", reply=ModelStatuses)
_LOAD = OpenApiEntry(
    "/admin/models/load",
    "Load a model. Answers once it accepts requests.",
    method="post",
    rules=(_KNOWN_MODEL,),
    example={"model": "quire-tiny"},
    body=LoadRequest,
    reply=ModelStatus,
    errors=BODY_ERRORS,
)
_UNLOAD = OpenApiEntry(
    "/admin/models/unload",
    "Unload a model. Answers once its engine has ended.",
    method="post",
    rules=(_KNOWN_MODEL,),
    example={"model": "quire-tiny", "grace": 5},
    body=UnloadRequest,
    reply=ModelStatus,
    errors=(*BODY_ERRORS, 409),
)


def build_admin_app(loader: ModelLoader, settings: ServerSettings) -> Starlette:
    """Make the ASGI application. Every path needs the admin key, if there is one."""
    own, sleep = _Endpoints(loader, settings), SleepRoutes(loader, settings)
    routes = with_openapi([*own.routes, *sleep.routes])
    app = Application(routes, lambda inner: Envelope(inner, keys=settings.admin_keys))
    app.router.default = _no_such_path([route.path for route in routes])
    return app


def _no_such_path(paths: list[str]) -> ASGIApp:
    async def refuse(_scope: Scope, _receive: Receive, _send: Send) -> None:
        text = f"no such path among the admin endpoints, which are {', '.join(paths)}; "
        raise HttpError(404, text + "the API is on the public port", code="not_found")

    return refuse


class _ResetQuery(msgspec.Struct):
    reset_running_requests: bool = False  # has no effect
    reset_external: bool = False


_RESET_PROBLEMS = dict.fromkeys(_ResetQuery.__struct_fields__, "must be true or false")


class _Endpoints:
    def __init__(self, loader: ModelLoader, settings: ServerSettings) -> None:
        self._loader = loader
        self._models = loader.models
        self._settings = settings

    @property
    def routes(self) -> list[ApiRoute]:
        """All routes but /openapi.json."""
        return [
            ApiRoute(self.stats, _STATS),
            ApiRoute(self.reset_prefix_cache, _RESET_PREFIX_CACHE),
            ApiRoute(self.models, _MODELS),
            ApiRoute(self.load, _LOAD),
            ApiRoute(self.unload, _UNLOAD),
        ]

    async def stats(self, request: Request) -> Response:
        """The counters of the model that the query names."""
        model = self._models.find(request.query_params.get("model"))
        await model.engine.view()  # updates the stats: this process may have received none lately
        counts = model.admission
        admission = AdmissionStats(
            num_answers=counts.in_flight.num_answers,
            num_waiting=counts.num_waiting,
            num_prompt_tokens=counts.in_flight.num_prompt_tokens,
            num_refused=counts.num_refused,
            max_answers=counts.capacity.max_running + counts.capacity.max_waiting,
        )
        tasks = len(asyncio.all_tasks())
        return JsonResponse(AdminStats(model.engine.stats, admission, tasks))

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Empty the prefix cache of all loaded models."""
        if read_query(request, _ResetQuery, _RESET_PROBLEMS).reset_external:
            raise invalid_value(
                "reset_external", "KV caches are in the engines alone; leave it out"
            )
        for model in self._models.loaded():
            await model.engine.reset_prefix_cache()
        return JsonResponse(Done())

    async def models(self, _request: Request) -> Response:
        """Handle GET of the state of all models."""
        await asyncio.gather(*(model.engine.view() for model in self._models.loaded()))
        statuses = [_status(entry) for entry in self._models.entries()]
        loaded = sum(s.num_bytes or 0 for s in statuses if s.state != "unloaded")
        return JsonResponse(ModelStatuses(statuses, loaded, self._settings.model_memory_bytes))

    async def load(self, request: Request) -> Response:
        """Load a model and wait for it. Raises ModelNotLoadedError."""
        body = await _read(request, LoadRequest)
        entry = self._models.entry(body.model)
        await self._loader.load(entry.name, self._settings.model_load_timeout)
        return JsonResponse(_status(entry))

    async def unload(self, request: Request) -> Response:
        """Unload a model and wait until its engine has ended."""
        body = await _read(request, UnloadRequest)
        entry = self._models.entry(body.model)
        grace = self._settings.shutdown_timeout if body.grace is None else body.grace
        await self._loader.unload_all([entry], grace)
        return JsonResponse(_status(entry))


async def _read(request: Request, kind: type[T]) -> T:
    """The decoded body. Raises InvalidRequestError."""
    data = await read_body(request.scope, request.receive, MAX_BODY_BYTES)
    body: T = strict_json.decode(data, strict_json.decoder_of(kind))
    strict_json.check_names(strict_json.read_names(data), kind.__struct_fields__, {})
    return body


def _status(entry: ModelEntry) -> ModelStatus:
    status, engine = entry.status, None if entry.model is None else entry.model.engine
    stats = None if engine is None or status.state == "unloaded" else engine.stats
    last_work = 0.0 if engine is None else engine.last_work
    return ModelStatus(
        name=status.name,
        state=entry.state,
        at_start=status.at_start,
        num_bytes=status.num_bytes,
        idle_seconds=round(time.monotonic() - last_work, 1) if last_work else None,
        running=0 if stats is None else stats.num_running,
        waiting=0 if stats is None else stats.num_waiting,
        waiting_for_load=entry.num_waiting,
        failure=status.failure or None,
    )
